"""Tables of latencies: from people's CSV files, measured, and kept."""

from __future__ import annotations

import logging
import pathlib

import pytest
import torch

from edge_offload.errors import BadInput
from edge_offload.execute import emulated
from edge_offload.execute.emulated import EmulatedExecutor, Emulation
from edge_offload.execute.module import ModuleExecutor
from edge_offload.execute.tensors import TensorSpec
from edge_offload.server.promises.tables import load_csv
from edge_offload.server.services.promise.batches import BatchRunner, BatchTable
from edge_offload.server.services.replica.replicas import Replica

SPECS = (TensorSpec("float32", (3, 4)),)


def batches(module: torch.nn.Module, executor: ModuleExecutor) -> BatchRunner:
    return BatchRunner(Replica("net", {}, executor, "hash"), SPECS)


def test_a_csv_is_a_table(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("batch,latency_ms\n1,10\n2,12.5\n3,12.5\n")
    assert load_csv(path).seconds == (0.01, 0.0125, 0.0125)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,latency_ms\n1,10\n2,9\n", "less than"),
        ("batch,latency_ms\n1,nan\n", "latency of a batch of 1"),
        ("batch,latency_ms\n1,-3\n", "latency of a batch of 1"),
        ("batch,latency_ms\n2,3\n", "batch 2 stands where 1 should"),
        ("batch,latency_ms\n1,x\n", "latency_ms of batch 1"),
        ("batch,latency_ms\n1\n", "latency_ms of batch 1"),
        ("size,ms\n1,3\n", "columns"),
        ("batch,latency_ms\n", "1 to 64 entries"),
        ("", "columns"),
        ("batch,latency_ms\n" + "".join(f"{n},{n}\n" for n in range(1, 99)), "without a gap"),
    ],
)
def test_an_invalid_table_is_reported(tmp_path: pathlib.Path, text: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        load_csv(path)
    with pytest.raises(BadInput, match="cannot read"):
        load_csv(tmp_path / "none.csv")


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


def test_an_emulated_device_is_marked_and_slow_as_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(emulated.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(emulated.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    module = torch.nn.Linear(4, 4)
    executor = EmulatedExecutor(module, Emulation("emulated:gpu.csv", (0.001, 0.002)))
    assert batches(module, executor).load_or_measure(lambda: None) == BatchTable((0.001, 0.002), (0.001, 0.002), 2)
    first = executor.run([torch.ones(3, 4)])
    other, third = executor.run_batch([[torch.zeros(3, 4)], [torch.ones(3, 4)]])
    assert torch.equal(other.outputs[0], first.outputs[0]), "outputs were computed before"
    assert (first.engine, third.engine) == ("emulated:gpu.csv", "emulated:gpu.csv batch 2")
    assert now[0] == pytest.approx(0.003)
    assert (first.compute_s, third.compute_s) == (0.001, 0.002)
    assert executor.engine == executor.engine_facts()["engine"] == "emulated:gpu.csv"
