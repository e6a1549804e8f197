"""The ring of recent frames: bounded, in order, and new where time begins anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.perception.carry.ring import LIMIT_BYTES, FrameRing


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 50)), max_size=120), st.integers(1, 99), st.integers(1, 9))
def test_no_frame_too_many_and_none_out_of_order(frames, limit_bytes, limit_frames):
    ring = FrameRing(limit_bytes, limit_frames)
    newest = None
    for number, (stamp, size) in enumerate(frames):
        follows = ring.put(stamp, number, size)
        assert follows == (newest is None or stamp >= newest)
        newest = stamp
        assert ring.newest == stamp
        assert ring.get(stamp) == number
        stamps = ring.stamps_between(-1, 60)
        assert stamps == sorted(set(stamps))
        assert len(stamps) == len(ring) <= limit_frames
        assert ring.size <= limit_bytes or len(ring) == 1
        assert ring.size == sum(frames[ring.get(stamp)][1] for stamp in stamps)


def test_ten_thousand_frames_take_no_more_than_the_limit():
    ring = FrameRing()
    peak = 0
    for number in range(10_000):
        ring.put(number, None, 442_368)
        peak = max(peak, ring.size)
    assert peak <= LIMIT_BYTES == 64 << 20


def test_missing_frames_are_reported():
    ring = FrameRing()
    with pytest.raises(BadInput, match="no frame"):
        _ = ring.newest
    with pytest.raises(BadInput, match="positive"):
        FrameRing(0)
    ring.put(3, "three", 1)
    assert ring.get(2) is None
    assert ring.stamps_between(3, 9) == []
    assert ring.stamps_between(2, 3) == [3]
