"""What is made of robots that ran together in one mode."""

from __future__ import annotations

import sys

import pytest

from edge_offload import records
from edge_offload.execute import heap
from edge_offload.native import libraries
from edge_offload_benchmarks.held_robots import judge_load, load_together


def load_of(frames: int = 20, plan: str = "split", **fell_back: int) -> dict:
    return {"seconds": [0.1] * frames, "fell_back": fell_back, "plan": plan}


def checked(equal: int, difference: float) -> dict:
    return {"checked": 12, "equal": equal, "difference": difference}


def test_robots_are_judged_by_exactness_fairness_and_their_mode() -> None:
    fine = [load_of(20), load_of(22)]

    def passed(mode: str, loads: list, results: list) -> bool:
        record = judge_load(mode, "net", 2.0, loads, results, [1, 2, 3], records.latency_summary)
        records.validate("held_robots", record)
        return bool(record["passed"])

    exact, near, far = checked(12, 0.0), checked(0, 1e-6), checked(0, 1e-2)
    assert passed("replay", fine, [exact, exact])
    assert not passed("replay", fine, [exact, near]), "replay gives the robot's bits"
    assert passed("split", fine, [exact, near])
    assert not passed("split", fine, [exact, far])
    assert not passed("replay", [load_of(20), load_of(30)], [exact, exact]), "one was served more"
    undivided = load_of(300, plan="device-only")
    assert passed("split", [*fine, undivided], [exact, near, exact]), (
        "its plan leaves all to the robot: it is not served"
    )
    assert not passed("split", [load_of(20), load_of(30), undivided], [exact, near, exact])
    assert not passed("replay", [load_of(20), load_of(20, late=1)], [exact, exact]), "a frame was computed on the robot"
    assert not passed("split", fine, [{"checked": 0, "equal": 0, "difference": 0.0}] * 2), "nothing was compared"


@pytest.mark.process
@pytest.mark.slow
def test_results_are_compared_with_those_of_plain_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain CUDA is a virtual GPU here, which has the bits of the CPU that the server computes on."""
    if not libraries.device_is_possible():
        pytest.skip("no C++ compiler: the native device cannot be built")
    libraries.build_device()
    launcher = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]
    monkeypatch.setattr(heap, "LAUNCHER", launcher)
    record = load_together("server", "kapao_vtest", 1, 1.0, "cuda")
    assert record["checked"] > 0
    assert record["equal"] == record["checked"]
