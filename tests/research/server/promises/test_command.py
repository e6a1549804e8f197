"""``edge-offload promises plan``: problems in, batches out, and one line for what makes no sense."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from edge_offload.cli import main

PROBLEM = {
    "lat": [1.5, 2],
    "t0": 11,
    "horizon": 6,
    "robots": [
        {"id": 1, "interval": 3, "batch": 2, "frame": 6, "arrival": 8},
        {"id": "two", "interval": 5, "batch": 2, "frame": 5, "arrival": 7},
    ],
}


def plan(path: pathlib.Path, problem: Any, *more: str) -> int:
    (path / "problem.json").write_text(json.dumps(problem))
    return main(["promises", "plan", str(path / "problem.json"), *more])


def test_plan_answers_a_problem_and_a_list(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    assert plan(tmp_path, PROBLEM, "--json") == 0
    one = json.loads(capsys.readouterr().out)
    assert one["batches"][0] == {"start": 11.0, "robots": [[1, 9], ["two", 9]]}
    assert plan(tmp_path, [PROBLEM, {**PROBLEM, "grace": 0.5}], "--json") == 0
    two = json.loads(capsys.readouterr().out)
    assert two[0] == one
    assert two[1]["batches"][1]["start"] == 14.0
    assert plan(tmp_path, PROBLEM) == 0
    assert "1: frame 9, two: frame 9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lat": [2, 1]}, "less than one of 1"),
        ({"t0": "now"}, "t0 is 'now'"),
        ({"horizon": -1}, "horizon is -1"),
        ({"horizon": 1e12}, "requests in the horizon"),
        ({"t0": 1e300, "robots": [{**PROBLEM["robots"][0], "arrival": 1e300}]}, "1e+12"),  # type: ignore[index]
        ({"grace": float("nan")}, "grace is nan"),
        ({"robots": [{"id": 1, "interval": 0, "batch": 1, "frame": 0, "arrival": 0}]}, "robot 1: interval is 0"),
        ({"robots": [{"id": 1, "interval": 1.5, "batch": 1, "frame": 0, "arrival": 0}]}, "whole number"),
        ({"robots": [PROBLEM["robots"][0]] * 2}, "two robots are called 1"),  # type: ignore[index]
        ({"speed": 3}, "unknown in the problem: speed"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    change: Any, message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    assert plan(tmp_path, {**PROBLEM, **change}) != 0
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
