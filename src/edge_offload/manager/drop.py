"""What a task's results lose of their accuracy with every second that they are carried along, from frame to frame.

When the network's result for a frame comes, what had been carried to that frame from an older result is compared with
it (dissertation, sections 2.5.4 and 3.4.3). There one comparison gives the rate: drop over staleness. But networks
flicker: a result that is carried over a single frame differs from the network's own by a tenth already, and no schedule
changes that. So the curve is a line that does not go through zero, ``intercept + slope * stale``. The intercept belongs
to the network and wanders slowly, the slope to what is seen and changes within seconds; where nothing is measured both
go back to the task's mean. A Kalman filter of constant size. Pure: time comes in as an argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.manager.tuning import ENOUGH


@dataclass(frozen=True)
class Habits:
    """A task's parameters before anything was measured, and how fast they change.

    Attributes:
        intercept, intercept_error: drop at no staleness, and one standard deviation.
        slope, slope_error: drop per second of staleness, likewise.
        local, local_error: drop of the local algorithm, likewise.
        intercept_s, slope_s, local_s: seconds after which a measurement of each says about a third of what it said.
        noise: standard deviation of a single comparison.
        settle_s: seconds of staleness in which two thirds of the intercept are lost; 0: at once.
        mean_gain: least share of a new measurement in the mean that both go back to; 0: that stays as believed.
        alike: so many comparisons in a row say the same thing, since what is seen stays.
        level_error: what any carried result loses beyond the line, however little it is carried, is 0, give or take
            this; no schedule changes it, so that it is kept out of the line. 0: there is no such thing.
        lasting: share of the noise that does not average out over a session.
    """

    intercept: float = 0.1
    intercept_error: float = 0.1
    slope: float = 0.1
    slope_error: float = 0.2
    local: float = 0.5
    local_error: float = 0.3
    intercept_s: float = 120.0
    slope_s: float = 6.0
    local_s: float = 20.0
    noise: float = 0.1
    settle_s: float = 0.0
    mean_gain: float = 0.005
    alike: float = 1.0
    level_error: float = 0.0
    lasting: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            above = name not in ("settle_s", "level_error") and name.endswith(("_error", "_s", "noise", "alike"))
            if not math.isfinite(value) or value < 0 or (value == 0 and above):
                raise BadInput(f"{name} of a task's habits is {value}", remedy="give a finite number above 0")


@dataclass(frozen=True)
class DropCurve:
    """The accuracy that results are expected to lose now.

    Attributes:
        intercept: drop of a result that is carried at all.
        slope, slope_error: drop per second of staleness, and one standard deviation.
        local, local_error: drop of the local algorithm; None, inf: the task has none, or it was never compared.
        age_s: since the last comparison of a carried result; inf before the first one.
        noise: standard deviation of a single comparison.
        lasting: what of that does not average out over a session.
    """

    intercept: float
    slope: float
    slope_error: float
    local: Optional[float] = None
    local_error: float = math.inf
    age_s: float = math.inf
    noise: float = 0.0
    lasting: float = 0.0

    def carried(self, stale_s: float) -> float:
        """Return the drop of a result that is carried along for ``stale_s`` seconds: 0 to 1."""
        return min(1.0, self.intercept + self.slope * max(0.0, stale_s))


@dataclass
class _Level:
    """A number that goes back to its mean: the local algorithm's drop."""

    value: float
    variance: float
    mean: float
    spread: float
    at_s: float = math.nan

    def at(self, now: float, lasting_s: float) -> None:
        """Let time pass."""
        decay = 1.0 if math.isnan(self.at_s) else math.exp(-max(0.0, now - self.at_s) / lasting_s)
        self.value = self.mean + decay * (self.value - self.mean)
        self.variance = decay**2 * self.variance + (1 - decay**2) * self.spread
        self.at_s = now if math.isnan(self.at_s) else max(self.at_s, now)


class DropEstimator:
    """Estimates one task's drops. One thread at a time.

    Args:
        habits: what is believed at first.
    """

    def __init__(self, habits: Optional[Habits] = None) -> None:
        self._habits = habits or Habits()
        means, errors, lasting_s = map(np.array, zip(*self._dimensions()))
        self._mean, self._lasting_s = means, lasting_s
        self._state = means.copy()
        self._spread = np.diag(errors**2)
        self._covariance = self._spread.copy()
        self._noise = self._habits.noise**2
        self._samples = 0
        self._at_s = self._measured_s = math.nan
        self._local: Optional[_Level] = None

    def _dimensions(self) -> List[Tuple[float, float, float]]:
        """Return mean, standard deviation and lasting time of each number of the state, as believed at first."""
        habits = self._habits
        line = [
            (habits.intercept, habits.intercept_error, habits.intercept_s),
            (habits.slope, habits.slope_error, habits.slope_s),
        ]
        return [*line, (0.0, habits.level_error, habits.intercept_s)] if habits.level_error else line

    @property
    def samples(self) -> int:
        """Carried results that were compared."""
        return self._samples

    def add_comparison(self, now: float, stale_s: float, drop: float) -> None:
        """Learn that a result carried for ``stale_s`` lost ``drop`` against the network's own for that frame.

        Args:
            now: when (monotonic seconds); one that goes back counts as the last one.
            stale_s: between the stamps of both frames, above 0.
            drop: 0 (the same) to 1 (nothing in common).

        Raises:
            BadInput: not such numbers; nothing is learnt from them.
        """
        check_comparison(now, stale_s, drop)
        self._learn(now, drop, self._row(stale_s))

    def _row(self, stale_s: float) -> Array:
        """Return the shares of the state in the drop of what was carried along for so long."""
        settle_s = self._habits.settle_s
        settled = 1 - math.exp(-stale_s / settle_s) if settle_s else 1.0
        row = np.ones(len(self._state))
        row[:2] = settled, stale_s
        return row

    def _learn(self, now: float, drop: float, row: Array) -> None:
        self._pass(now)
        variance = float(row @ self._covariance @ row)
        surprise = drop - float(row @ self._state)
        noise = max(self._noise, (self._habits.noise / 10) ** 2) * self._habits.alike
        gain = self._covariance @ row / (variance + noise)
        self._state = self._state + gain * surprise
        reduced = np.eye(len(row)) - np.outer(gain, row)
        self._covariance = reduced @ self._covariance @ reduced.T + noise * np.outer(gain, gain)
        self._noise += (surprise**2 - variance - self._noise) / (2 * ENOUGH)
        self._noise = max(self._noise, 0.0)
        self._samples += 1
        self._measured_s = self._at_s
        # the means are those of all measurements, the first ones by what was believed before
        least = self._habits.mean_gain
        self._mean += (max(least, 1 / (self._samples + 10)) if least else 0.0) * (self._state - self._mean)

    def add_local_comparison(self, now: float, drop: float) -> None:
        """Learn the local algorithm's ``drop`` against the network's own result for the same frame.

        Raises:
            BadInput: no such number; nothing is learnt from it.
        """
        if not math.isfinite(now):
            raise BadInput(f"a comparison at {now}")
        _check_drop(drop)
        habits = self._habits
        if self._local is None:
            self._local = _Level(habits.local, habits.local_error**2, habits.local, habits.local_error**2)
        level = self._local
        level.at(now, habits.local_s)
        gain = level.variance / (level.variance + habits.noise**2)
        level.value += gain * (drop - level.value)
        level.variance *= 1 - gain
        level.mean += habits.mean_gain * (level.value - level.mean)

    def curve(self, now: float) -> DropCurve:
        """Return the drops that are expected now."""
        return self._curve(now, np.eye(len(self._state))[1])

    def _curve(self, now: float, row: Array) -> DropCurve:
        """Return the curve whose slope has such shares of the state."""
        state, covariance = self._after(now)
        local, error = None, math.inf
        if self._local is not None:
            level = _Level(**vars(self._local))
            level.at(now, self._habits.local_s)
            local, error = min(1.0, max(0.0, level.value)), math.sqrt(level.variance)
        return DropCurve(
            min(1.0, max(0.0, float(state[0]))),
            max(0.0, float(row @ state)),
            math.sqrt(max(0.0, float(row @ covariance @ row))),
            local,
            error,
            math.inf if math.isnan(self._measured_s) else max(0.0, now - self._measured_s),
            math.sqrt(self._noise),
            math.sqrt(self._noise) * self._habits.lasting,
        )

    def _after(self, now: float) -> Tuple[Array, Array]:
        passed_s = 0.0 if math.isnan(self._at_s) else max(0.0, now - self._at_s)
        decay = np.exp(-passed_s / self._lasting_s)
        state = self._mean + decay * (self._state - self._mean)
        both = np.outer(decay, decay)
        return state, both * self._covariance + (1 - both) * self._spread

    def _pass(self, now: float) -> None:
        self._state, self._covariance = self._after(now)
        self._at_s = now if math.isnan(self._at_s) else max(self._at_s, now)


def check_comparison(now: float, stale_s: float, drop: float) -> None:
    """Refuse what cannot be a comparison; arguments as :meth:`DropEstimator.add_comparison`.

    Raises:
        BadInput: it cannot.
    """
    if not (math.isfinite(now) and math.isfinite(stale_s) and stale_s > 0):
        raise BadInput(f"a comparison over {stale_s} s at {now}", remedy="stamps have to go on")
    _check_drop(drop)


def _check_drop(drop: float) -> None:
    if not (math.isfinite(drop) and 0 <= drop <= 1):
        raise BadInput(f"a drop of {drop}", remedy="give 0 (nothing lost) to 1 (all)")
