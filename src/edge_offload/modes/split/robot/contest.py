"""Whether a plan that divides operators is used: only while it was measured no slower than the best undivided one.

A plan is chosen by what it is expected to take, and expectations are some percent off: by as much a divided plan may
lose against a layer cut that it was expected to beat. So the two run in turns, as inferences come, and are compared in
pairs of neighbours, which meet the same link and the same machines. The divided one is used once the median of the
ratios is below 1 with confidence, and again and again compared from then on; otherwise the undivided one is. Pure: the
clock is an argument.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Callable, Deque, Dict, List, Optional, Sequence, Tuple

#: Pairs after which is decided, if it can be; after the last, what is not decided is the undivided plan.
LOOKS = (8, 16, 32, 64)
#: Chance of an error, over all looks and to one side, that is put up with.
ALPHA = 0.05
#: The first pairs find cold caches.
COLD = 2
#: Seconds within which two inferences are neighbours.
NEAR_S = 3.0
#: While the divided plan is used one inference in so many runs the other, ...
EVERY = 20
#: ... and if it is no faster in the median of so many of these pairs, both run in turns again.
LATEST = 16
#: Seconds until a divided plan that was not fast enough is tried again; twice as long each time, up to the second.
RETRY_S, MOST_RETRY_S = 300.0, 3600.0


@dataclass(frozen=True)
class Measured:
    """A divided plan over the best undivided one, in pairs as they ran.

    Attributes:
        pairs: how many.
        ratio: median of their ratios.
        low, high: its interval, at the confidence with which is decided (order statistics: no assumption on the noise).
    """

    pairs: int
    ratio: float
    low: float
    high: float


class Contest:
    """One divided plan against one undivided plan. One inference at a time; :attr:`used` may be read by any thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ratios: Deque[float] = deque(maxlen=LOOKS[-1])
        self._verdict: Optional[bool] = None
        self._skip = COLD
        self._turn = 0
        self._half: Optional[Tuple[bool, float, float]] = None
        self._retry_s, self._pause_s = 0.0, RETRY_S
        self.measured: Optional[Measured] = None

    @property
    def used(self) -> Optional[bool]:
        """True if the divided plan is in use; None while both alternate."""
        if self._verdict is False and self._clock() >= self._retry_s:
            return None
        return self._verdict

    def divides(self) -> bool:
        """Return True if the next inference has to run the divided plan."""
        used = self.used
        if used is False:
            return False
        if used is None and self._verdict is False:
            self._begin()
        if self._half is not None:
            divided, _, ended_s = self._half
            if self._clock() - ended_s <= NEAR_S:
                return not divided
            self._half = None
        self._turn += 1
        if used:
            return self._turn % EVERY != 0
        return self._turn % 2 == 1

    def note(self, divided: bool, seconds: float) -> None:
        """Record the time of a successful inference."""
        now = self._clock()
        half, self._half = self._half, None
        if half is None:
            if self._verdict is None or (self._verdict and not divided):
                self._half = (divided, seconds, now)
        elif half[0] is not divided and now - half[2] - seconds <= NEAR_S:
            self.pair(*((seconds, half[1]) if divided else (half[1], seconds)))

    def drop(self) -> None:
        """Drop the last inference: the one after it failed, so there is no pair."""
        self._half = None

    def pair(self, divided_s: float, undivided_s: float) -> None:
        """Add the times of two inferences, one right after the other."""
        if self._skip:
            self._skip -= 1
            return
        if self._verdict is False or min(divided_s, undivided_s) <= 0:
            return
        self._ratios.append(divided_s / undivided_s)
        count = len(self._ratios)
        if self._verdict:
            if median(list(self._ratios)[-LATEST:]) >= 1.0:
                self._begin()
        elif count in LOOKS:
            self.measured = compared(self._ratios)
            if self.measured.high < 1.0:
                self._verdict, self._pause_s = True, RETRY_S
            elif self.measured.low > 1.0 or count == LOOKS[-1]:
                self._verdict = False
                self._retry_s = self._clock() + self._pause_s
                self._pause_s = min(2 * self._pause_s, MOST_RETRY_S)

    def _begin(self) -> None:
        """Restart with both alternating."""
        self._ratios.clear()
        self._verdict, self._half, self._skip, self._turn = None, None, COLD, 0


class Contests:
    """The contests of one table, by the places of the two plans."""

    def __init__(self) -> None:
        self._all: Dict[Tuple[int, int], Contest] = {}

    def of(self, divided: int, undivided: int) -> Contest:
        """Return the contest of the plans at these two places."""
        return self._all.setdefault((divided, undivided), Contest())

    def words(self) -> str:
        """Describe the contests; empty while none has started."""
        found = list(self._all.values())
        used = [contest.measured for contest in found if contest.used]
        left = [contest.measured for contest in found if contest.used is False]
        told: List[str] = []
        for name, items in (("faster than undivided ones", used), ("not faster", left)):
            ratios = [item.ratio for item in items if item is not None]
            if ratios:
                told.append(f"{len(ratios)} measured {name} ({median(ratios):.2f})")
        if len(found) > len(used) + len(left):
            told.append(f"{len(found) - len(used) - len(left)} being measured")
        return ", ".join(told)


def compared(ratios: Sequence[float]) -> Measured:
    """Median of the ratios and its interval, for one look out of :data:`LOOKS`."""
    ordered = sorted(ratios)
    count, left = len(ordered), ALPHA / len(LOOKS)
    # the chance that no more than k of the pairs are below the true median is that of a fair coin
    k, chance, below = 0, 0.5**count, 0.0
    while below + chance <= left:
        below += chance
        chance *= (count - k) / (k + 1)
        k += 1
    if not k:
        return Measured(count, median(ordered), 0.0, float("inf"))
    return Measured(count, median(ordered), ordered[k - 1], ordered[count - k])
