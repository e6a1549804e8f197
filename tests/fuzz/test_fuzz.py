"""Hostile messages (bench fuzz): the server lives, an honest session computes on, strangers are refused."""

from __future__ import annotations

import pytest

from edge_offload import records
from edge_offload.bench.fuzz import fuzz


@pytest.mark.slow
def test_a_server_outlives_hostile_messages() -> None:
    record = fuzz(200, 40, seed=1)
    records.validate("fuzz", record)
    assert record["failures"] == []
    assert record["strangers"]["let in"] == 0
    assert record["checks"] >= 2
    assert all(record["sent"].values())
    assert record["outcomes"]["raw: read"] + 200 * record["outcomes"]["raw: connections cut"] >= record["sent"]["raw"]
    # the calls reach their operators: they are not all turned away before
    assert any(name.startswith("call: ") and not name.endswith("ProtocolError") for name in record["outcomes"])
