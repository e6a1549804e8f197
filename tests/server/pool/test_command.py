"""``edge-offload pool status``: what members and servers say, for people."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edge_offload.cli import main
from edge_offload.server.pool import cluster

Capture = pytest.CaptureFixture


@pytest.mark.parametrize(
    ("moved", "message"), [(0, ""), (5, "5 could not go on where they were; 4 of them were in time")]
)
def test_status_counts_faults_of_requests(
    moved: int, message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {
        "model": "net", "slo_s": 0.2, "rate": 10.0, "why": "plan 2 for 1 L4", "requests": 20, "answered": 19,
        "passed_over": 2.1 * moved,
        "in_time": 18, "refused": 1, "moved": moved, "moved_in_time": 4,
        "stages": [{"class": "L4", "blocks": [0, 4], "share": 0.5, "batch": 2, "gpus": 1, "workers_there": 2,
                    "workers": 2, "busy": 0.25}],
    }  # fmt: skip
    monkeypatch.setattr(cluster, "connect_ray", lambda *_: SimpleNamespace(shutdown=lambda: None))
    monkeypatch.setattr(cluster, "list_nodes", lambda _: [cluster.PoolNode("0123456789", "L4", 1, 0.0)])
    monkeypatch.setattr(cluster, "read_statuses", lambda *_: [status])
    assert main(["pool", "status", "127.0.0.1:5790"]) == 0
    lines = capsys.readouterr().out
    assert "20 requests, 90.00 % answered in time, 1 refused" in lines
    assert "blocks 0-3 on 1 L4 / 2, batches of 2: 2 of 2 there, busy 25 %" in lines
    assert ("could not go on" in lines) == bool(moved)
    assert ("undivided; in stages it would promise 5.0 % more" in lines) == bool(moved)
    assert message in lines
