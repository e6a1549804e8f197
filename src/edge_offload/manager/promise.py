"""A robot that was promised a bound on what sharing the server may cost it: which of its frames go there, and when.

The server says which frames are its turns (:class:`~edge_offload.protocol.promises.SlotSchedule`); the frame goes whose
capture is nearest. Frames are numbered by time, so that one that the camera has dropped shifts none of the others.
Without a word from the server for :data:`SILENT_S` the robot is on its own again. Pure: time comes in as an argument,
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

#: Without turns from the server for so long it counts as silent (seconds).
SILENT_S = 0.5
#: Seconds until a promise that was refused, or has ended, is asked for again.
AGAIN_S = 5.0
#: Frames that the camera's pace is known by; the pace, when it has changed by this share, is told by asking anew.
PACED, OTHER_PACE = 8, 0.05
#: Transfers that the way to the server and back is known by, and the share of them that takes no longer than is said.
WAYS, NEARLY_ALL = 64, 0.95
#: A turn whose nearest frame did not come is given to the next one, at most so many frames later.
LATE = 1.5
#: Turns further away than this are of another time (seconds).
FAR_S = 10.0
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


@dataclass
class PromisePolicy:
    """Of one network. One thread at a time.

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
        self._times: Deque[float] = deque(maxlen=PACED + 1)
        self._interval_s = math.nan
        self._base_s = 0.0
        self._ups: Deque[float] = deque(maxlen=WAYS)
        self._downs: Deque[float] = deque(maxlen=WAYS)
        self._drops = DropEstimator(self.habits)
        self._turns: Deque[int] = deque()
        self._plan, self._told_s = -1, -math.inf
        self._sent: OrderedDict[float, int] = OrderedDict()
        self._promised = self._asking = False
        self._ask_s = -math.inf
        self._why, self._note = "no promise has been asked for yet", ""
        self.missed = self.followed = self.outdated = 0

    # ------------------------------------------------------------------ asking

    def ask(self, now: float, handle: int) -> Optional[PromiseRequest]:
        """What to ask the server for now; None: nothing. An answer is :meth:`admitted` or :meth:`ended`.

        Args:
            now: when.
            handle: of the model, open for the frames' shape.
        """
        interval_s = self._pace()
        if self._promised and abs(interval_s / self._interval_s - 1) > OTHER_PACE:
            self.ended(now, f"the camera's pace has changed to {1 / interval_s:.1f} Hz", again_s=0.0)
        low, high = INTERVAL_RANGE_S
        if self._promised or self._asking or now < self._ask_s or not low <= interval_s <= high:
            return None
        self._asking = True
        self._interval_s, self._base_s = interval_s, self._times[-1]
        self._turns.clear()
        self._plan = -1
        estimates = self._estimates(now)
        age = min(max(0.0, now - self._base_s), MOST_WAY_S)
        return PromiseRequest(handle, self.bound, interval_s, self.batched, 0, age, *estimates)

    def admitted(self, now: float, note: str = "") -> None:
        """The server has made the promise; ``note``: why its batches are no larger."""
        self._asking, self._promised, self._told_s, self._why, self._note = False, True, now, "", note

    def ended(self, now: float, why: str, again_s: float = AGAIN_S) -> None:
        """There is no promise (any more): it was refused, taken back, or the connection broke."""
        self._asking = self._promised = False
        self._turns.clear()
        self._ask_s, self._why = now + again_s, why

    # ------------------------------------------------------------------ following

    def told(self, now: float, turns: SlotSchedule) -> None:
        """The server has told its turns. Those of an older plan, or of another time, are not followed."""
        if not self._promised or turns.number <= self._plan:
            self.outdated += self._promised
            return
        here = self._number(now)
        ahead = [frame for frame, _ in turns.slots if abs(frame - here) * self._interval_s <= FAR_S]
        self.outdated += len(ahead) < len(turns.slots)
        self._plan, self._told_s = turns.number, now
        newest = next(reversed(self._sent.values()), -math.inf) if self._sent else -math.inf
        self._turns = deque(frame for frame in ahead if frame > newest)

    def alone(self, now: float) -> str:
        """Why the robot is on its own, in words; empty: it follows the server's turns."""
        if not self._promised:
            return self._why
        if now - self._told_s > SILENT_S:
            return f"the server has told no turns for {now - self._told_s:.1f} s"
        return ""

    def wants(self, now: float, captured: float) -> bool:
        """Whether the frame that was captured then is to be sent. Called once for each frame, in their order."""
        self._times.append(captured)
        if self.alone(now):
            return True
        number = self._number(captured)
        while self._turns and self._turns[0] < number - LATE:
            self._turns.popleft()
            self.missed += 1
        if not self._turns or self._turns[0] > number + 0.5:
            return False
        self._sent[captured] = self._turns.popleft()
        self.followed += 1
        if len(self._sent) > WAYS:
            self._sent.popitem(last=False)
        return True

    def report(self, now: float, captured: float) -> Optional[PromiseReport]:
        """What to say to the server with the frame that was captured then; None: it is no turn."""
        frame = self._sent.get(captured)
        return None if frame is None else PromiseReport(frame, *self._estimates(now))

    # ------------------------------------------------------------------ what is known

    def travelled(self, up_s: float, down_s: float) -> None:
        """A frame took so long from its capture to its arrival, and its result from the server's answer to its use."""
        if math.isfinite(up_s) and math.isfinite(down_s):
            self._ups.append(min(max(0.0, up_s), MOST_WAY_S))
            self._downs.append(min(max(0.0, down_s), MOST_WAY_S))

    def compared(self, now: float, stale_s: float, drop: float) -> None:
        """What was carried along for ``stale_s`` had lost ``drop`` when the network's own result came."""
        if math.isfinite(stale_s) and stale_s > 0 and 0 <= drop <= 1:
            self._drops.compared(now, stale_s, drop)

    def decide(self, situation: Situation) -> Decision:
        """See :class:`~edge_offload.manager.policy.Policy`: frames that are sent at all go to the server."""
        server = situation.forecasts.get(Mode.SERVER)
        why = "this robot has no server" if server is None else server.unavailable_reason
        if why:
            return Decision(Mode.LOCAL, why, self.name)
        return Decision(Mode.SERVER, self.words(situation.now_s), self.name)

    def words(self, now: float) -> str:
        """How things stand, for people."""
        why = self.alone(now)
        if why:
            return f"on its own: {why}"
        note = f" ({self._note})" if self._note else ""
        return f"promised: at most {self.bound:g} by sharing the server{note}"

    def _number(self, captured: float) -> float:
        return (captured - self._base_s) / self._interval_s

    def _pace(self) -> float:
        if len(self._times) <= PACED:
            return math.nan
        times = list(self._times)
        return statistics.median(later - earlier for earlier, later in zip(times, times[1:]))

    def _estimates(self, now: float) -> Tuple[float, ...]:
        told = self._drops.curve(now)
        slope, error = (min(max(0.0, one) * self._interval_s, MOST_SLOPE) for one in (told.slope, told.slope_error))
        flicker, noise = (min(1.0, max(0.0, one)) for one in (told.intercept, told.lasting))
        ups, downs = sorted(self._ups), sorted(self._downs)
        up = ups[int(NEARLY_ALL * (len(ups) - 1))] if ups else 0.0
        down, usual = (statistics.median(ways) if ways else 0.0 for ways in (downs, ups))
        return slope, error, up, down, usual, flicker, noise
