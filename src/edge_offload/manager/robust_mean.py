"""The mean of a cost that is measured now and then: it wanders unseen, is blurred by noise, and sometimes steps.

A Kalman filter in one dimension, whose noise is learnt, and which keeps aside what surprises it until enough of it says
that the mean has moved. Pure: time comes in as an argument.
"""

from __future__ import annotations

import math
from typing import List

#: Share by which the cost wanders in one second, unseen.
DRIFT_PER_S = 0.03
#: Of this the cost of one mode alone, while others run that need the same machines and link.
OWN_PER_S = 0.02
#: The cost may be so far off, as a share of it, after however long a time.
MOST_DOUBT = 0.7
#: Spread of frames that is assumed until they have shown their own, as a share.
FIRST_NOISE = 0.15
#: Share of a new frame in the spread.
NOISE_GAIN = 0.05
#: Innovation, in standard deviations, from which on a frame surprises: it is kept aside, ...
SURPRISE = 2.5
#: ... and so many in a row that surprise the same way are a step.
STEP = 3
#: After a step the average may be off by this share of it: three frames are not many.
STEP_DOUBT = 0.5
#: Blur of the clocks that measure a frame (seconds, or whatever is followed).
BLUR = 1e-3


class RobustMean:
    """Holds still under noise, follows a step at once; ``value`` is 0 before the first frame. One thread at a time."""

    def __init__(self, blur: float = BLUR) -> None:
        self.value = 0.0
        self._blur = blur
        self._variance = math.inf
        self._noise = math.inf
        self._updated_s = -math.inf
        self._aside: List[float] = []
        self.stepped = False

    @property
    def unsure(self) -> bool:
        """Whether more frames would tell a step from an accident."""
        return bool(self._aside)

    def doubt(self, now: float) -> float:
        """Standard deviation of :attr:`value` as an average, in its unit; inf before the first frame."""
        return math.sqrt(self._variance_at(now))

    def start(self, now: float, found: float) -> None:
        """Believe ``found``, and nothing of before."""
        self.value, self._updated_s, self._aside = found, now, []
        self._noise = self._variance = (FIRST_NOISE * abs(found)) ** 2 + self._blur**2

    def observe(self, now: float, found: float) -> None:
        """A frame showed this."""
        if math.isinf(self._variance):
            return self.start(now, found)
        variance = self._variance_at(now)
        self._updated_s, self.stepped = now, False
        apart = found - self.value
        expected = variance + self._noise
        if apart**2 > SURPRISE**2 * expected:
            same_way = self._aside and (self._aside[0] > self.value) == (apart > 0)
            self._aside = [*self._aside, found] if same_way else [found]
            if len(self._aside) < STEP:
                self._variance = variance
                return self._learn_noise(SURPRISE**2 * expected, variance)
            middle = sum(self._aside) / STEP
            # a step, most likely; accidents in a row, if the next frames say so
            self._variance = self._noise + (STEP_DOUBT * (middle - self.value)) ** 2
            self.value, self._aside, self.stepped = middle, [], True
            return
        gain = variance / expected
        self.value, self._aside = self.value + gain * apart, []
        self._variance = (1 - gain) * variance
        self._learn_noise(apart**2, variance)

    def memory_s(self, now: float) -> float:
        """Seconds of wandering that would make :attr:`value` as doubtful as it is."""
        return self._variance_at(now) / (DRIFT_PER_S * max(abs(self.value), self._blur)) ** 2

    def shift(self, now: float, factor: float, doubt: float) -> None:
        """It has changed by ``factor`` unseen, as what wanders with it has, give or take a share of ``doubt``."""
        if math.isinf(self._variance):
            return
        alone = OWN_PER_S**2 * max(0.0, now - self._updated_s)
        self.value *= factor
        self._variance += (doubt**2 + alone) * self.value**2
        self._updated_s = max(now, self._updated_s)

    def _learn_noise(self, squared: float, variance: float) -> None:
        # what is apart because nobody looked is no noise
        share = NOISE_GAIN * self._noise / (self._noise + variance)
        self._noise = max(self._noise + share * (squared - self._noise), self._blur**2)

    def _variance_at(self, now: float) -> float:
        scale = max(abs(self.value), self._blur)
        wandered = (DRIFT_PER_S * scale) ** 2 * max(0.0, now - self._updated_s)
        return min(self._variance + wandered, max(self._variance, (MOST_DOUBT * scale) ** 2))
