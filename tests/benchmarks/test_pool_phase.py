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
    found = pool.compare("tiny", torch.device("cpu"))
    assert "failed" not in found
    assert found["batch 1"]["equal"]
    assert found["batch 4"]["error"] <= pool.MOST_ERROR
    assert all(stage["n"] == pool.RUNS and stage["ms"] > 0 for stage in found["batch 4"]["stages"])


@pytest.mark.process
def test_other_results_are_a_failure(monkeypatch):
    real = pool.through
    monkeypatch.setattr(pool, "through", lambda *given: [one + 1e-3 * one.abs().max() for one in real(*given)])
    assert "other bits than the undivided network's" in pool.compare("tiny", torch.device("cpu"))["failed"]
    monkeypatch.setattr(
        pool,
        "through",
        lambda parts, frames: [one * (1 + 1e-4 * (len(frames) > 1)) for one in real(parts, frames)],
    )
    assert "in a batch, above 2e-05" in pool.compare("tiny", torch.device("cpu"))["failed"]
