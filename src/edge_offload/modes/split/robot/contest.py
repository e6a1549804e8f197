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
DECISION_PAIRS = (8, 16, 32, 64)
#: Chance of an error, over all looks and to one side, that is put up with.
ERROR_CHANCE = 0.05
#: The first pairs find cold caches.
COLD_PAIRS = 2
#: Seconds within which two inferences are neighbours.
NEIGHBOUR_S = 3.0
#: While the divided plan is used one inference in so many runs the other, ...
CHECK_EVERY = 20
#: ... and if it is no faster in the median of so many of these pairs, both run in turns again.
CHECK_PAIRS = 16
#: Seconds until a divided plan that was not fast enough is tried again; twice as long each time, up to the second. One
#: fall of the link can make it so: it lasts seconds (``wifi_outdoors``).
RETRY_S, MOST_RETRY_S = 10.0, 3600.0


@dataclass(frozen=True)
class PairRatios:
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


class PlanContest:
    """One divided plan against one undivided plan. One inference at a time; :attr:`in_use` may be read by any thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ratios: Deque[float] = deque(maxlen=DECISION_PAIRS[-1])
        self._verdict: Optional[bool] = None
        self._skip = COLD_PAIRS
        self._count = 0
        self._half: Optional[Tuple[bool, float, float]] = None
        self._retry_s, self._pause_s = 0.0, RETRY_S
        self.ratios: Optional[PairRatios] = None

    @property
    def in_use(self) -> Optional[bool]:
        """True if the divided plan is in use; None while both alternate."""
        if self._verdict is False and self._clock() >= self._retry_s:
            return None
        return self._verdict

    def next_divides(self) -> bool:
        """Return True if the next inference has to run the divided plan."""
        used = self.in_use
        if used is False:
            return False
        if used is None and self._verdict is False:
            self._restart()
        if self._half is not None:
            divided, _, ended_s = self._half
            if self._clock() - ended_s <= NEIGHBOUR_S:
                return not divided
            self._half = None
        self._count += 1
        if used:
            return self._count % CHECK_EVERY != 0
        return self._count % 2 == 1

    def record_inference(self, divided: bool, seconds: float) -> None:
        """Record the time of a successful inference."""
        now = self._clock()
        half, self._half = self._half, None
        if half is None:
            if self._verdict is None or (self._verdict and not divided):
                self._half = (divided, seconds, now)
        elif half[0] is not divided and now - half[2] - seconds <= NEIGHBOUR_S:
            self.add_pair(*((seconds, half[1]) if divided else (half[1], seconds)))

    def drop_inference(self) -> None:
        """Drop the last inference: the one after it failed, so there is no pair."""
        self._half = None

    def add_pair(self, divided_s: float, undivided_s: float) -> None:
        """Add the times of two inferences, one right after the other."""
        if self._skip:
            self._skip -= 1
            return
        if self._verdict is False or min(divided_s, undivided_s) <= 0:
            return
        self._ratios.append(divided_s / undivided_s)
        count = len(self._ratios)
        if self._verdict:
            if median(list(self._ratios)[-CHECK_PAIRS:]) >= 1.0:
                self._restart()
        elif count in DECISION_PAIRS:
            self.ratios = compare_ratios(self._ratios)
            if self.ratios.high < 1.0:
                self._verdict, self._pause_s = True, RETRY_S
            elif self.ratios.low > 1.0 or count == DECISION_PAIRS[-1]:
                self._verdict = False
                self._retry_s = self._clock() + self._pause_s
                self._pause_s = min(2 * self._pause_s, MOST_RETRY_S)

    def _restart(self) -> None:
        """Restart with both alternating."""
        self._ratios.clear()
        self._verdict, self._half, self._skip, self._count = None, None, COLD_PAIRS, 0


class PlanContests:
    """The contests of one table, by the places of the two plans."""

    def __init__(self) -> None:
        self._all: Dict[Tuple[int, int], PlanContest] = {}

    def contest_of(self, divided: int, undivided: int) -> PlanContest:
        """Return the contest of the plans at these two places."""
        return self._all.setdefault((divided, undivided), PlanContest())

    def describe_state(self) -> str:
        """Describe the contests; empty while none has started."""
        contests = list(self._all.values())
        used = [contest.ratios for contest in contests if contest.in_use]
        unused = [contest.ratios for contest in contests if contest.in_use is False]
        parts: List[str] = []
        for name, items in (("faster than undivided ones", used), ("not faster", unused)):
            ratios = [item.ratio for item in items if item is not None]
            if ratios:
                parts.append(f"{len(ratios)} measured {name} ({median(ratios):.2f})")
        if len(contests) > len(used) + len(unused):
            parts.append(f"{len(contests) - len(used) - len(unused)} being measured")
        return ", ".join(parts)


def compare_ratios(ratios: Sequence[float]) -> PairRatios:
    """Median of the ratios and its interval, for one look out of :data:`DECISION_PAIRS`."""
    ordered = sorted(ratios)
    count, chance_limit = len(ordered), ERROR_CHANCE / len(DECISION_PAIRS)
    # the chance that no more than k of the pairs are below the true median is that of a fair coin
    rank, chance, below = 0, 0.5**count, 0.0
    while below + chance <= chance_limit:
        below += chance
        chance *= (count - rank) / (rank + 1)
        rank += 1
    if not rank:
        return PairRatios(count, median(ordered), 0.0, float("inf"))
    return PairRatios(count, median(ordered), ordered[rank - 1], ordered[count - rank])
