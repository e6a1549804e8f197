"""Plan whose frame goes to the server next, where several networks of one robot share it.

  edge-offload turns plan problem.json            the best plan, for people
  edge-offload turns plan problem.json --json     as JSON: {"first", "cost", "offloads": [[frame, name], ...]}
  edge-offload turns plan problem.json --count    how many plans a listing of all would compare

A problem, or a list of problems ('-': from standard input), in frames from now:

  {"tasks": [{"name": "people", "latency": 5, "last": -9, "rate": 0.02, "intercept": 0.1, "local": 0.3, "weight": 1},
             {"name": "scene", "latency": 4, "last": -4, "rate": 0.01}],
   "horizon": 30, "max_run": 3, "run": ["people", 1], "terminal": true}

A result is available 'latency' frames after its frame, whose number for the newest one is 'last' (0 or less); one that
is carried along for so many frames loses min(intercept + rate * frames, local) of its accuracy, times 'weight'. One
offload is under way at a time. 'run': who had the last turns in a row, and how many; at most 'max_run'. 'cost' is the
sum over the frames of the horizon; with 'terminal' the plan is also chosen by what it leaves behind at its end. May be
left out: intercept (0), local and max_run (null: none), weight (1), run (nobody), horizon (30), terminal (true).
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, List

#: Keys of a problem and of a task, and what they are where they are left out.
PROBLEM: Dict[str, Any] = {"horizon": 30, "max_run": None, "run": None, "terminal": True, "in_flight": 1}
TASK: Dict[str, Any] = {"intercept": 0.0, "local": None, "weight": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See :mod:`edge_offload.commands`."""
    parser.add_argument("action", choices=("plan",), help="find the best plan")
    parser.add_argument("file", metavar="FILE", help="JSON with a problem or a list of problems; -: standard input")
    parser.add_argument("--json", action="store_true", help="print JSON: an answer, or a list of answers")
    parser.add_argument("--count", action="store_true", help="print the number of valid plans instead")


def run(args: argparse.Namespace) -> int:
    """See :mod:`edge_offload.commands`."""
    import json
    import pathlib
    import sys

    from edge_offload.errors import BadInput
    from edge_offload_research.turn_plans import count_plans, plan_turns

    text = sys.stdin.read() if args.file == "-" else pathlib.Path(args.file).read_text(encoding="utf-8")
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{args.file}: no JSON: {error}") from error
    several = isinstance(given, list)
    lines: List[str] = []
    counted: List[Any] = []
    for number, one in enumerate(given if several else [given]):
        try:
            problem = problem_of(one)
            if args.count:
                counted.append(count_plans(problem))
                lines.append(str(counted[-1]))
                continue
            planned = plan_turns(problem)
        except BadInput as error:
            where = f"problem {number}: " if several else ""
            raise BadInput(f"{where}{error.cause}", error.remedy) from error
        turns = ", ".join(f"{frame:g} {name}" for frame, name in planned.offloads)
        lines.append(f"{planned.first}'s frame goes next; cost {planned.cost:.6g}; frames and tasks: {turns}")
        frames = [[int(frame) if frame.is_integer() else frame, name] for frame, name in planned.offloads]
        counted.append({"first": planned.first, "cost": planned.cost, "offloads": frames})
    print(json.dumps(counted if several else counted[0]) if args.json else "\n".join(lines))
    return 0


def problem_of(given: Any) -> Any:
    """The problem that parsed JSON describes (see the module's docstring).

    Raises:
        BadInput: it describes none.
    """
    from edge_offload.errors import BadInput
    from edge_offload_research.turn_plans import Problem, Task

    def check_fields(what: str, one: Any, needed: Any, others: Dict[str, Any]) -> Dict[str, Any]:
        if not isinstance(one, dict):
            raise BadInput(f"{what} is {one!r}", remedy="write an object in braces")
        missing, unknown = [key for key in needed if key not in one], sorted(set(one) - {*needed, *others})
        if missing or unknown:
            keys = ", ".join((*needed, *others))
            wrong = f"lacks {', '.join(missing)}" if missing else f"has a key {unknown[0]!r}"
            raise BadInput(f"{what} {wrong}", remedy=f"its keys: {keys}")
        return {**others, **one}

    def check_frame_count(what: str, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadInput(f"{what} is {value!r}", remedy="give a whole number of frames")
        return value

    facts = check_fields("the problem", given, ("tasks",), PROBLEM)
    if not isinstance(facts["tasks"], list):
        raise BadInput(f"tasks are {facts['tasks']!r}", remedy="give a list of tasks")
    tasks = []
    for one in facts["tasks"]:
        task = check_fields("a task", one, ("name", "latency", "last", "rate"), TASK)
        last = check_frame_count(f"task {task['name']}: last", task["last"])
        tasks.append(
            Task(task["name"], task["latency"], last, task["rate"], task["intercept"], task["local"], task["weight"])
        )
    row = facts["run"] or ["", 0]
    if not isinstance(row, list) or len(row) != 2:
        raise BadInput(f"run is {facts['run']!r}", remedy="give [name, length]")
    if facts["terminal"] not in (True, False, None):
        raise BadInput(f"terminal is {facts['terminal']!r}", remedy="give true or false")
    most = None if facts["max_run"] is None else check_frame_count("max_run", facts["max_run"])
    return Problem(
        tuple(tasks),
        check_frame_count("horizon", facts["horizon"]),
        most,
        (row[0] or "", check_frame_count("the length of run", row[1])),
        bool(facts["terminal"]),
        check_frame_count("in_flight", facts["in_flight"]),
    )
