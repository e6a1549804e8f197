"""Run the people node on the images of a bag, or the scene node on its clouds, and compare with a golden record.

Every frame has its original stamp, and the next one follows after its result, so that no frame is dropped by chance.
Stamps and counts must be equal. Boxes may differ by 0.5 px, scores by 1e-3, full voxels by 0.5 %. The golden record
names the model and the checksum of its weights; a run with another model is refused. Exit code 0: equal; 1: different,
or not run.

Needs ROS: source devel/setup.bash (or the install space) first. Starts a ROS master of its own on a free port.

Examples:
  edge-offload regress walk.bag --golden walk.json --update     write the golden record from this run
  edge-offload regress walk.bag --golden walk.json              compare with it
  edge-offload regress walk.bag --golden walk.json --launch mode:=server
  edge-offload regress walk.bag --golden walk.json --launch carry:=true    counts results and inferences
  edge-offload regress drive.bag --golden drive.json --launch results:=scenes cells:=64    clouds instead of images
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Any, Dict, Mapping, Sequence

from edge_offload.dashboard.progress import PROGRESS
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.outputs import check_output, write_text

#: Error line of a node that ends at its start or while it runs. Colour codes of rospy's log (ESC …) end the cause.
CANNOT_START = re.compile(r"cannot (start|go on): ([^\x1b\n]*)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("bag", type=pathlib.Path, help="bag file with images, or with clouds")
    parser.add_argument("--golden", type=pathlib.Path, required=True, help="file of the golden record (JSON)")
    parser.add_argument(
        "--update", action="store_true", help="write the golden record from this run instead of comparing"
    )
    parser.add_argument("--topic", default="", help="topic of the images or clouds; needed if the bag has several")
    parser.add_argument("--frames", type=int, default=0, help="use only the first N frames")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to wait for one result (60)")
    parser.add_argument(
        "--launch",
        nargs="+",
        default=[],
        metavar="ARG:=VALUE",
        help="arguments of regress.launch, such as mode:=server",
    )


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload.perception import regression

    if not args.bag.is_file():
        raise BadInput(f"no bag file {args.bag}")
    malformed = [item for item in args.launch if ":=" not in item]
    if malformed:
        raise BadInput(f"unknown argument {malformed[0]}", remedy="launch arguments look like mode:=server")
    if args.update:
        check_output(args.golden)
    expected = None if args.update else regression.load_golden(args.golden)
    actual = step(args)
    if expected is None:
        print(f"{regression.describe_counts(actual)}, {regression.describe_content(actual)}, model {actual['model']}")
        write_text(args.golden, json.dumps(actual, indent=1) + "\n")
        print(f"wrote {args.golden}")
        return 0
    if args.frames:
        expected = {**expected, "frames": expected["frames"][: args.frames]}
    differences = regression.find_differences(expected, actual)
    most = 20
    for line in differences[:most]:
        print(line)
    if len(differences) > most:
        print(f"… and {len(differences) - most} more")
    verdict = f"{len(differences)} differences" if differences else "the same"
    print(f"{regression.describe_counts(actual)}, model {expected['model']}: {verdict}")
    return 1 if differences else 0


def step(args: argparse.Namespace) -> Dict[str, Any]:
    """Run regress.launch over the bag and return what came out, as a golden record."""
    from edge_offload.perception import regression

    if not shutil.which("roslaunch"):
        raise EdgeOffloadError("roslaunch is not on PATH", remedy="source devel/setup.bash first")
    with tempfile.TemporaryDirectory(prefix="edge_offload-regress-") as folder:
        out = pathlib.Path(folder) / "outcome.json"
        port = free_port()
        command = [
            "roslaunch", "-p", str(port), "edge_offload", "regress.launch",
            f"bag:={args.bag.resolve()}", f"out:={out}", f"timeout:={args.timeout}", *args.launch,
        ]  # fmt: skip
        # roslaunch would read an empty value as a missing one
        command += [f"topic:={args.topic}"] if args.topic else []
        command += [f"frames:={args.frames}"] if args.frames else []
        environment = {
            **os.environ,
            "ROS_MASTER_URI": f"http://localhost:{port}",
            "PWD": os.getcwd(),
            "EDGE_OFFLOAD_PYTHON": os.environ.get("EDGE_OFFLOAD_PYTHON") or sys.executable,
        }
        log = _run_command(command, environment)
        if not out.is_file():
            causes = CANNOT_START.findall(log)
            if causes:
                verb, cause = causes[0]
                raise EdgeOffloadError(f"a node cannot {verb}: {cause}")
            sys.stderr.write("\n".join(log.splitlines()[-30:]) + "\n")
            raise EdgeOffloadError("the run wrote no outcome", remedy="its last lines are above")
        return regression.load_golden(out)


def _run_command(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run ``command`` to its end, pass its lines of progress on, and return the others."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        lines = []
        for line in process.stdout or ():
            if line.startswith(PROGRESS):
                print(f"edge-offload regress: {line[len(PROGRESS) :].rstrip()}", file=sys.stderr, flush=True)
            else:
                lines.append(line)
    return "".join(lines)


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
