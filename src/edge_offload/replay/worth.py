"""Whether the rest of an inference is run ahead, after it has taken several round trips all the same: measured.

What runs ahead in vain is computed twice, sent and compared, and what is learnt from it costs the robot time. Where
that is more than the round trips that it saves (loops inside of loops whose turns the data decides, over a fast link),
the rest of an inference is run as ``lazy`` runs it, which learns nothing and sends nothing ahead.

That is decided only at the :data:`FIRST_TRIP`-th round trip of an inference. An inference that takes fewer is run
ahead from its beginning to its end, whatever has been found of others; and so much of each is learnt from and run
ahead again, so that what can be learnt at all is learnt in the end, and then takes fewer. Which of the two is faster
is found out by doing both in turn for a few inferences that begin with the same steps: only where all of the latest
have taken many round trips, and again after ever more of them, or once the time that they take has become another
(another link).

What is compared is the time of a step from that round trip on to the last step of the inference, with what is learnt
from it; what a program does between two inferences is its own affair.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Callable, Deque, Dict, Hashable, List, NamedTuple, Optional, Tuple

#: Round trips of an inference, before it is asked whether the rest of it is run ahead.
FIRST_TRIP = 4
#: Inferences in a row by which it is judged whether anything is to be gained, and by which a change is seen.
RECENT = 8
#: Inferences that learning gets before anything is tried; after a trial twice as many each time, up to the second.
TRIAL_PAUSE, MAX_TRIAL_PAUSE = 12, 1024
#: Of each way in a trial; fewer where so many that were not run ahead were all slower by that factor.
TRIALS, MIN_TRIALS, HOPELESS_FACTOR = 4, 2, 1.25
#: A trial is made where each of the latest took so many round trips, and all of them this share of their steps.
MIN_TRIPS, SHARE_OF_STEPS = 8, 0.3
#: The other way has to be faster by that.
GAIN = 0.95
#: The time of a step has to change by that for the link to be another.
CHANGE = 1.5


class Cost(NamedTuple):
    """Cost of an inference from its :data:`FIRST_TRIP`-th round trip on: steps, and seconds for each; trips in all."""

    steps: int
    trips: int
    step_s: float


class AheadTrial:
    """Trial of running the rest of an inference ahead, for inferences of one kind."""

    def __init__(self) -> None:
        self._ahead = True
        self._wait = self._pause = TRIAL_PAUSE
        self._costs: Deque[Cost] = deque(maxlen=RECENT)
        self._tried: Optional[Dict[bool, List[float]]] = None
        self._judged_s: Optional[float] = None

    def runs_ahead(self) -> bool:
        """True if the rest of the inference runs ahead."""
        if self._tried is None:
            return self._ahead
        return len(self._tried[True]) < len(self._tried[False])  # in turn

    def note_inference(self, ahead: bool, cost: Cost) -> None:
        """An inference is over whose rest was run ahead, or was not."""
        if self._tried is not None:
            self._tried[ahead].append(cost.step_s)
            self._judge_trial(self._tried[True], self._tried[False])
            return
        self._costs.append(cost)
        self._wait -= 1
        if len(self._costs) < RECENT:
            return
        changed = self._has_changed()
        if (changed or self._wait <= 0) and self._might_gain():
            self._pause = TRIAL_PAUSE if changed else self._pause
            self._tried = {True: [], False: []}

    def _might_gain(self) -> bool:
        """True if the other way could be the faster one."""
        if not self._ahead:
            return True
        trips, steps = (sum(column) for column in ([c.trips for c in self._costs], [c.steps for c in self._costs]))
        return min(c.trips for c in self._costs) >= MIN_TRIPS and trips >= SHARE_OF_STEPS * steps

    def _has_changed(self) -> bool:
        """True if the time of a step has changed since the last judgement."""
        now_s = self._usual_s()
        if self._judged_s is None:
            return False
        return not (now_s <= CHANGE * self._judged_s and self._judged_s <= CHANGE * now_s)

    def _usual_s(self) -> float:
        return statistics.median(c.step_s for c in self._costs)

    def _judge_trial(self, ahead: List[float], plain: List[float]) -> None:
        hopeless = self._ahead and len(plain) >= MIN_TRIALS and min(plain) > HOPELESS_FACTOR * self._usual_s()
        if not hopeless and min(len(ahead), len(plain)) < TRIALS:
            return
        if not hopeless:
            gain = statistics.median(plain) / statistics.median(ahead)
            self._ahead = gain >= GAIN if self._ahead else gain > 1.0 / GAIN
        self._judged_s = self._usual_s() if hopeless else statistics.median(ahead if self._ahead else plain)
        self._pause = min(2 * self._pause, MAX_TRIAL_PAUSE)
        self._wait, self._tried = self._pause, None
        self._costs.clear()


class AheadGain:
    """Decides whether the rest of an inference that has taken several round trips runs ahead.

    Args:
        clock: time (seconds).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trials: Dict[Tuple[Hashable, ...], AheadTrial] = {}
        self._kind: Tuple[Hashable, ...] = ()
        self._ahead = True
        self._trips_before = self._trips = self._steps = 0
        self._since_s: Optional[float] = None
        self._ended_s = 0.0

    def note_step(self, signature: Hashable, opens: bool, trips: int) -> None:
        """A step of this ``signature`` is made, with which an inference begins or not; so many round trips before."""
        if opens:
            self._begin_inference(trips)
        # the first two steps tell inferences apart
        if len(self._kind) < 2:
            self._kind += (signature,)

    def _begin_inference(self, trips: int) -> None:
        if self._since_s is not None and self._steps:
            if self._kind not in self._trials and len(self._trials) >= 32:
                self._trials.clear()
            step_s = (self._ended_s - self._since_s) / self._steps
            cost = Cost(self._steps, self._trips - self._trips_before, step_s)
            self._trials.setdefault(self._kind, AheadTrial()).note_inference(self._ahead, cost)
        self._kind, self._trips_before = (), trips
        self._ahead, self._since_s, self._steps = True, None, 0

    def runs_ahead(self, trips: int) -> bool:
        """True if what follows a round trip runs ahead, after ``trips`` of them."""
        if self._since_s is None and trips - self._trips_before >= FIRST_TRIP:
            self._since_s, self._ended_s = self._clock(), 0.0
            trial = self._trials.get(self._kind)
            self._ahead = trial is None or trial.runs_ahead()
        return self._ahead

    def end_step(self, trips: int) -> None:
        """A step is over, after so many round trips in all."""
        if self._since_s is not None:
            self._steps, self._trips, self._ended_s = self._steps + 1, trips, self._clock()
