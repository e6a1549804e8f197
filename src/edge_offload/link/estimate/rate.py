"""Bandwidth of one direction from noisy samples: a Kalman filter on the logarithm that holds still and jumps at steps.

A radio link wanders slowly and now and then falls or rises at once. A sample that surprises is kept aside; a second one
that surprises the same way is a step and is believed at once, anything else shows that the first was an accident (a
thread that came late). So one bad sample never moves the estimate, and two follow any step.
"""

from __future__ import annotations

import math
from typing import Optional

#: Spread of the logarithm of the bandwidth that one second brings on a link in motion.
DRIFT_PER_S = 0.3
#: Error of the logarithm that even a long transfer has: what shares the link, TCP's own pace.
SAMPLE_ERROR = 0.08
#: Innovation, in standard deviations, from which on a sample surprises.
SURPRISE = 2.5
#: A sample whose error is larger than this says nothing.
MAX_ERROR = 1.0
#: A transfer that kept the link busy for so long is no accident: it needs no second one.
LONG_S = 0.25
#: A fall that only one sample has shown may have gone on since, by this share of it (of the logarithm).
STEP_DOUBT = 0.5
#: Share of the lag that usually held a transfer up: threads wait beside it, too.
LIKELY_LAG = 0.25
#: No transfer takes less (seconds).
LEAST_S = 1e-6
#: Weight of an estimate of unknown age.
MAX_VARIANCE = 1.5


class RateFilter:
    """Bytes per second of one direction. One thread at a time.

    Attributes:
        samples: how many were believed.
        heard: how many said something, those that were kept aside included.
        updated_s: when the latest was believed.
    """

    def __init__(self) -> None:
        self.samples = self.heard = 0
        self.updated_s = -math.inf
        self._log: Optional[float] = None
        self._variance = MAX_VARIANCE
        self._aside: Optional[float] = None

    def observe(self, now: float, size: float, busy_s: float, error_s: float, lag_s: float = 0.0) -> bool:
        """``size`` bytes had the link to themselves for ``busy_s`` seconds, known to within ``error_s``.

        Args:
            lag_s: for so much of ``busy_s`` at most it was not the link that was waited for, but a processor. What that
                explains is not held against the link.

        Returns False if the sample says nothing: too short for its error, or for the lag.
        """
        if size <= 0 or busy_s <= 0:
            return False
        error = math.hypot(error_s / busy_s, SAMPLE_ERROR)
        if error > MAX_ERROR:
            return False
        # the link carried no less than this, and no more than this
        least, most = math.log(size / busy_s), math.log(size / max(busy_s - lag_s, LEAST_S))
        likely = math.log(size / (busy_s - LIKELY_LAG * min(lag_s, busy_s)))
        width = math.hypot(error, (most - least) / 2)
        self.heard += 1
        if self._log is None:
            self._believe(now, likely, min(width**2, MAX_VARIANCE))
            return True
        found = min(max(self._log, least), most)
        variance = self._variance_at(now)
        surprise = (found - self._log) / math.sqrt(variance + error**2)
        if abs(surprise) > SURPRISE:
            again = self._aside is not None and (self._aside > self._log) == (found > self._log)
            if not again and not (busy_s - lag_s >= LONG_S and surprise < 0):
                self._aside = found
                return True
            step, doubt = found, STEP_DOUBT * (found - self._log)
            if again and self._aside is not None:
                # a sample during which the link fell saw some of what was before: the lower one is the newer truth
                step = min(found, self._aside) if surprise < 0 else (found + self._aside) / 2
                doubt = 0.0
            self._believe(now, step, min(width**2 + doubt**2, MAX_VARIANCE))
            return True
        # what the sample rules out weighs as much as the sample is exact, where in between less
        moves = [
            gain * (to - self._log) for gain, to in ((_gain(variance, error), found), (_gain(variance, width), likely))
        ]
        self._believe(now, self._log + max(moves, key=abs), (1 - _gain(variance, width)) * variance)
        return True

    def forget(self) -> None:
        """The link was away: whatever comes next is believed."""
        self._log, self._aside, self._variance = None, None, MAX_VARIANCE

    @property
    def unsure(self) -> bool:
        """Whether one more sample would decide between an accident and a step."""
        return self._aside is not None

    @property
    def bytes_per_s(self) -> float:
        """The estimate; 0 while nothing is known."""
        return 0.0 if self._log is None else math.exp(self._log)

    def error(self, now: float) -> float:
        """Standard deviation of the logarithm: 0.1 is about 10 %. Infinite while nothing is known."""
        return math.inf if self._log is None else math.sqrt(self._variance_at(now))

    def _variance_at(self, now: float) -> float:
        return min(MAX_VARIANCE, self._variance + DRIFT_PER_S**2 * max(0.0, now - self.updated_s))

    def _believe(self, now: float, log: float, variance: float) -> None:
        self._log, self._variance, self.updated_s = log, variance, now
        self._aside = None
        self.samples += 1


def _gain(variance: float, error: float) -> float:
    """Weight of a sample against an estimate."""
    return variance / (variance + error**2)
