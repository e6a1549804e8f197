"""Tables of latencies: measured, and kept."""

from __future__ import annotations

import logging
import pathlib

import pytest
import torch

from edge_offload.execute.module import ModuleExecutor
from edge_offload.execute.tensors import TensorSpec
from edge_offload.server.services.promise.batches import BatchRunner
from edge_offload.server.services.replica.replicas import Replica

SPECS = (TensorSpec("float32", (3, 4)),)


def batches(module: torch.nn.Module, executor: ModuleExecutor) -> BatchRunner:
    return BatchRunner(Replica("net", {}, executor, "hash"), SPECS)


def test_measured_once_and_cached(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    module = torch.nn.Linear(4, 4)
    table = batches(module, ModuleExecutor(module)).load_or_measure(lambda: None, tmp_path)
    assert len(table.median_s) == len(table.p95_s) == 8
    assert list(table.median_s) == sorted(table.median_s)
    assert list(table.p95_s) == sorted(table.p95_s)
    assert all(p95 >= median > 0 for median, p95 in zip(table.median_s, table.p95_s))
    reloaded = batches(module, ModuleExecutor(module)).load_or_measure(lambda: pytest.fail("measured again"), tmp_path)
    assert reloaded == table
    for path in tmp_path.glob("*.json"):
        path.write_text('{"median_s": [2, 1], "p95_s": [2, 1], "equal": 1, "reason": ""}')
    with caplog.at_level(logging.WARNING):
        batches(module, ModuleExecutor(module)).load_or_measure(lambda: None, tmp_path)
    assert "cannot be used" in caplog.text


def test_a_module_that_cannot_be_batched_has_batch_one(tmp_path: pathlib.Path) -> None:
    class Undecided(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > float(x.mean())]

    table = batches(Undecided(), ModuleExecutor(Undecided())).load_or_measure(lambda: None, tmp_path)
    assert len(table.median_s) == table.equal == 1
    assert table.reason.startswith("batch 2: ")
