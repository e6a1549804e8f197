"""Mean costs of several modes that are measured now and then, with their covariance.

A Kalman filter over logarithms. Modes that need the same machines and link share a level that drifts; each mode has an
offset from it that drifts more slowly. So a frame in one mode also tells of the others, and the ratio of two modes is
better known than either cost. The noise of each mode is learnt; frames that are far off are kept aside until there are
enough of them to be a step. Pure: time comes in as an argument.
"""

from __future__ import annotations

import math
import sys
from typing import Dict, Hashable, List, Sequence

import numpy

from edge_offload.arrays import Array
from edge_offload.manager.tuning import CHANGE, FIRST_NOISE, FRAMES, OFFSET_DRIFT, SHARED_DRIFT, STEP, SURPRISE


class Levels:
    """Estimates the costs of modes, by any keys. One thread at a time."""

    def __init__(self) -> None:
        self._state = numpy.zeros(1)
        self._covariance = numpy.zeros((1, 1))
        self._now = -math.inf
        self._index: Dict[Hashable, int] = {}
        self._shares: List[bool] = [True]
        self._noise: Dict[Hashable, float] = {}
        self._count: Dict[Hashable, int] = {}
        self._aside: Dict[Hashable, List[float]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._noise

    def mean(self, key: Hashable) -> float:
        """Return the cost of ``key``, in its unit; 0 before the first frame."""
        return math.exp(float(self._row(key) @ self._state)) if key in self else 0.0

    def covariance(self, now: float, keys: Sequence[Hashable]) -> Array:
        """Return the covariance [n, n] of the logarithms of n mean costs that were measured.

        Frames that are kept aside add half their distance to a variance: they are a step or an accident.
        """
        rows = numpy.array([self._row(key) for key in keys]).reshape(len(keys), len(self._state))
        covariance: Array = rows @ self._covariance_at(now) @ rows.T
        for place, key in enumerate(keys):
            aside = self._aside[key]
            if aside:
                distance = sum(aside) / len(aside) - float(rows[place] @ self._state)
                covariance[place, place] += (distance / 2) ** 2
        return covariance

    def start(self, now: float, key: Hashable, value: float, shares: bool) -> None:
        """Take ``value`` for the mean, and forget what was known of ``key``.

        The first frames of a mode include its start-up, so one frame leaves the mean uncertain by :data:`CHANGE`. The
        noise begins as the mean noise of the other modes on the same machines.

        Args:
            now: monotonic seconds.
            key: what was measured.
            value: its cost.
            shares: whether it shares the level; else it is independent of all others.
        """
        self._advance(now)
        if key not in self._index:
            self._index[key] = len(self._state)
            self._state = numpy.append(self._state, 0.0)
            self._covariance = numpy.pad(self._covariance, (0, 1))
            self._shares.append(shares)
        others = [self._noise[other] for other in self._noise if other != key and self._shares[self._index[other]]]
        noise = max(FIRST_NOISE**2, sum(others) / len(others) if shares and others else 0.0)
        self._noise[key], self._count[key], self._aside[key] = noise, STEP, []
        # the limit of an update whose offset was not known at all: it takes what the shared level does not explain
        index, share = self._index[key], float(shares)
        self._state[index] = _logarithm(value) - share * self._state[0]
        self._covariance[index, :] = self._covariance[:, index] = -share * self._covariance[0]
        self._covariance[index, index] = share * self._covariance[0, 0] + max(noise, CHANGE**2)

    def observe(self, now: float, key: Hashable, value: float, shares: bool) -> None:
        """Learn from a frame; arguments as for :meth:`start`."""
        if key not in self:
            return self.start(now, key, value, shares)
        self._advance(now)
        row, measured = self._row(key), _logarithm(value)
        variance = float(row @ self._covariance @ row)
        innovation = measured - float(row @ self._state)
        expected = variance + self._noise[key]
        if innovation**2 > SURPRISE**2 * expected:
            aside = self._aside[key]
            same_side = aside and (aside[0] > measured - innovation) == (innovation > 0)
            aside = self._aside[key] = [*aside, measured] if same_side else [measured]
            self._learn_noise(key, SURPRISE**2 * expected, variance)
            if len(aside) == STEP:
                self._aside[key] = []
                self._step(key, sum(aside) / STEP)
            return
        self._aside[key] = []
        self._update(key, measured, self._noise[key])
        self._learn_noise(key, innovation**2, variance)

    def disturb(self) -> None:
        """Expect each mode to have changed, whatever was measured."""
        for index in self._index.values():
            self._covariance[index, index] += CHANGE**2

    def _step(self, key: Hashable, mean: float) -> None:
        """Move to ``mean`` at once: half of the step is the shared level's, as far as nothing is known.

        It may be wrong by half: accidents may follow each other, and the next frames will tell.
        """
        distance = mean - float(self._row(key) @ self._state)
        index = self._index[key]
        moved = [0, index] if self._shares[index] else [index]
        self._covariance[moved, moved] += distance**2
        self._update(key, mean, self._noise[key] / STEP)
        self._covariance[moved, moved] += (distance / 2) ** 2 / len(moved)

    def _update(self, key: Hashable, measured: float, noise: float) -> None:
        row = self._row(key)
        column = self._covariance @ row
        gain = column / (float(row @ column) + noise)
        self._state = self._state + gain * (measured - float(row @ self._state))
        self._covariance = self._covariance - numpy.outer(gain, column)
        self._covariance = (self._covariance + self._covariance.T) / 2

    def _learn_noise(self, key: Hashable, squared: float, variance: float) -> None:
        # an innovation that comes of an old estimate is no noise
        noise = self._noise[key]
        self._count[key] += 1
        noise += 1 / min(self._count[key], FRAMES) * noise / (noise + variance) * (squared - noise)
        self._noise[key] = max(noise, OFFSET_DRIFT**2)  # no frame tells more than what changes within a second

    def _row(self, key: Hashable) -> Array:
        row = numpy.zeros(len(self._state))
        index = self._index[key]
        row[index] = 1.0
        if self._shares[index]:
            row[0] = 1.0
        return row

    def _covariance_at(self, now: float) -> Array:
        elapsed_s = max(0.0, now - self._now) if math.isfinite(self._now) else 0.0
        drifted = self._covariance.copy()
        for index, shares in enumerate(self._shares):
            drift = OFFSET_DRIFT if index and shares else SHARED_DRIFT
            room = max(0.0, CHANGE**2 - drifted[index, index])
            drifted[index, index] += min(drift**2 * elapsed_s, room)
        return drifted

    def _advance(self, now: float) -> None:
        self._covariance, self._now = self._covariance_at(now), max(now, self._now)


def _logarithm(value: float) -> float:
    return math.log(max(value, sys.float_info.epsilon))
