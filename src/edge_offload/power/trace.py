"""Samples of one power source as a curve of energy over time; an interval's energy is a difference on the curve."""

from __future__ import annotations

import abc
import bisect
import math
from typing import List, Optional

from edge_offload.power.source import EnergyCounter, PowerSource


class EnergyTrace(abc.ABC):
    """Energy of one source over time. Energies of adjacent intervals add up exactly.

    Args:
        source: the source.
        history_s: samples older than this may be removed.
    """

    def __init__(self, source: PowerSource, history_s: float) -> None:
        self.source = source
        self._history_s = history_s
        self._times: List[float] = []
        self._joules: List[float] = []

    @abc.abstractmethod
    def sample(self, now: float) -> None:
        """Read the source; a sample whose time ``now`` is not newer than the last is dropped.

        Raises:
            OSError: it is not readable, or its value is no power.
        """

    @property
    @abc.abstractmethod
    def latest_watts(self) -> Optional[float]:
        """Power at the newest sample, watts; None: unknown."""

    @abc.abstractmethod
    def _joules_since(self, i: int, into: float, step: float) -> float:
        """Joules of the first ``into`` seconds after sample ``i``; the next sample is ``step`` seconds after it."""

    @property
    def end(self) -> float:
        """Time of the newest sample."""
        return self._times[-1] if self._times else -math.inf

    def covers_interval(self, t0: float, t1: float, max_gap_s: float) -> bool:
        """Return whether samples cover [t0, t1] without a gap above ``max_gap_s``."""
        if not self._times or t0 < self._times[0] or t1 > self._times[-1]:
            return False
        first = bisect.bisect_right(self._times, t0) - 1
        last = bisect.bisect_left(self._times, t1)
        return all(b - a <= max_gap_s for a, b in zip(self._times[first:last], self._times[first + 1 : last + 1]))

    def energy(self, t0: float, t1: float) -> float:
        """Joules over [t0, t1], which samples must cover."""
        return max(0.0, self._joules_at(t1) - self._joules_at(t0))

    def _joules_at(self, t: float) -> float:
        i = bisect.bisect_right(self._times, t) - 1
        if i + 1 == len(self._times):
            return self._joules[i]
        return self._joules[i] + self._joules_since(i, t - self._times[i], self._times[i + 1] - self._times[i])

    def _count_expired(self) -> int:
        """Count the samples to remove: about half at a time, for a constant cost per sample."""
        if self._times[0] >= self._times[-1] - 2 * self._history_s:
            return 0
        return bisect.bisect_left(self._times, self._times[-1] - self._history_s)


class WattTrace(EnergyTrace):
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
        expired = self._count_expired()
        del self._times[:expired], self._joules[:expired], self._watts[:expired]

    @property
    def latest_watts(self) -> Optional[float]:
        """The latest sample, in watts; None before the first."""
        return self._watts[-1] if self._watts else None

    def _joules_since(self, i: int, into: float, step: float) -> float:
        return self._watts[i] * into + 0.5 * (self._watts[i + 1] - self._watts[i]) * into * into / step


class CounterTrace(EnergyTrace):
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
        expired = self._count_expired()
        del self._times[:expired], self._joules[:expired]

    @property
    def latest_watts(self) -> Optional[float]:
        """The latest sample, in watts; None before the first."""
        if len(self._times) < 2:
            return None
        return (self._joules[-1] - self._joules[-2]) / (self._times[-1] - self._times[-2])

    def _joules_since(self, i: int, into: float, step: float) -> float:
        return (self._joules[i + 1] - self._joules[i]) * into / step


def make_trace(source: PowerSource, history_s: float) -> EnergyTrace:
    """Make the kind of trace that fits ``source``."""
    return CounterTrace(source, history_s) if isinstance(source, EnergyCounter) else WattTrace(source, history_s)
