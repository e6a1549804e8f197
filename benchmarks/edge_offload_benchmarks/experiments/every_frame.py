"""A result for every frame: how long after its stamp each is published, in the launch files as a user starts them.

  edge-offload bench every-frame --json every_frame.json        people, scenes, and both with turns
  edge-offload bench every-frame --only patrol --seconds 60

Each is `roslaunch` with `carry:=true` and else its defaults: robot, server and an emulated link of 93 Mbit/s on this
machine, the robot's compute slowed 4 times on purpose, carrying and local algorithms as well; images and sweeps at
10 Hz, grids of 64 x 64. A process outside counts (run_recorder): a frame's delay is from its stamp to the arrival of
its result there, so the hand-over from camera to node and from node to others is in it. superseded: frames that gave
way to newer ones and have no result. No frame is left out, those of the start neither.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edge_offload.outputs import add_output

INTERVAL_S = 0.1
"""Between two images, and two sweeps."""

CELLS = 64
AROUND_S = 150.0
"""Start and end of a launch."""


class _Launch(NamedTuple):
    """A launch file, its arguments, and the summaries that it writes, by task."""

    file: str
    arguments: Mapping[str, str]
    summaries: Sequence[Tuple[str, str]]


LAUNCHES = {
    "kapao_tracking": _Launch(
        "kapao_tracking.launch", {"carry": "true", "json": "people.json"}, (("people", "people.json"),)
    ),
    "agrnav": _Launch(
        "agrnav.launch",
        {"carry": "true", "rate": "10", "cells": str(CELLS), "json": "scene.json"},
        (("scene", "scene.json"),),
    ),
    "patrol": _Launch(
        "patrol.launch", {"directory": "."}, (("people", "people.json"), ("scene", "scene.json"))
    ),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--only", choices=tuple(LAUNCHES), help="one launch file alone")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="of results, of each (30)")
    parser.add_argument("--port", type=int, default=11931, metavar="N", help="of the first master, and two behind it")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record every_frame_bench here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput

    if args.seconds < 5:
        raise BadInput("--seconds is at least 5")
    rows: List[Dict[str, Any]] = []
    for name in [args.only] if args.only else LAUNCHES:
        rows += measure_launch(name, args.seconds, args.port)
        for row in rows[-len(LAUNCHES[name].summaries) :]:
            print(f"{row['launch']}, {row['task']}: {row['results']} of {row['frames']} frames, p50 "
                  f"{row['delay_s']['p50'] * 1e3:.0f} ms, p99 {row['delay_s']['p99'] * 1e3:.0f} ms behind the stamp, "
                  f"{row['inferences']} inferences")  # fmt: skip
    record = judge_rows(rows, args.seconds, os.getloadavg()[0])
    for bar in record["bars"]:
        print(f"  {'met    ' if bar['met'] else 'NOT MET'} {bar['name']}: {bar['value']}")
    if args.json is not None:
        records.write(args.json, "every_frame_bench", record)
        print(f"wrote {args.json}", file=sys.stderr)
    return 0


def measure_launch(name: str, seconds: float, port: int) -> List[Dict[str, Any]]:
    """Rows of the tasks of one launch file.

    Raises:
        RemoteError: it gave no result.
    """
    from edge_offload.errors import RemoteError

    file, arguments, summaries = LAUNCHES[name]
    count = {"duration": f"{seconds:g}"} if name != "agrnav" else {"frames": str(round(seconds / INTERVAL_S))}
    given = {**arguments, **count, "port": str(port + 1), "link_port": str(port + 2)}
    if name == "kapao_tracking":
        given["headless"] = "true"
    command = ["roslaunch", "-p", str(port), "edge_offload", file, *(f"{key}:={value}" for key, value in given.items())]
    with tempfile.TemporaryDirectory() as folder:
        # paths among the arguments are those of the folder in which roslaunch runs
        environment = {**os.environ, "ROS_MASTER_URI": f"http://127.0.0.1:{port}", "PWD": folder}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder,
            timeout=seconds + AROUND_S, check=False,
        )  # fmt: skip
        rows = []
        for task, summary in summaries:
            path = pathlib.Path(folder) / summary
            if not path.exists():
                raise RemoteError(f"{file} gave no summary of {task}: {done.stdout[-500:]}")
            rows.append(_row_of(name, task, json.loads(path.read_text(encoding="utf-8"))))
    return rows


def _row_of(name: str, task: str, summary: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the row of a task from a run's summary."""
    from edge_offload.errors import RemoteError

    if "inferences" not in summary or "delay_s" not in summary:
        raise RemoteError(f"{name}, {task}: nothing was carried along ({summary['results_out']} results)")
    return {
        "launch": name,
        "task": task,
        "frames": summary["frames_published"],
        "results": summary["results_out"],
        "superseded": summary["frames_superseded"],
        "inferences": summary["inferences"],
        "results_by_origin": summary["results_by_origin"],
        "inferences_by_mode": summary["frames_by_mode"],
        "slowdown": summary["robot_slowdown"],
        "delay_s": summary["delay_s"],
    }


def judge_rows(rows: Sequence[Dict[str, Any]], seconds: float, load: float) -> Dict[str, Any]:
    """The record of such rows."""
    bars = [
        {
            "name": f"{row['launch']}, {row['task']}: p99 within the frame interval, {INTERVAL_S * 1e3:.0f} ms",
            "value": f"{row['delay_s']['p99'] * 1e3:.0f} ms",
            "met": row["delay_s"]["p99"] <= INTERVAL_S,
        }
        for row in rows
    ]
    return {
        "seconds": seconds,
        "interval_s": INTERVAL_S,
        "cells": CELLS,
        "cores": os.cpu_count() or 1,
        "load_average": load,
        "rows": list(rows),
        "bars": bars,
    }
