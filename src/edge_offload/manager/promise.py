"""A robot that was promised a bound on what sharing the server may cost it: which of its frames go there, and when.

The server says which frames are its turns (:class:`~edge_offload.protocol.promises.SlotSchedule`); the frame goes whose
capture is nearest. Frames are numbered by time, so that one that the camera has dropped shifts none of the others.
Without a word from the server for :data:`.REPEAT_S` the robot is on its own again. Pure: time comes in as an argument,
monotonic seconds.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import Deque, Optional, Tuple

from edge_offload.errors import BadInput
from edge_offload.manager.drop import DropEstimator, Habits
from edge_offload.manager.policy import Decision, Situation
from edge_offload.manager.tuning import ENOUGH, FRAMES, GIVE_UP_S, NOTABLE, RECENT_S, REPEAT_S
from edge_offload.mode import Mode
from edge_offload.protocol.promises import (
    INTERVAL_RANGE_S,
    LEAST_BOUND,
    MOST_SLOPE,
    MOST_WAY_S,
    SETTLE_S,
    PromiseReport,
    PromiseRequest,
    SlotSchedule,
)

#: What networks lose with age before a robot has measured it: tasks of which nothing is known, and mean curves of
#: kapao_vtest on frames 0 to 399 of the sample video, and of SCONet in the made-up street 11 (up to 0.8 s), carried. A
#: promise is about the mean of a session, and there what a robot has seen says little of what comes: the curve is
#: learnt slowly. What is lost at once, however little older a result is, differs from street to street, and no
#: schedule changes it. What is noise from one person's box to the next averages out sooner than what a street is like.
UNKNOWN = Habits(0.1, 0.05, 0.1, 0.1, intercept_s=600.0, slope_s=600.0, settle_s=SETTLE_S, mean_gain=0.0, alike=4.0)
HABITS = {
    "people": replace(UNKNOWN, intercept=0.18, intercept_error=0.02, slope=0.13, slope_error=0.015, lasting=0.75),
    "scene": replace(
        UNKNOWN, intercept=0.03, intercept_error=0.002, slope=0.07, slope_error=0.004, noise=0.06, level_error=0.05
    ),
}


class _FrameClock:
    """Numbers frames by the times of their capture; one more makes a mean of the intervals before it.

    Attributes:
        interval_s: between frames, when the numbers were set; nan before.
    """

    def __init__(self) -> None:
        self._times: Deque[float] = deque(maxlen=ENOUGH + 1)
        self.interval_s, self._base_s = math.nan, 0.0

    def note_capture(self, captured: float) -> None:
        """Take in a frame."""
        self._times.append(captured)

    def set_base(self, now: float) -> float:
        """Count from the latest frame on; return its age, in seconds."""
        self.interval_s, self._base_s = self.measure_interval(), self._times[-1]
        return max(0.0, now - self._base_s)

    def number_of(self, captured: float) -> float:
        """Return the number of a frame that was captured then."""
        return (captured - self._base_s) / self.interval_s

    def measure_interval(self) -> float:
        """Return the median of the latest intervals in seconds; nan for fewer than :data:`.ENOUGH`."""
        if len(self._times) <= ENOUGH:
            return math.nan
        times = list(self._times)
        return statistics.median(later - earlier for earlier, later in zip(times, times[1:]))


class _TravelTimes:
    """Times of the latest frames' ways to the server, and of their results' ways back (seconds)."""

    def __init__(self) -> None:
        self._ups: Deque[float] = deque(maxlen=FRAMES)
        self._downs: Deque[float] = deque(maxlen=FRAMES)

    def note(self, up_s: float, down_s: float) -> None:
        """Take in one frame's."""
        if math.isfinite(up_s) and math.isfinite(down_s):
            self._ups.append(min(max(0.0, up_s), MOST_WAY_S))
            self._downs.append(min(max(0.0, down_s), MOST_WAY_S))

    def summarize(self) -> Tuple[float, float, float]:
        """Return nearly the longest way up, the usual way down and the usual way up (seconds); 0 before any."""
        ups = sorted(self._ups)
        longest = ups[int((1 - NOTABLE) * (len(ups) - 1))] if ups else 0.0
        down, usual = (statistics.median(ways) if ways else 0.0 for ways in (self._downs, ups))
        return longest, down, usual


@dataclass
class _Agreement:
    """State of the promise: requested, made, or neither until ``retry_at_s``, and why."""

    made: bool = False
    requested: bool = False
    retry_at_s: float = -math.inf
    reason: str = "no promise has been asked for yet"
    note: str = ""


@dataclass
class PromisePolicy:
    """Policy of one network. One thread at a time.

    Args:
        bound: accuracy, at most 1, that sharing the server may cost.
        batched: whether results may differ in the last digits from those of frames computed alone.
        habits: what the network's results lose with age, before it was measured.

    Raises:
        BadInput: no such bound.
    """

    bound: float
    batched: bool = True
    name: str = "promise"
    habits: Habits = UNKNOWN

    def __post_init__(self) -> None:
        if not LEAST_BOUND <= self.bound <= 1:
            raise BadInput(f"accuracy is {self.bound}", remedy=f"give a bound from {LEAST_BOUND:g} to 1, such as 0.05")
        self._clock, self._ways = _FrameClock(), _TravelTimes()
        self._drops = DropEstimator(self.habits)
        self._turns: Deque[int] = deque()
        self._plan, self._followed_s = -1, -math.inf
        self._sent: OrderedDict[float, int] = OrderedDict()
        self._agreement = _Agreement()
        self.missed = self.followed = self.outdated = 0

    # ------------------------------------------------------------------ asking

    def make_request(self, now: float, handle: int) -> Optional[PromiseRequest]:
        """Return the request to send now, if any; :meth:`admitted` or :meth:`ended` takes the answer.

        Args:
            now: when.
            handle: of the model, open for the frames' shape.
        """
        interval_s = self._clock.measure_interval()
        if self._agreement.made and abs(interval_s / self._clock.interval_s - 1) > NOTABLE:
            self.ended(now, f"the camera's pace has changed to {1 / interval_s:.1f} Hz", retry_s=0.0)
        due = not self._agreement.made and not self._agreement.requested and now >= self._agreement.retry_at_s
        low, high = INTERVAL_RANGE_S
        if not due or not low <= interval_s <= high:
            return None
        self._agreement.requested = True
        age = min(self._clock.set_base(now), MOST_WAY_S)
        self._turns.clear()
        self._plan = -1
        return PromiseRequest(handle, self.bound, interval_s, self.batched, 0, age, *self._estimates(now))

    def admitted(self, now: float, note: str = "") -> None:
        """The server has made the promise; ``note``: why its batches are no larger."""
        self._agreement, self._followed_s = _Agreement(made=True, note=note), now

    def ended(self, now: float, why: str, retry_s: float = RECENT_S) -> None:
        """Drop the promise: it was refused, taken back, or the connection broke."""
        self._agreement = _Agreement(retry_at_s=now + retry_s, reason=why)
        self._turns.clear()

    # ------------------------------------------------------------------ following

    def follow_turns(self, now: float, turns: SlotSchedule) -> None:
        """The server has told its turns. Those of an older plan, or of another time, are not followed."""
        if not self._agreement.made or turns.number <= self._plan:
            self.outdated += self._agreement.made
            return
        frame_now = self._clock.number_of(now)
        # those further away are of another time
        ahead = [frame for frame, _ in turns.slots if abs(frame - frame_now) * self._clock.interval_s <= GIVE_UP_S]
        self.outdated += len(ahead) < len(turns.slots)
        self._plan, self._followed_s = turns.number, now
        newest = next(reversed(self._sent.values()), -math.inf) if self._sent else -math.inf
        self._turns = deque(frame for frame in ahead if frame > newest)

    def fallback_reason(self, now: float) -> str:
        """Return why the robot does not follow the server's turns; empty: it does."""
        if not self._agreement.made:
            return self._agreement.reason
        if now - self._followed_s > REPEAT_S:
            return f"the server has told no turns for {now - self._followed_s:.1f} s"
        return ""

    def wants(self, now: float, captured: float) -> bool:
        """Tell whether the frame that was ``captured`` then is sent. Called once per frame, in order."""
        self._clock.note_capture(captured)
        if self.fallback_reason(now):
            return True
        number = self._clock.number_of(captured)
        # a turn whose nearest frame did not come is that of the next frame, and of no later one
        while self._turns and self._turns[0] + 1 < number - 0.5:
            self._turns.popleft()
            self.missed += 1
        if not self._turns or self._turns[0] > number + 0.5:
            return False
        self._sent[captured] = self._turns.popleft()
        self.followed += 1
        if len(self._sent) > FRAMES:
            self._sent.popitem(last=False)
        return True

    def report(self, now: float, captured: float) -> Optional[PromiseReport]:
        """Return the report that goes with the frame ``captured`` then; None: it is no turn."""
        frame = self._sent.get(captured)
        return None if frame is None else PromiseReport(frame, *self._estimates(now))

    # ------------------------------------------------------------------ what is known

    def travelled(self, up_s: float, down_s: float) -> None:
        """A frame took so long from its capture to its arrival, and its result from the server's answer to its use."""
        self._ways.note(up_s, down_s)

    def compared(self, now: float, stale_s: float, drop: float) -> None:
        """Learn that a result carried for ``stale_s`` had lost ``drop``."""
        if math.isfinite(stale_s) and stale_s > 0 and 0 <= drop <= 1:
            self._drops.compared(now, stale_s, drop)

    def decide(self, situation: Situation) -> Decision:
        """See :class:`~edge_offload.manager.policy.Policy`: frames that are sent at all go to the server."""
        server = situation.forecasts.get(Mode.SERVER)
        why = "this robot has no server" if server is None else server.unavailable_reason
        if why:
            return Decision(Mode.LOCAL, why, self.name)
        return Decision(Mode.SERVER, self.describe(situation.now_s), self.name)

    def describe(self, now: float) -> str:
        """Describe the promise's state."""
        why = self.fallback_reason(now)
        if why:
            return f"on its own: {why}"
        note = f" ({self._agreement.note})" if self._agreement.note else ""
        return f"promised: at most {self.bound:g} by sharing the server{note}"

    def _estimates(self, now: float) -> Tuple[float, ...]:
        curve = self._drops.curve(now)
        interval_s = self._clock.interval_s
        slope, error = (min(max(0.0, one) * interval_s, MOST_SLOPE) for one in (curve.slope, curve.slope_error))
        flicker, noise = (min(1.0, max(0.0, one)) for one in (curve.intercept, curve.lasting))
        return (slope, error, *self._ways.summarize(), flicker, noise)
