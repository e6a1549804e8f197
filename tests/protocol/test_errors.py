"""Errors as the program sees them: of a kind that its framework catches."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import pytest
import torch

from edge_offload import errors
from edge_offload.errors import EdgeOffloadError, LinkLost, OutOfMemory, ProtocolError, RemoteError, Unsupported
from edge_offload.execute.session.limits import SessionLimits
from edge_offload.ir.trace.segments import CallFailed
from edge_offload.protocol.messages import answer_to_wire, parse_answer, refusal_to_wire


def test_every_error_of_ours_is_a_runtime_error() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert {EdgeOffloadError, LinkLost, RemoteError, Unsupported} <= set(kinds)
    assert all(issubclass(kind, RuntimeError) for kind in kinds)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RemoteError("the executor failed"), RuntimeError),
        (ProtocolError("no"), RuntimeError),
        (Unsupported("operator 'aten::x' is not one that the server runs"), NotImplementedError),
        (OutOfMemory("CUDA out of memory. Tried to allocate 4 bytes"), torch.cuda.OutOfMemoryError),
    ],
)
def test_errors_of_the_server_are_raised_as_a_device_would(error: EdgeOffloadError, kind: type) -> None:
    answer = parse_answer(refusal_to_wire(error))
    assert isinstance(answer.error, kind)
    assert str(error) in str(answer.error)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.linalg.cholesky(-torch.eye(2)),
        lambda: torch.ones(3)[torch.tensor([7])],
        lambda: torch.ones(3) @ torch.ones(4),
        lambda: torch.ones(3).sum(dim=5),
    ],
)
def test_what_an_operator_raises_has_its_class_on_the_robot(call: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 (which one is what the robot is to raise)
        call()
    failed = CallFailed("aten::x", raised.value)
    error = {"operator": failed.operator, "kind": failed.kind, "text": failed.text}
    assert type(parse_answer(answer_to_wire([], [], error=error)).error) is raised.type


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]
)
def test_an_operator_without_memory_is_out_of_memory(error: Exception) -> None:
    failed = CallFailed("aten::cdist", error)
    assert failed.kind == torch.cuda.OutOfMemoryError.__name__
    assert failed.text.startswith("CUDA out of memory. ")


def test_a_full_session_raises_what_a_gpu_does() -> None:
    with pytest.raises(OutOfMemory, match=r"CUDA out of memory\. .*free tensors"):
        SessionLimits(storage_bytes=100).check_room(60, 50)
