"""State model: power from the robot's states (computing, communicating, standby), with exact times of changes."""

from __future__ import annotations

import bisect
import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from edge_offload.errors import BadInput
from edge_offload.power.source import MODEL, PowerSource
from edge_offload.timing import InferenceReport

COMPUTE = "compute"
COMMUNICATE = "communicate"
STATES: Tuple[str, ...] = (COMPUTE, COMMUNICATE)
"""Active states. Both may hold at once (a transfer overlapped with compute); while none holds, it is standby."""


@dataclass(frozen=True)
class StatePowers:
    """Watts of the whole robot computer in each state. Defaults: a Jetson Xavier NX (Intra-DP and LOPInfer testbeds).

    Raises:
        BadInput: a state draws less than standby, or a number is negative.
    """

    inference: float = 13.35
    communication: float = 4.25
    standby: float = 4.04

    def __post_init__(self) -> None:
        for name in ("inference", "communication", "standby"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"power model: {name} is {value} W", remedy="give watts, not negative")
            if value < self.standby:
                raise BadInput(f"power model: {name} ({value} W) is below standby ({self.standby} W)")


#: Names of the watts of :class:`StatePowers` in parameters and YAML files.
WATTS = ("inference_watts", "communication_watts", "standby_watts")


def powers_of(values: Mapping[str, Any]) -> Optional[StatePowers]:
    """Read the table of watts from parameters; None where all are 0 or missing, because the machine is then unknown.

    Raises:
        BadInput: only some are given, or they are inconsistent.
    """
    try:
        watts = [float(values.get(name) or 0.0) for name in WATTS]
    except (TypeError, ValueError) as error:
        raise BadInput(f"power model: {error}", remedy=f"give watts: {', '.join(WATTS)}") from error
    if not any(watts):
        return None
    if not all(watts):
        raise BadInput("power model: some watts are told and others not", remedy=f"give all of {', '.join(WATTS)}")
    return StatePowers(*watts)


@dataclass
class _StateIntervals:
    """Intervals of one state (seconds), disjoint and sorted."""

    starts: List[float] = field(default_factory=list)
    ends: List[float] = field(default_factory=list)

    def add_interval(self, start: float, end: float) -> None:
        """Add [start, end], merged with the intervals that it overlaps."""
        first = bisect.bisect_left(self.ends, start)
        last = bisect.bisect_right(self.starts, end)
        if first < last:
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]

    def overlap(self, t0: float, t1: float) -> float:
        """Seconds of the intervals within [t0, t1]."""
        first = bisect.bisect_left(self.ends, t0)
        last = bisect.bisect_right(self.starts, t1)
        return sum(max(0.0, min(self.ends[i], t1) - max(self.starts[i], t0)) for i in range(first, last))

    def drop_before(self, before: float) -> None:
        expired = bisect.bisect_left(self.ends, before)
        del self.starts[:expired], self.ends[:expired]


class StateTimeline:
    """Thread-safe record of when the robot computed and communicated.

    Intervals are added when they have ended, overlapping or out of order. Those that ended more than ``history_s`` ago
    are removed.

    Args:
        clock: monotonic seconds.
        history_s: how far back :meth:`busy_seconds` may reach, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, history_s: float = 600.0) -> None:
        self._clock = clock
        self._history_s = history_s
        self._lock = threading.Lock()
        self._intervals: Dict[str, _StateIntervals] = {state: _StateIntervals() for state in STATES}
        self._horizon = -math.inf

    def add_interval(self, state: str, start_s: float, end_s: float) -> None:
        """Record that ``state`` held over [start_s, end_s] on the clock.

        Raises:
            BadInput: the interval is reversed or not finite.
        """
        busy = self._intervals_of(state)
        _check_interval(start_s, end_s)
        with self._lock:
            busy.add_interval(start_s, end_s)
            self._prune_intervals()

    def add_report(self, report: InferenceReport, start_s: float) -> None:
        """Record the robot's states during one inference that started at ``start_s`` on the clock.

        The stages are laid end to end in the order in which they happen, and cut at the end of the inference: the
        report says how long each took, not when it started. Energy over the whole inference needs no more.
        """
        stage_end_s, end_s = start_s, start_s + report.total_s
        for stage, state in (
            ("queue", ""), ("encode", COMPUTE), ("compute_robot", COMPUTE), ("uplink", COMMUNICATE),
            ("compute_server", ""), ("downlink", COMMUNICATE), ("decode", COMPUTE),
        ):  # fmt: skip
            stage_start_s, stage_end_s = stage_end_s, min(end_s, stage_end_s + report.stages_s[stage])
            if state and stage_end_s > stage_start_s:
                self.add_interval(state, stage_start_s, stage_end_s)

    def busy_seconds(self, t0: float, t1: float) -> Dict[str, float]:
        """Return the seconds that each state held within [t0, t1].

        Raises:
            BadInput: the interval is reversed, or starts before the history.
        """
        _check_interval(t0, t1)
        with self._lock:
            if t0 < self._horizon:
                raise BadInput(
                    f"states of {self._horizon - t0:.1f} s before the oldest remembered were asked for",
                    remedy="make the timeline with a longer history_s",
                )
            return {state: busy.overlap(t0, t1) for state, busy in self._intervals.items()}

    def _intervals_of(self, state: str) -> _StateIntervals:
        try:
            return self._intervals[state]
        except KeyError:
            raise BadInput(f"unknown state {state!r}", remedy=f"states: {', '.join(STATES)}") from None

    def _prune_intervals(self) -> None:
        horizon = self._clock() - self._history_s
        if horizon > self._horizon and any(busy.ends and busy.ends[0] < horizon for busy in self._intervals.values()):
            self._horizon = horizon
            for busy in self._intervals.values():
                busy.drop_before(horizon)


class StateModel(PowerSource):
    """Power and energy modelled from a :class:`StateTimeline`."""

    kind = MODEL

    def __init__(self, timeline: StateTimeline, powers: Optional[StatePowers] = None) -> None:
        self.timeline = timeline
        self.powers = powers = powers or StatePowers()
        self.name = f"state model ({powers.inference:g}/{powers.communication:g}/{powers.standby:g} W)"

    def watts(self) -> float:
        """Power between two frames, in watts: states are recorded when they have ended."""
        return self.powers.standby

    def energy(self, t0: float, t1: float) -> float:
        """Return the joules over [t0, t1] on the timeline's clock.

        Raises:
            BadInput: the interval is reversed, or starts before the timeline's history.
        """
        seconds = self.timeline.busy_seconds(t0, t1)
        powers = self.powers
        return (
            powers.standby * (t1 - t0)
            + (powers.inference - powers.standby) * seconds[COMPUTE]
            + (powers.communication - powers.standby) * seconds[COMMUNICATE]
        )


def _check_interval(t0: float, t1: float) -> None:
    if not (math.isfinite(t0) and math.isfinite(t1)):
        raise BadInput(f"interval [{t0}, {t1}] is not finite")
    if t1 < t0:
        raise BadInput(f"interval ends {t0 - t1:.6f} s before it starts")
