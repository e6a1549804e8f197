"""Hostile messages (bench fuzz): the server lives, an honest session computes on, strangers are refused."""

from __future__ import annotations

import random
import struct

import msgpack
import pytest

from edge_offload import records
from edge_offload.execute.session.serve import serve_message
from edge_offload.execute.session.session import DeviceSession, SegmentStep
from edge_offload.protocol.messages import DeviceMessage, parse_answer
from edge_offload_benchmarks.experiments.fuzz import fuzz_server
from edge_offload_benchmarks.fuzzing.calls import make_entry, mangle_buffers, replace_value, tensor_item

pytestmark = pytest.mark.process


def square() -> DeviceMessage:
    item = tensor_item([4])
    message = DeviceMessage(speculative_from=1)
    message.entries = [
        ("edge::alloc", b"I" + struct.pack("<q", 16), None, 0),
        ("edge::upload", item + b"P" + struct.pack("<BBq", 6, 1, 4), None, 0),
        make_entry("aten::mul.Tensor", item + item),
        ("edge::download", item, None, 0),
    ]
    message.segments = [(0, struct.pack("<8I", 0, 1, 0, 2, 0, 0, 3, 1))]
    message.steps = [SegmentStep(0, 1, [], [], b"", [struct.pack("<4f", 1, 2, 3, 4)])]
    return message


def test_a_device_answers_whatever_it_is_sent() -> None:
    """An exception here would end the executor of the session; bytes(1 << 40) would fill its memory."""
    draw = random.Random(3)
    good = 0
    for number in range(3000):
        facts, *payloads = square().to_wire()
        if number % 2:
            facts = msgpack.packb(replace_value(msgpack.unpackb(facts), draw))
        buffers = [bytearray(facts), *map(bytearray, payloads)]
        if not number % 2:
            mangle_buffers(buffers, draw)
        good += parse_answer(serve_message(DeviceSession(), buffers)).error is None
    assert 0 < good < 1500
    assert parse_answer(serve_message(DeviceSession(), square().to_wire())).outcomes[0].tensor.tolist() == [1, 4, 9, 16]


@pytest.mark.slow
def test_a_server_outlives_hostile_messages() -> None:
    record = fuzz_server(200, 40, seed=1)
    records.validate("fuzz", record)
    assert record["failures"] == []
    assert record["strangers"]["let in"] == 0
    assert record["checks"] >= 2
    assert all(record["sent"].values())
    assert record["outcomes"]["raw: read"] + 200 * record["outcomes"]["raw: connections cut"] >= record["sent"]["raw"]
    # the calls reach their operators: they are not all turned away before
    assert any(name.startswith("call: ") and not name.endswith("ProtocolError") for name in record["outcomes"])
