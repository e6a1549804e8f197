"""What a client defines keeps its number, whatever becomes of it: nothing is ever taken for another call."""

from __future__ import annotations

import struct
from typing import List

import pytest
import torch

from edge_offload.errors import ProtocolError, RemoteError
from edge_offload.execute.session.serve import serve_message
from edge_offload.execute.session.session import DeviceSession, SegmentStep
from edge_offload.protocol.messages import DeviceMessage, parse_answer

ALLOC, DOWNLOAD = "edge::alloc", "edge::download"


def tensor(dtype: int, count: int, storage: int = 0) -> bytes:
    return b"T" + struct.pack("<BBBqqqqB", dtype, 0, 1, count, 1, 0, 8 * count, storage)


def number(value: int) -> bytes:
    return b"I" + struct.pack("<q", value)


FILL = "aten::fill_.Scalar"


def run(session: DeviceSession, entries: List[tuple], segments: List[tuple], steps: List[SegmentStep], first: int = 0):
    message = DeviceMessage(
        entries=entries, segments=segments, steps=steps, first_entry=first, speculative_from=len(steps)
    )
    return parse_answer(serve_message(session, message.to_wire()))


def code(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize(
    "bad",
    [(FILL, tensor(99, 3) + number(1)), (FILL, b"?"), (FILL, tensor(6, 3)), ("aten::from_file", b""), (DOWNLOAD, b"")],
    ids=["dtype", "malformed", "arguments", "refused", "special"],
)
def test_calls_after_a_refused_one_preserve_their_numbers(bad: tuple) -> None:
    session = DeviceSession()
    entries = [
        (ALLOC, number(24), None, 0),
        (*bad, None, 0),
        (FILL, tensor(6, 3) + number(5), None, 0),
        (DOWNLOAD, tensor(6, 3), None, 0),
    ]
    step = SegmentStep(0, 1, [], [0], b"", [])
    answer = run(session, entries, [(0, code(0, 2, 0, 3, 0))], [step])
    assert answer.error is None
    assert answer.outcomes[0].tensor is not None
    assert answer.outcomes[0].tensor.tolist() == [5, 5, 5]
    answer = run(session, [], [(1, code(0, 1, 0, 3, 0))], [SegmentStep(1, 2, [], [0], b"", [])])
    assert answer.error is not None
    with pytest.raises((ProtocolError, RemoteError, NotImplementedError)):
        raise answer.error


def test_definitions_that_do_not_follow_those_before_are_refused() -> None:
    session = DeviceSession()
    assert run(session, [(ALLOC, number(24), None, 0)], [], []).error is None
    assert "are known" in str(run(session, [(ALLOC, number(48), None, 0)], [], [], first=2).error)
    assert run(session, [(ALLOC, number(48), None, 0)], [], [], first=1).error is None
    assert len(session.operators) == 2


def test_an_unsigned_dtype_is_carried() -> None:
    if not hasattr(torch, "uint64"):
        pytest.skip("this torch has no uint64")
    entries = [
        (ALLOC, number(24), None, 0),
        (FILL, tensor(29, 3) + number(7), None, 0),
        (DOWNLOAD, tensor(29, 3), None, 0),
    ]
    answer = run(DeviceSession(), entries, [(0, code(0, 1, 0, 2, 0))], [SegmentStep(0, 1, [], [0], b"", [])])
    assert answer.error is None
    assert answer.outcomes[0].tensor is not None
    assert answer.outcomes[0].tensor.dtype == torch.uint64
