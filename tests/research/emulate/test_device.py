"""The emulated device: its table in people's CSV files, and the time it takes."""

from __future__ import annotations

import pathlib

import pytest
import torch

from edge_offload.errors import BadInput
from edge_offload.server.services.promise.batches import BatchTable
from edge_offload_research.emulate import device as emulated
from edge_offload_research.emulate.device import EmulatedExecutor, Emulation, load_csv
from tests.server.promises.test_tables import batches


def test_a_csv_is_a_table(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text("batch,latency_ms\n1,10\n2,12.5\n3,12.5\n")
    assert load_csv(path).seconds == (0.01, 0.0125, 0.0125)


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_what_is_no_table_is_told(tmp_path: pathlib.Path, text: str, words: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        load_csv(path)
    with pytest.raises(BadInput, match="cannot read"):
        load_csv(tmp_path / "none.csv")


def test_an_emulated_device_says_so_and_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(emulated.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(emulated.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    module = torch.nn.Linear(4, 4)
    executor = EmulatedExecutor(module, Emulation("emulated:gpu.csv", (0.001, 0.002)))
    assert batches(module, executor).load_or_measure(lambda: None) == BatchTable((0.001, 0.002), (0.001, 0.002), 2)
    first = executor.run_module([torch.ones(3, 4)])
    other, third = executor.run_batch([[torch.zeros(3, 4)], [torch.ones(3, 4)]])
    assert torch.equal(other.outputs[0], first.outputs[0]), "outputs were computed before"
    assert (first.engine, third.engine) == ("emulated:gpu.csv", "emulated:gpu.csv batch 2")
    assert now[0] == pytest.approx(0.003)
    assert (first.compute_s, third.compute_s) == (0.001, 0.002)
    assert executor.engine == executor.engine_facts()["engine"] == "emulated:gpu.csv"
