"""Messages about promises of accuracy between robot and server.

A robot requests a promise (``promise``: :class:`PromiseRequest`) and receives its slots in notifications (``turns``:
:class:`SlotSchedule`). Each frame names its slot and carries the robot's estimates (``turn`` in an ``infer``:
:class:`PromiseReport`). The notification ``promise_ended`` ends a promise. Numbers from the wire are checked here.
Times are seconds. Those of slots count from the moment of sending, so that the two clocks need not agree.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Tuple

from edge_offload.errors import ProtocolError

SCHEDULE, ENDED = "turns", "promise_ended"
#: Smallest bound (a share of an accuracy of 0 to 1) and greatest slope (loss of accuracy per frame of staleness).
LEAST_BOUND, MOST_SLOPE = 1e-4, 1.0
#: Range of the seconds between two frames of a camera, and most seconds of one way over the link.
INTERVAL_RANGE_S, MOST_WAY_S = (1 / 250, 10.0), 10.0
#: Seconds of staleness in which two thirds of the flicker are lost (mean curves of kapao_vtest and SCONet, carried).
SETTLE_S = 0.08
#: Frame numbers are smaller than this, of either sign: a double holds them exactly.
MOST_FRAME = 1 << 53
#: Most slots in one notification.
MOST_SLOTS = 2048


class _Map:
    """A dataclass whose wire format is a map of its fields."""

    def to_wire(self) -> Dict[str, Any]:
        """Return the fields as a map of plain values."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class PromiseReport(_Map):
    """A robot's estimates, sent with the frame of a slot.

    Attributes:
        frame: the slot's frame number.
        slope, slope_error: loss of accuracy per frame of staleness, and its standard deviation.
        up: seconds from a frame's capture to its arrival at the server, a high quantile.
        down: seconds from the server's answer to the result's use.
        usual: as ``up``, the typical value.
        flicker: loss of accuracy of any stale result, however short the staleness.
        noise: standard deviation of a single result's loss, as far as it does not average out.
    """

    frame: int
    slope: float
    slope_error: float = 0.0
    up: float = 0.0
    down: float = 0.0
    usual: float = 0.0
    flicker: float = 0.0
    noise: float = 0.0

    @classmethod
    def parse(cls, raw: object) -> PromiseReport:
        """Decode; raises ProtocolError if malformed, or if a number is out of bounds."""
        facts = _as_map(raw, "a turn")
        return cls(read_integer(facts, "frame"), *_read_estimates(facts))


@dataclass(frozen=True)
class PromiseRequest(_Map):
    """A robot's request for a promise.

    Attributes:
        handle: of the model opened for the shape of the robot's frames.
        bound: most accuracy, :data:`LEAST_BOUND` to 1, that sharing the server may cost against an unshared one.
        frame_interval: seconds between two frames of the camera.
        batched: results may differ in the last digits from those of frames computed one by one.
        frame: number of the newest frame.
        age: seconds since the capture of that frame.
        slope, slope_error, up, down, usual, flicker, noise: as in :class:`PromiseReport`.
    """

    handle: int
    bound: float
    frame_interval: float
    batched: bool
    frame: int
    age: float
    slope: float
    slope_error: float = 0.0
    up: float = 0.0
    down: float = 0.0
    usual: float = 0.0
    flicker: float = 0.0
    noise: float = 0.0

    @classmethod
    def parse(cls, raw: object) -> PromiseRequest:
        """Decode; raises ProtocolError if malformed, or if a number is out of bounds."""
        facts = _as_map(raw, "a promise")
        bound = read_number(facts, "bound", LEAST_BOUND, 1.0)
        batched = facts.get("batched", False)
        if not isinstance(batched, bool):
            raise ProtocolError("batched is true or false")
        return cls(
            read_integer(facts, "handle"),
            bound,
            read_number(facts, "frame_interval", *INTERVAL_RANGE_S),
            batched,
            read_integer(facts, "frame"),
            read_number(facts, "age", 0.0, MOST_WAY_S),
            *_read_estimates(facts),
        )


@dataclass(frozen=True)
class SlotSchedule:
    """A robot's slots in the newest schedule; they replace those of earlier notifications.

    Attributes:
        number: of the schedule; a later one has a greater number.
        slots: (frame, seconds from the sending until its batch begins), both ascending.
    """

    number: int
    slots: Tuple[Tuple[int, float], ...]

    def to_wire(self) -> Dict[str, Any]:
        """Return the wire format, in which slots are called turns."""
        return {"number": self.number, "turns": [[frame, begin] for frame, begin in self.slots[:MOST_SLOTS]]}

    @classmethod
    def parse(cls, raw: object) -> SlotSchedule:
        """Decode.

        Raises:
            ProtocolError: malformed, a number is out of bounds, or frames do not ascend.
        """
        facts = _as_map(raw, "turns")
        received = facts.get("turns")
        if not isinstance(received, list) or len(received) > MOST_SLOTS:
            raise ProtocolError(f"turns are a list of at most {MOST_SLOTS}")
        slots: List[Tuple[int, float]] = []
        for item in received:
            if not isinstance(item, list) or len(item) != 2:
                raise ProtocolError("a turn is a frame and a time")
            slot = {"frame": item[0], "begin": item[1]}
            frame, begin = read_integer(slot, "frame"), read_number(slot, "begin", -60.0, 60.0)
            if slots and (frame <= slots[-1][0] or begin < slots[-1][1]):
                raise ProtocolError("the frames of turns rise, and so do their times")
            slots.append((frame, begin))
        return cls(read_integer(facts, "number"), tuple(slots))


def read_text(raw: object, key: str = "reason") -> str:
    """Return a notification's text for people, at most 500 characters; empty where there is none."""
    text = raw.get(key) if isinstance(raw, Mapping) else None
    return text[:500] if isinstance(text, str) else ""


def read_number(facts: Mapping[str, Any], key: str, least: float, most: float) -> float:
    """Return a finite number of a map from the wire.

    Raises:
        ProtocolError: missing, no number, or out of bounds.
    """
    value = facts.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ProtocolError(f"{key} is {_format_value(value)}", remedy=f"give a number from {least:g} to {most:g}")
    return float(value)


def read_integer(facts: Mapping[str, Any], key: str) -> int:
    """Return an integer of a map from the wire.

    Raises:
        ProtocolError: missing, no integer, or out of bounds.
    """
    value = facts.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -MOST_FRAME < value < MOST_FRAME:
        raise ProtocolError(f"{key} is {_format_value(value)}", remedy="give a whole number")
    return value


def _read_estimates(facts: Mapping[str, Any]) -> Tuple[float, ...]:
    """Read the fields that reports and requests share, in their order; those but ``slope`` are 0 if missing."""
    slope = read_number(facts, "slope", 0.0, MOST_SLOPE)
    error = read_number({"slope_error": 0.0, **facts}, "slope_error", 0.0, MOST_SLOPE)
    up, down, usual = (read_number({key: 0.0, **facts}, key, 0.0, MOST_WAY_S) for key in ("up", "down", "usual"))
    flicker, noise = (read_number({key: 0.0, **facts}, key, 0.0, 1.0) for key in ("flicker", "noise"))
    return slope, error, up, down, usual, flicker, noise


def _as_map(raw: object, what: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ProtocolError(f"{what} is a map")
    return raw


def _format_value(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]
