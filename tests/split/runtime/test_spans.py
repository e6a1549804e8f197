"""When both sides of a split computed: spans of each, told over the wire, on one clock."""

from __future__ import annotations

import math

import pytest

from edge_offload.split.runtime import spans
from edge_offload.split.runtime.spans import MAX_SPANS, ComputeSpans, overlap_seconds, parse_spans


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(spans.time, "monotonic", lambda: Clock.now)
    return Clock


def test_blocks_without_a_pause_are_one_span_and_their_number_is_bounded(clock):
    mine = ComputeSpans()
    for start, ended in ((1.0, 1.5), (1.50005, 2.0), (3.0, 4.0)):
        clock.now = ended
        mine.add_span(start)
    assert mine.pairs == [(1.0, 2.0), (3.0, 4.0)]
    for number in range(2 * MAX_SPANS):
        clock.now = 10.5 + number
        mine.add_span(10.0 + number)
    assert len(mine.pairs) == MAX_SPANS


def test_spans_of_the_other_side_are_on_the_local_clock(clock):
    theirs = ComputeSpans()
    for start, ended in ((101.0, 102.0), (103.0, 105.0)):
        clock.now = ended
        theirs.add_span(start)
    spans = parse_spans(theirs.to_numbers(), offset_s=100.0)
    assert spans == ((1.0, 2.0), (3.0, 5.0))
    assert overlap_seconds([(0.5, 1.5), (4.0, 9.0)], spans) == pytest.approx(1.5)
    assert overlap_seconds([(2.0, 3.0)], spans) == 0.0


@pytest.mark.parametrize(
    "numbers",
    [None, "1", [1.0], [2.0, 1.0], [1.0, math.nan], [1.0, math.inf], [1, 2], [True, 2.0], [0.0] * (2 * MAX_SPANS + 2)],
)
def test_what_cannot_be_is_nothing(numbers):
    assert parse_spans(numbers, 0.0) == ()


def test_without_a_clock_reading_spans_are_omitted():
    assert parse_spans([1.0, 2.0], math.nan) == ()
