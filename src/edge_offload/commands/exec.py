"""Run an unmodified PyTorch program on a virtual CUDA device.

In the program torch.cuda.is_available() is true, and whatever it puts on "cuda" is computed by the server
('edge-offload serve'), or without --server by an executor process on this machine. Nothing in the program changes:

    edge-offload exec --server tcp://gpu:5700 -- python detect.py --source 0
    edge-offload exec --mode lazy -- python detect.py

In a launch file: launch-prefix="edge-offload exec --server tcp://gpu:5700 --". The first run builds a small native
library (about a minute).
"""

from __future__ import annotations

import argparse
import os

from edge_offload.errors import BadInput

MODES = ("per_op", "cached", "lazy", "replay")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", choices=MODES, default="replay", help="how calls travel (default: %(default)s)")
    parser.add_argument("--server", default="", metavar="ADDR", help="tcp://host:port of 'edge-offload serve'")
    parser.add_argument("--keys", default="", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device of the executor here, without --server"
    )
    parser.add_argument("--threads", type=int, default=0, help="torch threads of the executor; 0 leaves torch's choice")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="the program and its arguments")


def run(args: argparse.Namespace) -> int:
    import pathlib

    from edge_offload.capture import build, device

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program:
        raise BadInput("no program to run", remedy="edge-offload exec -- python program.py")
    build.build()
    bootstrap = str(pathlib.Path(device.__file__).parent / "bootstrap")
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (bootstrap, environment.get("PYTHONPATH", ""))))
    environment[f"{device.ENVIRONMENT}_MODE"] = args.mode
    environment[f"{device.ENVIRONMENT}_SERVER"] = args.server
    environment[f"{device.ENVIRONMENT}_KEYS"] = args.keys
    environment[f"{device.ENVIRONMENT}_DEVICE"] = args.device
    environment[f"{device.ENVIRONMENT}_THREADS"] = str(args.threads)
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise BadInput(f"cannot run {program[0]}: {error.strerror}") from None
