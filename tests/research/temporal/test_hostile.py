"""Payloads of a stream from a broken or hostile peer: refused, never a crash."""

import random

import numpy as np
import pytest

from edge_offload.errors import ProtocolError
from edge_offload_research.temporal import ReceiveStream, ReferenceMissing, SendStream
from tests.link.codecs.codec_pictures import picture
from tests.link.codecs.test_hostile import JUNK, MAX_BYTES, mutated


@pytest.mark.process
def test_fuzz_of_streams():
    rng = random.Random(11)
    frame = picture(12, 16)
    sender = SendStream()
    receiver = ReceiveStream(max_bytes=MAX_BYTES)
    payloads = []
    for turn in range(4):
        encoded = sender.encode(np.roll(frame, turn), "temporal+zstd" if turn % 2 else "temporal+lz4")
        payloads.append((encoded.descriptor, [bytes(part) for part in encoded.buffers]))
        receiver.decode(*payloads[-1])
        sender.acknowledge(receiver.acknowledgement(encoded.descriptor))
    assert "ref" in payloads[-1][0]["stream"]
    for turn in range(4_000):
        descriptor, buffers = mutated(*payloads[turn % len(payloads)], rng)
        if rng.random() < 0.4 and isinstance(descriptor.get("stream"), dict):
            descriptor["stream"][rng.choice(["session", "seq", "ref", "hash", "ref_hash", "more"])] = rng.choice(JUNK)
        try:
            receiver.decode(descriptor, buffers)
        except (ProtocolError, ReferenceMissing):
            continue
    fresh = ReceiveStream()
    first = SendStream().encode(frame)
    np.testing.assert_array_equal(fresh.decode(first.descriptor, first.buffers), frame)
