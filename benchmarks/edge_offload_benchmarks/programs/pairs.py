"""A program in two modes at once, each in a process of its own, inferences in turn over one emulated link.

What the machine does meanwhile hits both modes alike, so that the ratio of their times means something.
"""

from __future__ import annotations

import os
import statistics
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.errors import RemoteError
from edge_offload_benchmarks.processes import Process, edge_offload

#: Inferences with three lengths of four, before the fourth, and more with all of them before anything is measured.
LESSONS, MORE = 15, 9


def measure_pairs(
    program: Sequence[str],
    modes: Tuple[str, str],
    session: Sequence[str],
    environment: Mapping[str, str],
    pairs: int,
    timeout_s: float,
) -> Dict[str, Any]:
    """The first of ``modes`` held against the second.

    Args:
        program: command of :mod:`~edge_offload_benchmarks.programs.child`.
        modes: execution modes.
        session: options of ``exec`` that name the server.
        environment: on top of this process's.
        pairs: inferences in each mode.
        timeout_s: longest wait for one (seconds).

    Returns:
        See :func:`compare_runs`; ``problem`` with what went wrong instead, if anything did.
    """
    runs: List[List[Dict[str, Any]]] = [[], []]
    robots = [
        Process(edge_offload("exec", "--threads", "1", "--mode", mode, *session, "--", *program), environment)
        for mode in modes
    ]
    try:
        for turn, number in enumerate((*_order_lessons(), *range(LESSONS + MORE, LESSONS + MORE + pairs))):
            for which in (0, 1) if turn % 2 else (1, 0):
                runs[which].append(robots[which].request_answer({"number": number}, timeout_s))
    except RemoteError as error:
        last = [line for line in str(error).splitlines() if line.strip()]
        return {"problem": last[-1][:300]}
    finally:
        for robot in robots:
            robot.end(10.0) if robot.alive else robot.stop()
    return compare_runs(modes, runs)


def _order_lessons() -> List[int]:
    """Inputs of four lengths come in turn; the fourth is left out of the first lessons and comes alone after them."""
    three = [number for number in range(2 * LESSONS) if number % 4 != 3][:LESSONS]
    return [*three, 3, *range(LESSONS + 1, LESSONS + MORE)]


def compare_runs(modes: Tuple[str, str], runs: Sequence[Sequence[Mapping[str, Any]]]) -> Dict[str, Any]:
    """Times and round trips of two runs of the same inferences.

    Returns:
        ``ratio`` of the medians, first mode over second, with ``low`` and ``high``, a 95 % interval by bootstrap over
        the pairs; ``equal`` digests of ``inferences``; by mode ``first_trips``, ``new_trips`` (a new length after three
        others), ``steady_trips``, ``median_s``, ``busy_s``; of the first mode ``learning_s`` and
        ``learning_share``, the most in one steady inference, and the processor time that learning takes as a share
        of all wall time.
    """
    steady = [run[LESSONS + MORE :] for run in runs]
    mode_s, other = (np.array([line["seconds"] for line in run]) for run in steady)
    drawn = np.random.default_rng(0).integers(0, len(mode_s), (2000, len(mode_s)))
    ratios = np.median(mode_s[drawn], axis=1) / np.median(other[drawn], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    learning = [line["learning_s"] for line in steady[0]]
    record: Dict[str, Any] = {
        "inferences": len(runs[0]),
        "equal": sum(a["digest"] == b["digest"] for a, b in zip(*runs)),
        "pairs": len(mode_s),
        "ratio": float(np.median(mode_s) / np.median(other)),
        "low": float(low),
        "high": float(high),
        "learning_s": max(learning),
        "learning_share": sum(learning) / float(mode_s.sum()),
        "load": os.getloadavg()[0],
        "modes": {},
    }
    for mode, run, measured in zip(modes, runs, steady):
        record["modes"][mode] = {
            "first_trips": run[0]["trips"],
            "new_trips": run[LESSONS]["trips"],
            "steady_trips": statistics.median(line["trips"] for line in measured),
            "median_s": statistics.median(line["seconds"] for line in measured),
            "busy_s": statistics.median(line["busy_s"] for line in measured),
        }
    return record
