"""``edge-offload turns plan``: a problem or a list in, the best plan or an error of one line out."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict

import pytest

from edge_offload.cli import main

TASKS = [
    {"name": "people", "latency": 5, "last": -9, "rate": 0.02, "intercept": 0.1, "local": 0.3, "weight": 2},
    {"name": "scene", "latency": 4, "last": -4, "rate": 0.01, "intercept": 0, "local": None, "weight": 1},
]
PROBLEM: Dict[str, Any] = {"tasks": TASKS, "horizon": 30, "max_run": None, "run": ["people", 1], "terminal": False}


def run_command(folder: pathlib.Path, problem: Any, *options: str) -> int:
    """The exit code; an object is written as JSON, a text as it is."""
    path = folder / "problem.json"
    path.write_text(problem if isinstance(problem, str) else json.dumps(problem))
    return main(["turns", "plan", str(path), *options])


def test_a_problem_is_answered_and_a_list_is_answered_by_a_list(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(tmp_path, PROBLEM, "--json") == 0
    one = json.loads(capsys.readouterr().out)
    assert set(one) == {"first", "cost", "offloads"}
    assert one["offloads"][0] == [0, one["first"]]
    assert run_command(tmp_path, [PROBLEM, {**PROBLEM, "horizon": 4}], "--json") == 0
    several = json.loads(capsys.readouterr().out)
    assert several[0] == one
    assert len(several[1]["offloads"]) == 1
    assert run_command(tmp_path, PROBLEM) == 0
    assert f"{one['first']}'s frame goes next" in capsys.readouterr().out


@pytest.mark.parametrize(("max_run", "plans"), [(None, "135"), (3, "88")])
def test_plans_are_counted(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], max_run: Any, plans: str
) -> None:
    assert run_command(tmp_path, {**PROBLEM, "max_run": max_run, "run": None}, "--count") == 0
    assert capsys.readouterr().out.strip() == plans
    assert run_command(tmp_path, [{**PROBLEM, "max_run": max_run, "run": None}], "--count", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [int(plans)]


def without(key: str) -> Dict[str, Any]:
    return {**PROBLEM, "tasks": [{name: value for name, value in TASKS[0].items() if name != key}]}


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("{", "no JSON"),
        ("3", "the problem is 3"),
        ([PROBLEM, {}], "problem 1: the problem lacks tasks"),
        ({**PROBLEM, "horison": 3}, "has a key 'horison'"),
        ({**PROBLEM, "tasks": {}}, "tasks are {}"),
        ({**PROBLEM, "tasks": []}, "0 tasks"),
        ({**PROBLEM, "tasks": [*TASKS, TASKS[0]]}, "several tasks are called people"),
        (without("last"), "lacks last"),
        (json.dumps(PROBLEM).replace('"weight": 2', '"weight": NaN'), "weight is nan"),
        (json.dumps(PROBLEM).replace('"last": -9', '"last": -9.5'), "last is -9.5"),
        ({**PROBLEM, "run": "people"}, "run is 'people'"),
        ({**PROBLEM, "run": ["nobody", 1]}, "the last turns"),
        ({**PROBLEM, "terminal": "yes"}, "terminal is 'yes'"),
        ({**PROBLEM, "horizon": 1e9}, "frames within the horizon"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], problem: Any, message: str
) -> None:
    assert run_command(tmp_path, problem, "--json") == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert message in captured.err
    assert captured.err.count("\n") == 1
