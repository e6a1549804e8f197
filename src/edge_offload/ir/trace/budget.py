"""Limits of learning in one inference: counted work, and processor time.

Everything that replay works out from what came before (formulas, plans, trace graphs, cycles) is a job that says
how much it has done, and goes on with the next inference where one ends. Until it is done its step is not predicted:
the program gets the same results, with a round trip more. Work is counted so that the bound does not depend on how
busy or how fast a machine is; the clock holds where a machine is slower than the count takes it to be.
"""

from __future__ import annotations

import time
from typing import Callable, Generator, Iterator, TypeVar

UNITS = 12_000
"""Of work in an inference; one is up to a microsecond: a candidate that is compared, a symbol that is made."""
UNITS_PER_STEP = 200
"""More for each step: its round trip takes five times as long on the fastest link."""
UNITS_PER_LOOK = 100
"""Between two looks at the clock, of which one takes half a microsecond."""

T = TypeVar("T")
#: A job that can be put off: yields the units that it has done since the last time, and returns a result.
Work = Generator[int, None, T]


class LearningBudget:
    """Budget of one inference at a time; time counts inside ``with``.

    Args:
        units, units_per_step: see the module's constants.
        seconds, share: of processor time in an inference, or of what the inference has taken, if that is more.
        busy, clock: processor time of this thread, and time (seconds).

    Attributes:
        units: that have been done in this inference; ``total`` in all.
        total_s: processor time in all (seconds).
    """

    def __init__(
        self,
        units: int = UNITS,
        units_per_step: int = UNITS_PER_STEP,
        seconds: float = 0.02,
        share: float = 0.2,
        busy: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.units = self.total = 0
        self.total_s = 0.0
        self._most = self._least = units
        self._per_step = units_per_step
        self._seconds, self._share = seconds, share
        self._busy, self._clock = busy, clock
        self._used_s = self._entered_s = 0.0
        self._depth = 0
        self._started_s = clock()
        self._looked_at, self._over = -UNITS_PER_LOOK, False  # units of the latest look at the clock, and what it said

    def start_inference(self) -> None:
        """Resets the budget for the next inference."""
        self.units, self._most = 0, self._least
        self._looked_at, self._over = -UNITS_PER_LOOK, False
        self._used_s, self._started_s = 0.0, self._clock()
        if self._depth:
            self._entered_s = self._busy()

    def start_step(self) -> None:
        """Adds the units of another step of the inference."""
        self._most += self._per_step

    @property
    def used_s(self) -> float:
        """Processor time of this inference so far."""
        return self._used_s + (self._busy() - self._entered_s if self._depth else 0.0)

    @property
    def remaining(self) -> int:
        """Units that may still be done in this inference; 0 where its time is over."""
        if self.units >= self._most:
            return 0
        if self._over or self.units - self._looked_at >= UNITS_PER_LOOK:
            used_s = self.used_s
            self._looked_at = self.units
            self._over = used_s >= self._seconds and used_s >= self._share * (self._clock() - self._started_s)
        return 0 if self._over else self._most - self.units

    def add_units(self, units: int) -> None:
        """Counts ``units`` as done."""
        self.units += units
        self.total += units

    def advance_job(self, job: Iterator[int]) -> bool:
        """Runs a job as far as the budget reaches; returns True when it is done."""
        with self:
            while self.remaining:
                try:
                    self.add_units(next(job))
                except StopIteration:
                    return True
        return False

    def __enter__(self) -> LearningBudget:
        self._depth += 1
        if self._depth == 1:
            self._entered_s = self._busy()
        return self

    def __exit__(self, *_: object) -> None:
        if self._depth == 1:
            used_s = self.used_s
            self.total_s += used_s - self._used_s
            self._used_s = used_s
        self._depth -= 1
