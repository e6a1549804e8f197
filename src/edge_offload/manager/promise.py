"""Robot's side of a promise of accuracy: requests it, and chooses the frames that go to the server.

The promise bounds the accuracy that sharing the server costs. The server sends slots as frame numbers
(:class:`~edge_offload.protocol.promises.SlotSchedule`). For each slot the frame with the nearest capture is sent.
Frames are numbered by capture time, so that a frame that the camera dropped does not shift the others. After
:data:`.REPEAT_S` without a schedule the robot sends every frame again. Pure: times come in as arguments (monotonic
seconds).
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

#: Loss of accuracy of carried results, before a robot has measured it. ``UNKNOWN`` is for tasks without a measured
#: curve. ``people`` is the mean curve of kapao_vtest on frames 0 to 399 of the sample video. ``scene`` is that of
#: SCONet in the synthetic street 11, up to 0.8 s. The curves adapt slowly (600 s): a promise is about the mean of a
#: session, of which the latest frames say little. The loss of any stale result differs from street to street, and no
#: schedule changes it (``level_error``). Noise between people's boxes averages out sooner than that between streets
#: (``lasting``).
UNKNOWN = Habits(0.1, 0.05, 0.1, 0.1, intercept_s=600.0, slope_s=600.0, settle_s=SETTLE_S, mean_gain=0.0, alike=4.0)
HABITS = {
    "people": replace(UNKNOWN, intercept=0.18, intercept_error=0.02, slope=0.13, slope_error=0.015, lasting=0.75),
    "scene": replace(
        UNKNOWN, intercept=0.03, intercept_error=0.002, slope=0.07, slope_error=0.004, noise=0.06, level_error=0.05
    ),
}


class _FrameClock:
    """Numbers frames by their capture times; number 0 and the interval are fixed by :meth:`set_base`.

    Attributes:
        interval_s: interval between frames at the last :meth:`set_base`; nan before the first.
    """

    def __init__(self) -> None:
        self._times: Deque[float] = deque(maxlen=ENOUGH + 1)
        self.interval_s, self._base_s = math.nan, 0.0

    def note_capture(self, captured: float) -> None:
        """Add the capture time of a frame."""
        self._times.append(captured)

    def set_base(self, now: float) -> float:
        """Make the latest frame number 0, and fix the interval; return the age of that frame in seconds."""
        self.interval_s, self._base_s = self.measure_interval(), self._times[-1]
        return max(0.0, now - self._base_s)

    def number_of(self, captured: float) -> float:
        """Return the number of a frame by its capture time; a fraction unless the camera's pace is even."""
        return (captured - self._base_s) / self.interval_s

    def measure_interval(self) -> float:
        """Return the median of the latest :data:`.ENOUGH` intervals in seconds; nan for fewer."""
        if len(self._times) <= ENOUGH:
            return math.nan
        times = list(self._times)
        return statistics.median(later - earlier for earlier, later in zip(times, times[1:]))


class _TravelTimes:
    """Travel times of the latest frames to the server, and of their results back (seconds)."""

    def __init__(self) -> None:
        self._ups: Deque[float] = deque(maxlen=FRAMES)
        self._downs: Deque[float] = deque(maxlen=FRAMES)

    def note(self, up_s: float, down_s: float) -> None:
        """Add the times of one frame; ignored if either is not finite."""
        if math.isfinite(up_s) and math.isfinite(down_s):
            self._ups.append(min(max(0.0, up_s), MOST_WAY_S))
            self._downs.append(min(max(0.0, down_s), MOST_WAY_S))

    def summarize(self) -> Tuple[float, float, float]:
        """Return a high quantile of the time up, the median down and the median up (seconds); 0 before any."""
        ups = sorted(self._ups)
        high_up = ups[int((1 - NOTABLE) * (len(ups) - 1))] if ups else 0.0
        down, usual_up = (statistics.median(times) if times else 0.0 for times in (self._downs, ups))
        return high_up, down, usual_up


@dataclass
class _Agreement:
    """State of the promise: requested, made, or neither until ``retry_at_s``; ``reason``: why it is not made."""

    made: bool = False
    requested: bool = False
    retry_at_s: float = -math.inf
    reason: str = "no promise has been requested yet"
    note: str = ""


@dataclass
class PromisePolicy:
    """Policy of one network under a promise. Use it from one thread at a time.

    Args:
        bound: largest loss of accuracy by sharing the server: :data:`.LEAST_BOUND` to 1.
        batched: whether results may differ in the last digits from those of frames computed alone.
        name: of the policy, in decisions.
        habits: the loss of results with staleness, before it was measured.

    Attributes:
        missed: slots without a frame.
        followed: frames sent in a slot.
        outdated: schedules that were ignored as older, or in part as too far from the present.

    Raises:
        BadInput: ``bound`` is out of range.
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
        self._slots: Deque[int] = deque()  # frame numbers to come
        self._schedule_number, self._followed_s = -1, -math.inf
        self._sent: OrderedDict[float, int] = OrderedDict()  # capture time -> slot
        self._agreement = _Agreement()
        self.missed = self.followed = self.outdated = 0

    # requests and their answers

    def make_request(self, now: float, handle: int) -> Optional[PromiseRequest]:
        """Return the request to send now; None: none is due.

        Report the response to :meth:`record_admission` or :meth:`end_promise`.

        Args:
            now: the time.
            handle: handle of the model opened for the frames' shape.
        """
        interval_s = self._clock.measure_interval()
        if self._agreement.made and abs(interval_s / self._clock.interval_s - 1) > NOTABLE:
            self.end_promise(now, f"the camera's pace has changed to {1 / interval_s:.1f} Hz", retry_s=0.0)
        due = not self._agreement.made and not self._agreement.requested and now >= self._agreement.retry_at_s
        low, high = INTERVAL_RANGE_S
        if not due or not low <= interval_s <= high:
            return None
        self._agreement.requested = True
        age = min(self._clock.set_base(now), MOST_WAY_S)
        self._slots.clear()
        self._schedule_number = -1
        return PromiseRequest(handle, self.bound, interval_s, self.batched, 0, age, *self._estimates(now))

    def record_admission(self, now: float, note: str = "") -> None:
        """Record that the server has made the promise; ``note``: why its batches are not larger."""
        self._agreement, self._followed_s = _Agreement(made=True, note=note), now

    def end_promise(self, now: float, why: str, retry_s: float = RECENT_S) -> None:
        """Drop the promise: it was refused or withdrawn, or the connection broke. Retry after ``retry_s`` seconds."""
        self._agreement = _Agreement(retry_at_s=now + retry_s, reason=why)
        self._slots.clear()

    # slots of the server's schedule

    def follow_schedule(self, now: float, schedule: SlotSchedule) -> None:
        """Take the slots of a received schedule. Ignore an older schedule, and slots far from the present."""
        if not self._agreement.made or schedule.number <= self._schedule_number:
            self.outdated += self._agreement.made
            return
        frame_now = self._clock.number_of(now)
        # frame numbers further away rest on another base
        near = [frame for frame, _ in schedule.slots if abs(frame - frame_now) * self._clock.interval_s <= GIVE_UP_S]
        self.outdated += len(near) < len(schedule.slots)
        self._schedule_number, self._followed_s = schedule.number, now
        newest = next(reversed(self._sent.values()), -math.inf) if self._sent else -math.inf
        self._slots = deque(frame for frame in near if frame > newest)

    def fallback_reason(self, now: float) -> str:
        """Return why the robot sends every frame, not only those of its slots; empty: it follows its slots."""
        if not self._agreement.made:
            return self._agreement.reason
        if now - self._followed_s > REPEAT_S:
            return f"the server has sent no slots for {now - self._followed_s:.1f} s"
        return ""

    def wants_frame(self, now: float, captured: float) -> bool:
        """Return True if the frame captured at ``captured`` is to be sent. Call it once per frame, in order."""
        self._clock.note_capture(captured)
        if self.fallback_reason(now):
            return True
        number = self._clock.number_of(captured)
        # if the nearest frame of a slot was dropped, the next one may use the slot, but no later one
        while self._slots and self._slots[0] + 1 < number - 0.5:
            self._slots.popleft()
            self.missed += 1
        if not self._slots or self._slots[0] > number + 0.5:
            return False
        self._sent[captured] = self._slots.popleft()
        self.followed += 1
        if len(self._sent) > FRAMES:
            self._sent.popitem(last=False)
        return True

    def report_frame(self, now: float, captured: float) -> Optional[PromiseReport]:
        """Return the report to send with the frame captured at ``captured``; None: it has no slot."""
        frame = self._sent.get(captured)
        return None if frame is None else PromiseReport(frame, *self._estimates(now))

    # measurements and decisions

    def add_travel_times(self, up_s: float, down_s: float) -> None:
        """Record travel times (s): a frame's from capture to arrival, and its result's from the response to its use."""
        self._ways.note(up_s, down_s)

    def add_comparison(self, now: float, stale_s: float, drop: float) -> None:
        """Record that a result carried for ``stale_s`` seconds had lost ``drop`` of its accuracy (0 to 1)."""
        if math.isfinite(stale_s) and stale_s > 0 and 0 <= drop <= 1:
            self._drops.add_comparison(now, stale_s, drop)

    def decide(self, situation: Situation) -> Decision:
        """Implement :class:`~edge_offload.manager.policy.Policy`: frames that are sent at all go to the server."""
        server = situation.forecasts.get(Mode.SERVER)
        why = "this robot has no server" if server is None else server.unavailable_reason
        if why:
            return Decision(Mode.LOCAL, why, self.name)
        return Decision(Mode.SERVER, self.describe(situation.now_s), self.name)

    def describe(self, now: float) -> str:
        """Return the state of the promise in words."""
        why = self.fallback_reason(now)
        if why:
            return f"on its own: {why}"
        note = f" ({self._agreement.note})" if self._agreement.note else ""
        return f"promised: at most {self.bound:g} by sharing the server{note}"

    def _estimates(self, now: float) -> Tuple[float, ...]:
        """Return the fields of :class:`~.PromiseReport` from ``slope`` on; slopes are per frame."""
        curve = self._drops.curve(now)
        interval_s = self._clock.interval_s
        slope, error = (min(max(0.0, one) * interval_s, MOST_SLOPE) for one in (curve.slope, curve.slope_error))
        flicker, noise = (min(1.0, max(0.0, one)) for one in (curve.intercept, curve.lasting))
        return (slope, error, *self._ways.summarize(), flicker, noise)
