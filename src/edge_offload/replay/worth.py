"""Whether it is worth it that the server runs ahead: measured, for inferences that begin alike.

What runs ahead in vain is computed twice, sent and compared, and what is learnt from it costs the robot time. Where
that is more than the round trips that it saves, mode replay does what ``lazy`` does: the calls of a step travel when
the host reads, and nothing is learnt. Which of the two is faster is found out by doing both in turn for a few
inferences; that is tried only where many round trips are left or much is rolled back, and again after ever more
inferences, or when the inferences have become others.

The time of an inference counts from its first read on to its last, by the number of its steps: what a program does
between two inferences is its own affair.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Deque, Dict, Hashable, List, Optional, Tuple

#: Inferences in a row by which it is judged whether anything is to be gained, and by which a change is seen.
RECENT = 8
#: Inferences that learning gets before anything is tried; after a trial twice as many each time, up to the second.
PATIENCE, MOST_PATIENCE = 12, 1024
#: Of each kind in a trial; fewer where so many that were not run ahead were all slower by that factor.
TRIALS, FEWEST, MUCH = 4, 2, 1.25
#: A trial is made from so many round trips an inference on, this share of its steps; or from this share rolled back.
LEAST_TRIPS, SHARE_OF_STEPS, SHARE_UNDONE = 4, 0.3, 0.25
#: The other way has to be faster by that.
GAIN = 0.95
#: Steps, or the time for one, have to change by that for the inferences to be others.
CHANGE = 1.5
#: Kinds of inferences that are told apart.
MAX_KINDS = 32


@dataclass(frozen=True)
class Cost:
    """What an inference was: its steps, round trips and steps that were rolled back, seconds for each step."""

    steps: int
    trips: int
    undone: int
    step_s: float


class Trial:
    """For inferences of one kind: whether they are run ahead, and when that is tried otherwise."""

    def __init__(self) -> None:
        self._ahead = True
        self._wait = self._patience = PATIENCE
        self._costs: Deque[Cost] = deque(maxlen=RECENT)
        self._tried: Optional[Dict[bool, List[float]]] = None
        self._judged: Optional[Tuple[float, float]] = None
        self._before = True

    def ahead(self) -> bool:
        """Whether the inference that begins is run ahead."""
        if self._tried is None:
            return self._ahead
        return len(self._tried[True]) < len(self._tried[False])  # in turn

    def note(self, ahead: bool, cost: Cost) -> None:
        """An inference is over that was run ahead, or was not."""
        first, self._before = ahead and not self._before, ahead
        if self._tried is not None:
            if not first:  # nobody could announce what it uploads
                self._tried[ahead].append(cost.step_s)
                self._judge(self._tried[True], self._tried[False])
            return
        self._costs.append(cost)
        self._wait -= 1
        if len(self._costs) == RECENT and (self._changed() if self._wait > 0 else self._might_gain()):
            self._tried = {True: [], False: []}

    def _might_gain(self) -> bool:
        """Whether the other way could be the faster one."""
        if not self._ahead:
            return True
        steps, trips = sum(c.steps for c in self._costs), sum(c.trips for c in self._costs)
        in_vain = sum(c.undone for c in self._costs) >= SHARE_UNDONE * steps
        return in_vain or (trips >= LEAST_TRIPS * RECENT and trips >= SHARE_OF_STEPS * steps)

    def _changed(self) -> bool:
        """Whether inferences that are not run ahead have become others."""
        now = self._usual()
        if self._ahead or self._judged is None:
            self._judged = None if self._ahead else now
            return False
        changed = any(not a <= CHANGE * b or not b <= CHANGE * a for a, b in zip(now, self._judged))
        if changed:
            self._patience = PATIENCE
        return changed

    def _usual(self) -> Tuple[float, float]:
        """Steps of the latest inferences, and seconds for one of them."""
        return statistics.mean(c.steps for c in self._costs), statistics.median(c.step_s for c in self._costs)

    def _judge(self, ahead: List[float], plain: List[float]) -> None:
        usual = statistics.median(c.step_s for c in self._costs)
        hopeless = self._ahead and len(plain) >= FEWEST and min(plain) > MUCH * usual
        if not hopeless and min(len(ahead), len(plain)) < TRIALS:
            return
        if not hopeless:
            gain = statistics.median(plain) / statistics.median(ahead)
            self._ahead = gain >= GAIN if self._ahead else gain > 1.0 / GAIN
        self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._wait, self._tried, self._judged = self._patience, None, None
        self._costs.clear()


class Worth:
    """Says of each inference, when it begins, whether it is run ahead.

    Args:
        clock: time (seconds).

    Attributes:
        ahead: whether the one under way is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ahead = True
        self._clock = clock
        self._trials: Dict[Hashable, Trial] = {}
        self._trial: Optional[Trial] = None
        self._began_s: Optional[float] = None
        self._ended_s = 0.0
        self._steps = self._trips = self._undone = 0
        self._trips_before = self._undone_before = 0

    def begin(self, kind: Hashable, trips: int, undone: int) -> bool:
        """An inference of a ``kind`` begins: says whether it is run ahead.

        Args:
            kind: inferences of one kind are judged together.
            trips: round trips so far.
            undone: steps that were rolled back so far.
        """
        if self._trial is not None and self._began_s is not None and self._steps:
            took_s = self._ended_s - self._began_s
            spent = trips - self._trips_before, undone - self._undone_before
            self._trial.note(self.ahead, Cost(self._steps, *spent, took_s / self._steps))
        if kind not in self._trials and len(self._trials) >= MAX_KINDS:
            self._trials.clear()
        self._trial = self._trials.setdefault(kind, Trial())
        self.ahead = self._trial.ahead()
        self._trips_before, self._undone_before = trips, undone
        self._began_s, self._steps = None, 0
        return self.ahead

    def entered(self) -> None:
        """The host waits for a step."""
        if self._began_s is None:
            self._began_s = self._clock()

    def done(self, step: bool) -> None:
        """The host goes on; ``step``: the step is over."""
        self._steps += step
        self._ended_s = self._clock()
