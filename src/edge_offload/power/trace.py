"""Samples of one power source as a curve of energy over time, so that any interval is a difference on the curve."""

from __future__ import annotations

import abc
import bisect
import math
from typing import List, Optional

from edge_offload.power.source import EnergyCounter, PowerSource


class Trace(abc.ABC):
    """Energy of one source over time. Energies of adjacent intervals add up, because both are cut from one curve.

    Args:
        source: what is read.
        history_s: samples older than this may be forgotten.
    """

    def __init__(self, source: PowerSource, history_s: float) -> None:
        self.source = source
        self._history_s = history_s
        self._times: List[float] = []
        self._joules: List[float] = []

    @abc.abstractmethod
    def sample(self, now: float) -> None:
        """Read the source; ``now`` is the time of the sample, one that is not newer than the last is dropped.

        Raises:
            OSError: it cannot be read, or what it says is no power.
        """

    @property
    @abc.abstractmethod
    def latest_watts(self) -> Optional[float]:
        """Power at the newest sample; None while it is not known."""

    @abc.abstractmethod
    def _rise(self, i: int, into: float, step: float) -> float:
        """Joules from sample ``i`` to ``into`` seconds later, of the ``step`` seconds to the next sample."""

    @property
    def end(self) -> float:
        """Time of the newest sample."""
        return self._times[-1] if self._times else -math.inf

    def covers(self, t0: float, t1: float, max_gap_s: float) -> bool:
        """Whether [t0, t1] lies between samples that are nowhere further apart than ``max_gap_s``."""
        if not self._times or t0 < self._times[0] or t1 > self._times[-1]:
            return False
        first = bisect.bisect_right(self._times, t0) - 1
        last = bisect.bisect_left(self._times, t1)
        return all(b - a <= max_gap_s for a, b in zip(self._times[first:last], self._times[first + 1 : last + 1]))

    def energy(self, t0: float, t1: float) -> float:
        """Joules over [t0, t1], which must be covered."""
        return max(0.0, self._curve(t1) - self._curve(t0))

    def _curve(self, t: float) -> float:
        i = bisect.bisect_right(self._times, t) - 1
        if i + 1 == len(self._times):
            return self._joules[i]
        return self._joules[i] + self._rise(i, t - self._times[i], self._times[i + 1] - self._times[i])

    def _forgettable(self) -> int:
        """How many of the oldest samples to drop: half of them at a time, which keeps the cost per sample constant."""
        if self._times[0] >= self._times[-1] - 2 * self._history_s:
            return 0
        return bisect.bisect_left(self._times, self._times[-1] - self._history_s)


class WattTrace(Trace):
    """A wattmeter's samples joined by straight lines (trapezoid rule): energy is quadratic between samples."""

    def __init__(self, source: PowerSource, history_s: float) -> None:
        super().__init__(source, history_s)
        self._watts: List[float] = []

    def sample(self, now: float) -> None:
        """Note the power of now."""
        watts = self.source.watts()
        if not (math.isfinite(watts) and watts >= 0):
            raise OSError(f"it reads {watts} W")
        if now <= self.end:
            return
        area = 0.5 * (watts + self._watts[-1]) * (now - self._times[-1]) if self._times else 0.0
        self._joules.append(self._joules[-1] + area if self._joules else 0.0)
        self._times.append(now)
        self._watts.append(watts)
        old = self._forgettable()
        del self._times[:old], self._joules[:old], self._watts[:old]

    @property
    def latest_watts(self) -> Optional[float]:
        """The latest sample, in watts; None before the first."""
        return self._watts[-1] if self._watts else None

    def _rise(self, i: int, into: float, step: float) -> float:
        return self._watts[i] * into + 0.5 * (self._watts[i + 1] - self._watts[i]) * into * into / step


class CounterTrace(Trace):
    """An energy counter's readings: exact at the samples, linear between them."""

    def __init__(self, source: EnergyCounter, history_s: float) -> None:
        super().__init__(source, history_s)
        self._counter = source

    def sample(self, now: float) -> None:
        """Note the power of now."""
        joules = self._counter.joules()
        if now <= self.end:
            return
        self._times.append(now)
        self._joules.append(joules)
        old = self._forgettable()
        del self._times[:old], self._joules[:old]

    @property
    def latest_watts(self) -> Optional[float]:
        """The latest sample, in watts; None before the first."""
        if len(self._times) < 2:
            return None
        return (self._joules[-1] - self._joules[-2]) / (self._times[-1] - self._times[-2])

    def _rise(self, i: int, into: float, step: float) -> float:
        return (self._joules[i + 1] - self._joules[i]) * into / step


def trace_of(source: PowerSource, history_s: float) -> Trace:
    """The kind of trace that fits ``source``."""
    return CounterTrace(source, history_s) if isinstance(source, EnergyCounter) else WattTrace(source, history_s)
