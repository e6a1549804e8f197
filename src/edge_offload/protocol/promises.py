"""What robot and server say to each other of promises of accuracy.

A robot asks (``promise``: :class:`Ask`), is told its turns by notifications (``turns``: :class:`Turns`) and says with
each frame which turn it is and how things are there (``turn`` in an ``infer``: :class:`Report`). A promise that ends
is told with the notification ``promise_ended``. Numbers from the wire are bounded here; times are seconds, and those
of turns are from now on, so that no clock of the other end is believed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Tuple

from edge_offload.errors import ProtocolError

TURNS, ENDED = "turns", "promise_ended"
#: Bounds and drops are shares of an accuracy of 0 to 1; a slope is what is lost for each frame that a result is older.
LEAST_BOUND, MOST_SLOPE = 1e-4, 1.0
#: Seconds between two frames of a camera, and that a frame or a result may be on its way.
LEAST_INTERVAL_S, MOST_INTERVAL_S, MOST_WAY_S = 1 / 250, 10.0, 10.0
#: Seconds of staleness in which two thirds of the flicker are lost (mean curves of kapao_vtest and SCONet, carried).
SETTLE_S = 0.08
#: Frame numbers are below this, up and down.
MOST_FRAME = 1 << 53
#: Turns in one notification; seconds ahead that one may be.
MOST_TURNS, MOST_AHEAD_S = 2048, 60.0
MOST_WORDS = 500


class _Map:
    """A dataclass that travels as a map of its fields."""

    def to_wire(self) -> Dict[str, Any]:
        """Plain values."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class Report(_Map):
    """What a robot says with a frame that it was told to send.

    Attributes:
        frame: the number of its turn.
        slope, slope_error: accuracy that it loses for each frame that a result is older, and one standard deviation.
        up: from the capture of a frame to its arrival at the server, as late as nearly all come (seconds).
        down: from the server's answer to the result's use (seconds).
        usual: as ``up``, of a usual frame.
        flicker: accuracy that any older result loses, however little older.
        noise: standard deviation of what a single result loses, as far as it does not average out.
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
    def parse(cls, raw: object) -> Report:
        """From the wire.

        Raises:
            ProtocolError: it is something else, or a number is out of bounds.
        """
        facts = _facts(raw, "a turn")
        return cls(whole(facts, "frame"), *_estimates(facts))


@dataclass(frozen=True)
class Ask(_Map):
    """The promise that a robot asks for.

    Attributes:
        handle: of the model that it has open for the shape of its frames.
        bound: accuracy, :data:`LEAST_BOUND` to 1, that sharing the server may cost it over having the server alone.
        frame_interval: seconds between two frames of its camera.
        batched: whether results may differ in the last digits from those of frames computed alone.
        frame: number of its newest frame.
        age: seconds since that was captured.
        slope, slope_error, up, down, usual, flicker, noise: as in :class:`Report`.
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
    def parse(cls, raw: object) -> Ask:
        """From the wire.

        Raises:
            ProtocolError: it is something else, or a number is out of bounds.
        """
        facts = _facts(raw, "a promise")
        bound = number(facts, "bound", LEAST_BOUND, 1.0)
        batched = facts.get("batched", False)
        if not isinstance(batched, bool):
            raise ProtocolError("batched is true or false")
        return cls(
            whole(facts, "handle"),
            bound,
            number(facts, "frame_interval", LEAST_INTERVAL_S, MOST_INTERVAL_S),
            batched,
            whole(facts, "frame"),
            number(facts, "age", 0.0, MOST_WAY_S),
            *_estimates(facts),
        )


@dataclass(frozen=True)
class Turns:
    """A robot's turns as planned now: they replace those told before.

    Attributes:
        number: of the plan; a later one has a greater number.
        turns: (frame, seconds from when this was sent until its batch begins), in order of both.
    """

    number: int
    turns: Tuple[Tuple[int, float], ...]

    def to_wire(self) -> Dict[str, Any]:
        """Plain values."""
        return {"number": self.number, "turns": [[frame, begin] for frame, begin in self.turns[:MOST_TURNS]]}

    @classmethod
    def parse(cls, raw: object) -> Turns:
        """From the wire.

        Raises:
            ProtocolError: it is something else, a number is out of bounds, or frames do not rise.
        """
        facts = _facts(raw, "turns")
        found = facts.get("turns")
        if not isinstance(found, list) or len(found) > MOST_TURNS:
            raise ProtocolError(f"turns are a list of at most {MOST_TURNS}")
        turns: List[Tuple[int, float]] = []
        for one in found:
            if not isinstance(one, list) or len(one) != 2:
                raise ProtocolError("a turn is a frame and a time")
            turn = {"frame": one[0], "begin": one[1]}
            frame, begin = whole(turn, "frame"), number(turn, "begin", -MOST_AHEAD_S, MOST_AHEAD_S)
            if turns and (frame <= turns[-1][0] or begin < turns[-1][1]):
                raise ProtocolError("the frames of turns rise, and so do their times")
            turns.append((frame, begin))
        return cls(whole(facts, "number"), tuple(turns))


def words(raw: object, key: str = "reason") -> str:
    """A text of a notification, for people; never long."""
    text = raw.get(key) if isinstance(raw, Mapping) else None
    return text[:MOST_WORDS] if isinstance(text, str) else ""


def number(facts: Mapping[str, Any], key: str, least: float, most: float) -> float:
    """A finite number of a map from the wire.

    Raises:
        ProtocolError: it is none, or out of bounds.
    """
    value = facts.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ProtocolError(f"{key} is {_shown(value)}", remedy=f"give a number from {least:g} to {most:g}")
    return float(value)


def whole(facts: Mapping[str, Any], key: str) -> int:
    """A whole number of a map from the wire.

    Raises:
        ProtocolError: it is none, or out of bounds.
    """
    value = facts.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not -MOST_FRAME < value < MOST_FRAME:
        raise ProtocolError(f"{key} is {_shown(value)}", remedy="give a whole number")
    return value


def _estimates(facts: Mapping[str, Any]) -> Tuple[float, ...]:
    slope = number(facts, "slope", 0.0, MOST_SLOPE)
    error = number({"slope_error": 0.0, **facts}, "slope_error", 0.0, MOST_SLOPE)
    up, down, usual = (number({key: 0.0, **facts}, key, 0.0, MOST_WAY_S) for key in ("up", "down", "usual"))
    flicker, noise = (number({key: 0.0, **facts}, key, 0.0, 1.0) for key in ("flicker", "noise"))
    return slope, error, up, down, usual, flicker, noise


def _facts(raw: object, what: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ProtocolError(f"{what} is a map")
    return raw


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]
