"""``scripts/gpu run pool``: stages against the undivided network, and a failed record where they differ."""

from __future__ import annotations

import pytest
import torch

from edge_offload.execute.threads import pin
from edge_offload_benchmarks.gpu.phases import pool


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    pin(threads=1)
    yield
    pin(threads=before)


@pytest.mark.process
def test_stages_have_the_bits_of_the_undivided_network_and_times():
    record = pool.compare_stages("tiny", torch.device("cpu"))
    assert "failed" not in record
    assert record["batch 1"]["equal"]
    assert record["batch 4"]["error"] <= pool.MOST_ERROR
    assert all(stage["n"] == pool.RUNS and stage["ms"] > 0 for stage in record["batch 4"]["stages"])


@pytest.mark.process
def test_other_results_are_a_failure(monkeypatch):
    real = pool.run_stages
    monkeypatch.setattr(pool, "run_stages", lambda *given: [one + 1e-3 * one.abs().max() for one in real(*given)])
    assert "other bits than the undivided network's" in pool.compare_stages("tiny", torch.device("cpu"))["failed"]
    monkeypatch.setattr(
        pool,
        "run_stages",
        lambda parts, frames: [one * (1 + 1e-4 * (len(frames) > 1)) for one in real(parts, frames)],
    )
    assert "in a batch, above 2e-05" in pool.compare_stages("tiny", torch.device("cpu"))["failed"]
