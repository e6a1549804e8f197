"""Run an unmodified PyTorch program on a virtual CUDA device.

In the program torch.cuda.is_available() is true, and whatever it puts on "cuda" is computed by the server
('edge-offload serve'), or without --server by an executor process on this machine. Nothing in the program changes:

    edge-offload exec --server tcp://gpu:5700 -- python detect.py --source 0
    edge-offload exec --mode lazy -- python detect.py

In a launch file: launch-prefix="edge-offload exec --server tcp://gpu:5700 --". The first run builds a small native
library (one to three minutes; 'edge-offload doctor --build' does it ahead of time), for which a C++ compiler is
needed. Weights are sent to a server once; the next start finds them.

modes:
  replay   the server runs ahead: a steady inference costs one round trip (default)
  lazy     calls wait for the next host read and travel together
  cached   every call is a round trip; queries are answered here
  per_op   every call and every query is a round trip
  split    this process computes; inferences that come again and again are recorded and divided between it and the
           server, operator by operator, where that is faster (--server is needed; the server may come and go).
           Results are those of the whole network up to rounding
  local    this process computes everything, without a server: the program runs as it would on the CPU

A Python takes this process's place. Of any other program (a shell, env, a wrapper) the end is waited for: if no Python
in it had the virtual device, because PYTHONPATH was cleared or python was given -E, -I or -S, a line says so and the
exit code is 1 (--absent local: the program's). CUDA_VISIBLE_DEVICES is obeyed: -1 or nothing hides the virtual GPU.

When the connection breaks, the program waits up to --resume seconds for its return and goes on where it was. After
that it goes on here: what it had put on the device is put on this machine's, what was computed there is computed again,
and once the server is back it computes there. Only a tensor whose making took too many steps to keep them is gone;
using it raises edge_offload.errors.LinkLost.
"""

from __future__ import annotations

import argparse
import os

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.outputs import add_output

MODES = ("per_op", "cached", "lazy", "replay", "split", "local")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--mode", choices=MODES, default="replay", help="how calls travel (default: %(default)s)")
    parser.add_argument("--server", default="", metavar="ADDR",
                        help="tcp://host:port of 'edge-offload serve'; several with commas; auto: one of this network "
                             "whose key is known here and that announces itself ('serve --announce')")  # fmt: skip
    parser.add_argument("--keys", default="", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument("--codec", default="auto", metavar="NAME", help="payload codec (default: auto, lossless)")
    parser.add_argument("--wait", type=float, default=5.0, metavar="S",
                        help="seconds to wait for the server at the start (default: %(default)g)")  # fmt: skip
    parser.add_argument("--absent", choices=("fail", "local", "later"), default="fail",
                        help="without a server at the start: fail (default), compute on this machine (local), or "
                             "start all the same (later: for programs that connect by themselves)")  # fmt: skip
    parser.add_argument("--resume", type=float, default=30.0, metavar="S",
                        help="seconds that a broken connection may take to return (default: %(default)g)")  # fmt: skip
    parser.add_argument("--lost", choices=("local", "end"), default="local",
                        help="without a server for longer than that: go on here until it is back (local, default), "
                             "or end with an error (end)")  # fmt: skip
    parser.add_argument(
        "--device",
        default="cpu",
        help="what computes here: cpu, this process where it can (default); cuda, cuda:n, a process that owns the GPU; "
        "auto, the GPU if there is one",
    )
    parser.add_argument("--threads", type=int, default=0, help="torch threads of what computes here; 0 leaves them")
    add_output(parser, "--tally", default="", metavar="FILE", help="write what the run cost as JSON when it ends")
    parser.add_argument("--slowdown", type=float, default=1.0, metavar="K",
                        help="mode split: emulate a robot that is K times slower (default: %(default)g)")  # fmt: skip
    parser.add_argument("--shapes", choices=("known", "ask"), default="known",
                        help="what results look like: worked out here where that is known to be exact (known), or "
                             "asked of the server for every new call (ask) (default: %(default)s)")  # fmt: skip
    parser.add_argument("--optional", action="store_true",
                        help="without a C++ compiler, say so and run the program without the device")  # fmt: skip
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="the program and its arguments")


def run(args: argparse.Namespace) -> int:
    """Replace this process by the program, with the virtual device in it; wait for one that is no Python itself."""
    import dataclasses
    import pathlib
    import shutil
    import sys

    from edge_offload.device import connect, installation, starting
    from edge_offload.link import discovery
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.native import libraries

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program:
        raise BadInput("no program to run", remedy="edge-offload exec -- python program.py")
    device = args.device
    if device != "cpu":
        from edge_offload.execute import devices

        device = str(devices.pick_device(device))
    settings = connect.ExecSettings(
        args.mode,
        args.server,
        args.keys,
        args.codec,
        args.absent,
        args.wait,
        args.resume,
        device,
        args.threads,
        args.tally,
        args.slowdown,
        args.lost,
        args.shapes,
    )
    if args.mode == "split" and not args.server:
        raise BadInput("mode split needs a server", remedy="name one with --server, or use mode lazy")
    if args.mode == "local" and args.server:
        raise BadInput("mode local uses no server", remedy="leave --server out, or add --absent local to another mode")
    if args.slowdown < 1.0:
        raise BadInput(f"--slowdown {args.slowdown:g}", remedy="a factor of at least 1")
    if settings.server == discovery.AUTO:
        address = discovery.find_servers(KeyStore(args.keys) if args.keys else KeyStore(), args.wait)
        settings = dataclasses.replace(settings, server=address)
    connect.check_settings(settings)
    if shutil.which(program[0]) is None:  # before minutes are spent on building
        exists = os.path.exists(program[0])
        raise BadInput(
            f"cannot run {program[0]}: {'it is not executable' if exists else 'no such program'}",
            remedy=f"python {program[0]}, if it is Python" if exists else "check its name and PATH",
        )
    replaces = starting.accepts_device(program, args.absent == connect.LOCAL)
    installation.check_choice()
    try:
        libraries.build_device()
    except EdgeOffloadError as error:
        if not args.optional:
            raise
        print(f"edge-offload exec: {error}; the program runs without the virtual device", file=sys.stderr, flush=True)
        os.execvpe(program[0], program, {**os.environ, "EDGE_OFFLOAD_NO_DEVICE": str(error)})
    bootstrap = str(pathlib.Path(__file__).parents[1] / "bootstrap")
    environment = {**os.environ, **settings.to_environment(), starting.LAUNCHER: sys.executable}
    environment.pop(starting.REPORT, None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (bootstrap, environment.get("PYTHONPATH", ""))))
    sys.stdout.flush()
    if not replaces:
        return starting.run_watched(program, environment, args.absent == connect.LOCAL)
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise starting.explain_failed_start(program[0], error) from None
