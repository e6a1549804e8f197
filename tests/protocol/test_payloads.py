"""Buffers of messages are coded for the link and decoded to the same bytes."""

from __future__ import annotations

import random

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import ProtocolError
from edge_offload.protocol import payloads

pytestmark = pytest.mark.unit
ANSWER = msgpack.packb(
    {"outcomes": [{"described": [[call, [["t", [6, [37, 57], [57, 1], 0]]]] for call in range(99)]}]}
)


@given(
    st.lists(st.integers(0, 90_000), max_size=6), st.sampled_from(["auto", "raw"]), st.randoms(use_true_random=False)
)
def test_buffers_come_back_in_order(sizes: list, codec: str, chooser: random.Random) -> None:  # type: ignore[type-arg]
    kinds = (bytes, bytearray, lambda data: np.frombuffer(data, np.uint8).reshape(1, -1))
    noise = chooser.getrandbits(8 * max(sizes, default=0) + 8).to_bytes(max(sizes, default=0) + 1, "big")
    buffers = [chooser.choice(kinds)(chooser.choice((bytes(size), noise[:size]))) for size in sizes]
    coded, wire = payloads.encode(buffers, codec)
    back = payloads.decode([list(item) for item in coded], wire, sum(sizes))
    assert [bytes(one) for one in back] == [bytes(one) for one in buffers]


def test_over_a_slow_link_the_facts_of_an_answer_take_a_quarter_of_their_bytes() -> None:
    coded, wire = payloads.encode([ANSWER, b"1 kB or less"], "auto", 250e3)
    assert sum(memoryview(buffer).nbytes for buffer in wire) < len(ANSWER) // 4
    assert bytes(payloads.decode(coded, wire, 1 << 20)[0]) == ANSWER


def test_coded_facts_beyond_the_bound_are_refused() -> None:
    coded, wire = payloads.encode([bytes(60_000)], "auto")
    with pytest.raises((ProtocolError, ValueError)):
        payloads.decode(coded, wire, 1 << 10)
