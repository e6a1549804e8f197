"""Run an unmodified PyTorch program on a virtual CUDA device.

In the program torch.cuda.is_available() is true. The server ('edge-offload serve') computes all work on "cuda".
Without --server, an executor process on this machine does. Nothing in the program changes:

    edge-offload exec --server tcp://gpu:5700 -- python detect.py --source 0
    edge-offload exec --mode lazy -- python detect.py

In a launch file: launch-prefix="edge-offload exec --server tcp://gpu:5700 --". The first run builds a small native
library, which needs a C++ compiler (one to three minutes; 'edge-offload doctor --build' builds it ahead of time).
Weights are sent to a server once and cached there.

modes:
  replay   the server runs ahead: a steady inference costs one round trip (default)
  lazy     calls wait for the next host read and travel together
  cached   every call is a round trip; queries are answered from a cache on this machine
  per_op   every call and every query is a round trip
  split    this process computes. Repeated inferences are recorded and divided between it and the server, operator by
           operator, if that is faster. Needs --server, which may come and go. Results are equal up to rounding
  local    this process computes everything, without a server, as on the CPU

A Python program replaces this process. Any other program (a shell, env, a wrapper) runs as a child process. If no
Python in it had the virtual device, a line says so at its end, and the exit code is 1 (with --absent local: the
program's). Causes are a cleared PYTHONPATH, and python with -E, -I or -S. The program sees no GPU if
CUDA_VISIBLE_DEVICES is -1 or empty.

When the connection breaks, the program waits up to --resume seconds, and continues where it was. After that it
continues on this machine: its tensors are moved to this machine's device, and lost ones are computed again. When the
server is back, it computes there again. Only a tensor with too many steps behind it to record is lost; its use raises
edge_offload.errors.LinkLost.
"""

from __future__ import annotations

import argparse
import os

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.outputs import add_output

MODES = ("per_op", "cached", "lazy", "replay", "split", "local")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--mode", choices=MODES, default="replay", help="execution mode, as described above (default: %(default)s)"
    )
    parser.add_argument("--server", default="", metavar="ADDR",
                        help="tcp://host:port of 'edge-offload serve'; several with commas; auto: one that announces "
                             "itself on this network ('serve --announce') and whose key is trusted")  # fmt: skip
    parser.add_argument("--keys", default="", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument("--codec", default="auto", metavar="NAME", help="payload codec (default: auto, lossless)")
    parser.add_argument("--wait", type=float, default=5.0, metavar="S",
                        help="seconds to wait for the server at the start (default: %(default)g)")  # fmt: skip
    parser.add_argument("--absent", choices=("fail", "local", "later"), default="fail",
                        help="without a server at the start: fail (default), compute on this machine (local), or "
                             "start without it (later: for programs that connect by themselves)")  # fmt: skip
    parser.add_argument("--resume", type=float, default=30.0, metavar="S",
                        help="seconds to wait for a broken connection (default: %(default)g)")  # fmt: skip
    parser.add_argument("--lost", choices=("local", "end"), default="local",
                        help="after that: continue on this machine until the server is back (local, default), "
                             "or end with an error (end)")  # fmt: skip
    parser.add_argument(
        "--device",
        default="cpu",
        help="device of this machine: cpu, in this process if possible (default); cuda, cuda:n, in a process "
        "that owns the GPU; auto, the GPU if there is one",
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="torch threads of this machine's device; 0: torch's default"
    )
    add_output(parser, "--tally", default="", metavar="FILE", help="write the cost of the run as JSON at its end")
    parser.add_argument("--slowdown", type=float, default=1.0, metavar="K",
                        help="mode split: emulate a robot that is K times slower (default: %(default)g)")  # fmt: skip
    parser.add_argument("--shapes", choices=("known", "ask"), default="known",
                        help="metadata of results: inferred on this machine if that is exact (known), or requested "
                             "from the server for every new call (ask) (default: %(default)s)")  # fmt: skip
    parser.add_argument("--optional", action="store_true",
                        help="without a C++ compiler, warn and run the program without the device")  # fmt: skip
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
