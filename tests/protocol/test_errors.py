"""Errors as the program sees them: of a kind that its framework catches."""

from __future__ import annotations

import inspect

import pytest
import torch

from edge_offload import errors
from edge_offload.errors import EdgeOffloadError, LinkLost, OutOfMemory, ProtocolError, RemoteError, Unsupported
from edge_offload.execute.session.limits import Limits
from edge_offload.ir.trace.segments import CallFailed
from edge_offload.protocol.messages import parse_answer, refusal


def test_every_error_of_ours_is_a_runtime_error() -> None:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert {EdgeOffloadError, LinkLost, RemoteError, Unsupported} <= set(found)
    assert all(issubclass(kind, RuntimeError) for kind in found)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (RemoteError("the executor failed"), RuntimeError),
        (ProtocolError("no"), RuntimeError),
        (Unsupported("operator 'aten::x' is not one that the server runs"), NotImplementedError),
        (OutOfMemory("CUDA out of memory. Tried to allocate 4 bytes"), torch.cuda.OutOfMemoryError),
    ],
)
def test_what_the_server_says_is_raised_as_a_device_would(told: EdgeOffloadError, kind: type) -> None:
    answer = parse_answer(refusal(told))
    assert isinstance(answer.error, kind)
    assert str(told) in str(answer.error)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]
)
def test_an_operator_without_memory_is_out_of_memory(error: Exception) -> None:
    failed = CallFailed("aten::cdist", error)
    assert failed.kind == torch.cuda.OutOfMemoryError.__name__
    assert failed.text.startswith("CUDA out of memory. ")


def test_a_session_that_is_full_says_so_as_a_gpu_does() -> None:
    with pytest.raises(OutOfMemory, match=r"CUDA out of memory\. .*free tensors"):
        Limits(storage_bytes=100).check_held(60, 50)
