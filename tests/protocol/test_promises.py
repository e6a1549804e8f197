"""Messages of promises: what comes back as it was sent, and what is refused whatever is in it."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any, Callable, Dict

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import ProtocolError
from edge_offload.protocol.promises import MOST_SLOTS, PromiseReport, PromiseRequest, SlotSchedule, read_text

REQUEST = PromiseRequest(3, 0.05, 1 / 30, True, 100, 0.01, 0.004, 0.002, 0.02, 0.01)
PARSERS: Dict[Callable[[Any], Any], Any] = {
    PromiseRequest.parse: REQUEST.to_wire(),
    PromiseReport.parse: PromiseReport(7, 0.01).to_wire(),
    SlotSchedule.parse: SlotSchedule(4, ((7, 0.1), (9, 0.2))).to_wire(),
}
NUMBERS = st.one_of(st.integers(), st.floats(), st.none(), st.booleans(), st.text(max_size=5), st.lists(st.integers()))


def travelled(body: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(body))


@given(st.integers(-(2**40), 2**40), st.floats(0, 1), st.floats(0, 10), st.floats(0, 1))
def test_reports_travel(frame: int, slope: float, up: float, error: float) -> None:
    report = PromiseReport(frame, slope, error, up, 0.5, 0.01, error, slope)
    assert PromiseReport.parse(travelled(report.to_wire())) == report


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(0, 0.5)), max_size=60), st.integers(0, 2**40))
def test_turns_travel(steps: Any, number: int) -> None:
    frame, begin, turns = 0, 0.0, []
    for more, later in steps:
        frame, begin = frame + more, begin + later
        turns.append((frame, begin))
    schedule = SlotSchedule(number, tuple(turns))
    assert SlotSchedule.parse(travelled(schedule.to_wire())) == schedule


def test_a_request_travels() -> None:
    assert PromiseRequest.parse(travelled(REQUEST.to_wire())) == REQUEST


@pytest.mark.parametrize("parse", PARSERS)
@given(data=st.data())
def test_one_number_that_cannot_be_is_refused_or_within_bounds(parse: Any, data: Any) -> None:
    body = dict(PARSERS[parse])
    body[data.draw(st.sampled_from(sorted(body)))] = data.draw(NUMBERS)
    with contextlib.suppress(ProtocolError):
        numbers = [value for value in vars(parse(body)).values() if isinstance(value, (int, float))]
        assert all(math.isfinite(value) and abs(value) < 2**53 for value in numbers)


@pytest.mark.parametrize("parse", PARSERS)
def test_rubbish_is_a_protocol_error(parse: Any) -> None:
    draw, refused = random.Random(1), 0
    for _ in range(2000):
        raw = bytearray(msgpack.packb(PARSERS[parse]))
        for _ in range(draw.randrange(1, 6)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        try:
            body = msgpack.unpackb(bytes(raw), strict_map_key=False)
        except Exception:
            continue
        try:
            parsed = parse(body)
        except ProtocolError:
            refused += 1
        else:
            assert parse(travelled(parsed.to_wire())) == parsed, "what is taken is a message as any other"
    assert refused > 100


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bound", 0), ("bound", 5e-324), ("bound", -0.1), ("bound", math.nan), ("bound", 1.5), ("bound", "0.05"),
        ("bound", True),
        ("frame_interval", 0.0), ("frame_interval", 1e9), ("slope", -1.0), ("slope", math.nan), ("slope", 1e30),
        ("slope_error", math.inf), ("up", -1e-9), ("down", 11.0), ("age", -1.0), ("frame", 2**60), ("frame", 1.5),
        ("handle", None), ("batched", 1),
    ],
)  # fmt: skip
def test_a_request_out_of_bounds_names_what(key: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=key):
        PromiseRequest.parse({**REQUEST.to_wire(), key: value})


@pytest.mark.parametrize(
    "turns",
    [None, {}, [[1]], [[1, 0.1], [1, 0.2]], [[2, 0.1], [1, 0.2]], [[1, 0.2], [2, 0.1]], [[1, math.nan]], [[1, 1e9]],
     [[number, 0.0] for number in range(MOST_SLOTS + 1)]],
)  # fmt: skip
def test_turns_that_cannot_be(turns: Any) -> None:
    with pytest.raises(ProtocolError):
        SlotSchedule.parse({"number": 1, "turns": turns})


def test_reasons_are_short_text() -> None:
    assert read_text({"reason": "x" * 10**6}) == "x" * 500
    assert read_text({"reason": 7}) == read_text(None) == ""
