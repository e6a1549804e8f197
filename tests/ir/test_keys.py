"""Keys of calls: what is no call of the format is refused before anything is done with it."""

from __future__ import annotations

import struct

import pytest
import torch

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.calls import BoundOperator
from edge_offload.ir.trace.keys import MAX_DEPTH, MAX_KEY_BYTES, KeyTemplate, calls_in, decode_key, integers_of

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
        decode_key("aten::relu", key)


def test_only_integers_of_a_call_are_changed() -> None:
    relu = BoundOperator("aten::relu", TENSOR, torch.device("cpu"))
    assert relu.integers == (3, 1, 0, 12)
    assert relu.with_integers([(relu.offsets[0], 5)]).views[0].layout.sizes == (5,)
    assert relu.views[0].layout.sizes == (3,)
    for offset, size in ((1, 5), (len(TENSOR), 5), (relu.offsets[0], -1)):
        with pytest.raises(ProtocolError):
            relu.with_integers([(offset, size)])


def test_code_that_ends_inside_a_call_is_refused() -> None:
    relu = BoundOperator("aten::relu", TENSOR, torch.device("cpu"))
    assert list(calls_in((0, 7, 0, 8), lambda number: relu)) == [(relu, (7,)), (relu, (8,))]
    with pytest.raises(ProtocolError, match="ends inside a call"):
        list(calls_in((0, 7, 0), lambda number: relu))


def tensor(*sizes: int) -> bytes:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    numbers = (*sizes, *strides, 0, 4 * strides[0] * sizes[0])
    return b"T" + struct.pack(f"<BBB{len(numbers)}qB", 6, 0, len(sizes), *numbers, 1)


def integers(*values: int) -> bytes:
    return b"V" + struct.pack(f"<I{len(values)}q", len(values), *values)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("aten::relu", tensor(3, 4)),
        ("aten::add", tensor(2) + tensor(2, 2) + b"N"),
        ("aten::view", tensor(2, 3, 4) + integers(6, 4)),
        ("aten::relu", b"N"),
    ],
)
def test_a_template_makes_the_keys_that_differ_in_integers(name: str, key: bytes) -> None:
    offsets = decode_key(name, key)[1]
    template = KeyTemplate(key, offsets)
    assert template.fill_integers(integers_of(key, offsets)) == key
    changed = [7 + place for place, _ in enumerate(offsets)]
    expected = bytearray(key)
    for offset, value in zip(offsets, changed):
        struct.pack_into("<q", expected, offset, value)
    assert template.fill_integers(changed) == bytes(expected)


def test_a_recorded_convolution_runs_with_the_cudnn_flags_of_the_process_that_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = tensor(1, 3, 8, 8) + tensor(4, 3, 3, 3) + b"N" + integers(1, 1) + integers(0, 0) + integers(1, 1) + b"B\0"
    key += integers(0, 0) + b"I" + struct.pack("<q", 1)
    recorded = b"B\1" + b"B\0" + b"B\0" + b"B\1"  # benchmark, not deterministic, no cuDNN, TF32
    cudnn = torch.backends.cudnn
    for flag, value in (("benchmark", False), ("deterministic", True), ("enabled", True), ("allow_tf32", False)):
        monkeypatch.setattr(cudnn, flag, value)
    call = BoundOperator("aten::_convolution", key + recorded, torch.device("cpu"))
    assert call.refused is None
    assert call.arguments[-4:] == [False, True, True, False]
    first_size = call.offsets[0]
    assert call.with_integers([(first_size, 2)]).arguments[-4:] == [False, True, True, False]
