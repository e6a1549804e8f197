"""The runs of one program side by side: bits, round trips, refusals."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import statistics
import subprocess
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

#: From this inference on a program counts as steady.
STEADY = 14
#: How far mode split may be from local, as a share of the largest value: kernels round otherwise on a part of the rows.
ROUNDING = 1e-5


@dataclass
class Run:
    """One program in one mode.

    Attributes:
        lines: what the child printed, a line an inference.
        problem: why it ended early; empty if it did not.
        stderr: lines of its standard error.
    """

    lines: List[Dict[str, Any]]
    problem: str = ""
    stderr: Sequence[str] = ()


def run_program(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Run:
    """Start a child and read its lines; one that hangs is ended with all that it started."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Run(_parse_lines(out), f"hangs: not over after {timeout_s:.0f} s")
    if process.returncode:
        lines = [line for line in err.strip().splitlines() if line.strip()]
        return Run(_parse_lines(out), lines[-1][:300] if lines else f"exit code {process.returncode}", lines)
    return Run(_parse_lines(out), stderr=err.splitlines())


def _parse_lines(out: str) -> List[Dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def judge_run(reference: Run, run: Run, steps: int, off: Optional[float] = None) -> Dict[str, Any]:
    """Judge a run against mode local: passed, refused (with the reason), wrong, hangs or failed.

    Args:
        reference: mode local.
        run: another one.
        steps: inferences that were to be made.
        off: :func:`largest_error` of results that need not have the same bits.
    """
    equal = sum(a["digest"] == b["digest"] for a, b in zip(reference.lines, run.lines))
    trips = [line["trips"] for line in run.lines]
    steady = trips[STEADY:]
    row = {
        "inferences": len(run.lines),
        "equal": equal,
        "first_trips": trips[0] if trips else None,
        "steady_trips": statistics.median(steady) if steady else None,
        "most_steady_trips": max(steady) if steady else None,
        "steady_from": _steady_from(trips),
        "median_s": statistics.median(line["seconds"] for line in run.lines[len(run.lines) // 2 :]) if trips else None,
        "reason": run.problem,
    }
    if off is not None:
        row["off"] = off
    if equal < len(run.lines) and (off is None or off > ROUNDING):
        row["verdict"] = "wrong"
    elif run.problem:
        row["verdict"] = "hangs" if run.problem.startswith("hangs") else _is_refusal(run.problem)
    else:
        row["verdict"] = "passed" if len(run.lines) == steps else "failed"
    return row


def largest_error(plain: pathlib.Path, other: pathlib.Path) -> Optional[float]:
    """The largest difference of two files of results, as a share of the largest value; None where one is missing.

    Integers and truth values that differ count as 1.
    """
    if not plain.exists() or not other.exists():
        return None
    worst = 0.0
    for mine, theirs in zip(torch.load(plain, weights_only=True), torch.load(other, weights_only=True)):
        for a, b in zip(mine, theirs):
            if a.shape != b.shape or (not a.is_floating_point() and not torch.equal(a, b)):
                return 1.0
            if a.numel() and a.is_floating_point():
                scale = max(float(a.abs().max()), 1e-30)
                worst = max(worst, float((a.double() - b.double()).abs().max()) / scale)
    return worst


def _is_refusal(reason: str) -> str:
    """A refusal is one line of ours that names what is not supported and what to do."""
    return "refused" if "->" in reason or "is not supported" in reason or "edge_offload" in reason else "failed"


def _steady_from(trips: Sequence[int]) -> Optional[int]:
    """The first inference from which on the number of round trips never rises above its final median."""
    if len(trips) < 4:
        return None
    level = statistics.median(trips[-4:])
    for start in range(len(trips)):
        if all(count <= level for count in trips[start:]):
            return start
    return None
