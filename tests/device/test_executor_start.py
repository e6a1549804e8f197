"""An executor process that cannot start says why."""

from __future__ import annotations

import argparse
import re
import types
from typing import Any, Dict, List

import pytest
import torch

from edge_offload.device.remotes.executor import WorkerRemote
from edge_offload.errors import DeviceLost, LinkLost
from edge_offload.execute import heap
from edge_offload.execute.session import worker

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: the executor starts")


@pytest.mark.process
def test_reason_of_the_executor() -> None:
    with pytest.raises(LinkLost, match=r"did not start.*(CUDA|NVIDIA|device)"):
        WorkerRemote("cuda", 1)


def test_a_missing_gpu_is_the_reason_whatever_its_streams_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of torch 2.9.1 without CUDA raises a TypeError."""

    def refuse(*_: Any) -> None:
        raise TypeError("'<' not supported between instances of 'NoneType' and 'int'")

    headers: List[Dict[str, Any]] = []
    channel: Any = types.SimpleNamespace(send=headers.append)
    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    monkeypatch.setattr(heap, "retain_freed_memory", lambda: None)
    bounds = {"storage_bytes": 1 << 30, "storages": 10, "segments": 10, "note": -1}
    args = argparse.Namespace(device="cuda", cores="", threads=0, **bounds)
    with pytest.raises(DeviceLost):
        worker.serve_forever(channel, args)
    assert re.search("CUDA|NVIDIA", headers[0]["failed"])
