"""Keys of calls: what is no call of the format is refused before anything is done with it."""

from __future__ import annotations

import struct

import pytest
import torch

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.calls import BoundOperator
from edge_offload.ir.trace.keys import MAX_DEPTH, MAX_KEY_BYTES, calls_in, decode

TENSOR = b"T" + struct.pack("<BBB4qB", 6, 0, 1, 3, 1, 0, 12, 0)


@pytest.mark.parametrize(
    "key",
    [
        b"?",
        b"\xff",
        b"I\0",
        b"T\x06",
        TENSOR[:-1],
        b"T" + struct.pack("<BBB4qB", 6, 0, 1, -3, 1, 0, 12, 0),
        b"T" + struct.pack("<BBB4qB", 6, 4, 1, 3, 1, 0, 12, 0),
        b"T" + struct.pack("<BBB", 6, 0, 65),
        b"P" + struct.pack("<BBq", 6, 1, -1),
        b"Wc\x06\0",
        b"V" + struct.pack("<I", 1 << 31),
        b"L" + struct.pack("<I", 1 << 31),
        (b"L" + struct.pack("<I", 1)) * (MAX_DEPTH + 1) + b"N",
        b"X" + struct.pack("<I", 9) + b"short",
        b"X" + struct.pack("<I", 1) + b"\xff",
        b"N" * (MAX_KEY_BYTES + 1),
    ],
)
def test_a_malformed_key_is_refused(key: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode("aten::relu", key)


def test_only_integers_of_a_call_are_changed() -> None:
    relu = BoundOperator("aten::relu", TENSOR, torch.device("cpu"))
    assert relu.integers == (3, 1, 0, 12)
    assert relu.changed([(relu.offsets[0], 5)]).views[0].layout.sizes == (5,)
    assert relu.views[0].layout.sizes == (3,)
    for offset, size in ((1, 5), (len(TENSOR), 5), (relu.offsets[0], -1)):
        with pytest.raises(ProtocolError):
            relu.changed([(offset, size)])


def test_words_that_end_inside_a_call_are_refused() -> None:
    relu = BoundOperator("aten::relu", TENSOR, torch.device("cpu"))
    assert list(calls_in((0, 7, 0, 8), lambda number: relu)) == [(relu, (7,)), (relu, (8,))]
    with pytest.raises(ProtocolError, match="ends inside a call"):
        list(calls_in((0, 7, 0), lambda number: relu))
