"""Plan the requests of many robots on one server: who is computed with whom, and which frame each sends.

  edge-offload promises plan problem.json           a table
  edge-offload promises plan problem.json --json    {"batches": [{"start": 11.0, "robots": [["1", 9], ["2", 9]]}, …]}

A problem, or one of a list of them:
  {"lat": [1.5, 2], "robots": [{"id": 1, "interval": 3, "batch": 2, "frame": 6, "arrival": 8}, …], "t0": 11,
   "horizon": 6, "grace": 0.1}
All times are in frame intervals. lat: of a batch of 1, 2, …; interval: frames between two requests of a robot; batch:
the largest that its promise allows; frame: the last one it asked for, which came at arrival; t0: when the server is
free. Requests that would come up to t0 + horizon are packed back to back, and each robot's frame is moved to the
batch's start (ARISE, Algorithm 2). Where no robot has a new frame, the server waits for the next one. grace (0): share
of a batch's time that is left open for late members.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from typing import Any, Dict, List, Tuple

MAX_ROBOTS = 10_000
MAX_REQUESTS = 1_000_000
MOST_FRAME = 1 << 53
MOST_TIME = 1e12
"""Of times farther off, sums do not tell an interval from the next."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="plan")
    plan = kinds.add_parser("plan", help="batches for the robots of a file", description="Batches for a problem.")
    plan.add_argument("file", metavar="FILE", help="the problem, or a list of problems (JSON); '-': standard input")
    plan.add_argument("--json", action="store_true", help="print JSON: an answer for a problem, a list for a list")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    from edge_offload.errors import BadInput

    try:
        given = json.load(sys.stdin) if args.file == "-" else json.loads(pathlib.Path(args.file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {args.file}: {error}", remedy="give a JSON file; see --help") from error
    problems = given if isinstance(given, list) else [given]
    answers = [_plan_promises(problem) for problem in problems]
    if args.json:
        print(json.dumps(answers if isinstance(given, list) else answers[0]))
        return 0
    for answer in answers:
        for batch in answer["batches"]:
            print(
                f"{batch['start']:10.3f}  " + ", ".join(f"{robot}: frame {frame}" for robot, frame in batch["robots"])
            )
    return 0


def _plan_promises(problem: Any) -> Dict[str, Any]:
    from edge_offload.server.promises.packing import order_requests, pack_requests

    names, paces, latencies, begin, horizon, grace = _parse_problem(problem)
    requests = order_requests(paces, begin + horizon)
    batches = pack_requests(paces, requests, latencies, begin, grace)
    return {
        "batches": [
            {"start": batch.start, "robots": [[names[place], frame] for place, frame in batch.members]}
            for batch in batches
        ]
    }


def _parse_problem(problem: Any) -> Tuple[List[Any], List[Any], Any, float, float, float]:
    from edge_offload.errors import BadInput
    from edge_offload.server.promises.latencies import Latencies
    from edge_offload.server.promises.packing import Pace

    if not isinstance(problem, dict):
        raise BadInput("a problem is a map", remedy="see 'edge-offload promises plan --help'")
    unknown = set(problem) - {"lat", "robots", "t0", "horizon", "grace"}
    if unknown:
        raise BadInput(f"unknown in the problem: {', '.join(sorted(map(str, unknown)))}", remedy="see --help")
    latencies = Latencies.parse(problem.get("lat", []))
    begin, horizon = _read_number(problem, "t0"), _read_number(problem, "horizon", least=0.0)
    grace = _read_number(problem, "grace", least=0.0) if "grace" in problem else 0.0
    robots = problem.get("robots")
    if not isinstance(robots, list) or len(robots) > MAX_ROBOTS:
        raise BadInput(f"robots are a list of at most {MAX_ROBOTS}")
    names, paces, expected = [], [], 0.0
    for robot in robots:
        if (
            not isinstance(robot, dict)
            or isinstance(robot.get("id"), bool)
            or not isinstance(robot.get("id"), (int, str))
        ):
            raise BadInput("a robot is a map with an id", remedy="give id, interval, batch, frame, arrival")
        name = robot["id"]
        if name in names:
            raise BadInput(f"two robots are called {name}")
        integers = {
            key: _read_number(robot, key, least, f"robot {name}: ")
            for key, least in (("interval", 1.0), ("batch", 1.0), ("frame", -math.inf))
        }
        for key, value in integers.items():
            if value != int(value) or abs(value) > MOST_FRAME:
                raise BadInput(f"robot {name}: {key} is {value:g}", remedy="give a whole number below 2^53")
        arrival = _read_number(robot, "arrival", -math.inf, f"robot {name}: ")
        names.append(name)
        paces.append(
            Pace(str(name), int(integers["interval"]), int(integers["batch"]), int(integers["frame"]), arrival)
        )
        expected += max(0.0, (begin + horizon - arrival) / integers["interval"])
    if expected > MAX_REQUESTS:
        raise BadInput(f"{expected:.3g} requests in the horizon", remedy=f"at most {MAX_REQUESTS}: shorten the horizon")
    return names, paces, latencies, begin, horizon, grace


def _read_number(of: Dict[str, Any], key: str, least: float = -math.inf, where: str = "") -> float:
    from edge_offload.errors import BadInput

    value = of.get(key)
    least = max(least, -MOST_TIME)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MOST_TIME:
        allowed = f"a number from {least:g} to {MOST_TIME:g}"
        raise BadInput(f"{where}{key} is {value!r}", remedy=f"give {allowed}")
    return float(value)
