"""Frames under way at once: in which order they are, and when one more may be taken up beside them.

A frame that is taken up too early waits behind the one before it, and is old when its result comes; one that is taken
up too late leaves the server idle. So the next one is taken up when what takes longest on the way (the upload, the
server, the robot's own part) will be free for it. Knows nothing of torch or ROS.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, Iterator, List

from edge_offload.manager.tuning import ENOUGH, FRAMES
from edge_offload.mode import Mode
from edge_offload.timing import InferenceReport

#: The mode whose inferences overlap: nothing of one of them depends on another, and the server keeps their order.
TOGETHER = (Mode.SERVER,)
#: Why the inferences of the others do not; what is prepared before and interpreted after them does overlap.
ONE_AFTER_THE_OTHER = {
    Mode.LOCAL: "the robot computes one frame at a time",
    Mode.SPLIT: "a plan counts on the robot and the link for one frame",
    Mode.REPLAY: "calls are recognised by those before them; the next frame's input is sent meanwhile",
}


class TicketLock:
    """Ticket lock of frames: each has a ticket in their order, and waits for the frames before it. Thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._next = 0
        self._open: Dict[int, float] = {}  # ticket -> since when it is the first; inf while it is not

    @property
    def busy(self) -> bool:
        """Tell whether any frame has a ticket."""
        return bool(self._open)

    def take_ticket(self) -> int:
        """Return a ticket behind all others; :meth:`release_ticket` gives it up."""
        with self._changed:
            ticket, self._next = self._next, self._next + 1
            self._open[ticket] = math.inf if self._open else self._clock()
            return ticket

    def first_since_s(self, ticket: int) -> float:
        """Since when nothing is before ``ticket`` (on the clock); inf while something is."""
        with self._changed:
            return self._open.get(ticket, -math.inf)

    def wait_for_ticket(self, ticket: int) -> float:
        """Wait until nothing is before ``ticket``; returns the seconds that it took."""
        started_s = self._clock()
        with self._changed:
            self._changed.wait_for(lambda: self._open.get(ticket, 0.0) < math.inf)
        return self._clock() - started_s

    def release_ticket(self, ticket: int) -> None:
        """Let the frames behind ``ticket`` go on. Idempotent."""
        with self._changed:
            if self._open.pop(ticket, None) is None or not self._open:
                return
            first = next(iter(self._open))
            if math.isinf(self._open[first]):
                self._open[first] = self._clock()
                self._changed.notify_all()

    @contextlib.contextmanager
    def hold_ticket(self, ticket: int) -> Iterator[None]:
        """Wait until everything before ``ticket`` is done; give it up at the end."""
        try:
            self.wait_for_ticket(ticket)
            yield
        finally:
            self.release_ticket(ticket)


class FramesInFlight(TicketLock):
    """Calls of a network in their order; says when one more frame may be taken up, from what frames took.

    Args:
        most: frames that may be under way at once.
    """

    def __init__(self, most: int = 1) -> None:
        super().__init__()
        self._most = most
        self._lock = threading.Lock()
        self._way_s: Dict[Mode, float] = {}
        self._robot_s: Dict[Mode, float] = {}
        self._lead_s: Dict[Mode, float] = {}
        self._until_s: Dict[int, float] = {}
        self._arrivals_s: Deque[float] = deque(maxlen=FRAMES)

    def record_frame_arrival(self, now: float) -> None:
        """Record that a frame arrived at ``now`` (seconds), whether it is computed or superseded by a newer one."""
        with self._lock:
            self._arrivals_s.append(now)

    def queueing_s(self, mode: Mode, latency_s: float, error_s: float) -> float:
        """Return how long frames wait to be taken up if all of them run in ``mode`` (seconds); 0 while unknown.

        The mean of a queue whose service times vary, and whose arrivals do not (Kingman's formula). Where frames come
        faster than they are taken up, the newest is taken up: it has waited for half of an interval in the mean.

        Args:
            mode: of the frames.
            latency_s: of one frame without waiting.
            error_s: standard deviation of that.
        """
        with self._lock:
            arrivals_s = list(self._arrivals_s)
        if len(arrivals_s) < ENOUGH or arrivals_s[-1] <= arrivals_s[0]:
            return 0.0
        interval_s = (arrivals_s[-1] - arrivals_s[0]) / (len(arrivals_s) - 1)
        part_s = self.part_s(mode)
        service_s = latency_s if self._most == 1 or math.isnan(part_s) else part_s
        if not 0 < service_s < math.inf:
            return 0.0
        load, most_s = service_s / interval_s, interval_s / 2
        if load >= 1:
            return most_s
        return min(most_s, load / (1 - load) * (error_s / latency_s) ** 2 / 2 * service_s)

    def learn_costs(self, report: InferenceReport) -> None:
        """Learn a whole frame's costs, unless it ran in another mode than requested."""
        if report.fallback_reason or report.hedged or report.mode is Mode.LOCAL:
            return
        stages = report.stages_s
        robot_s = stages["compute_robot"] + stages["encode"] + stages["decode"]
        with self._lock:
            measured = (self._way_s, report.part_s), (self._robot_s, robot_s), (self._lead_s, report.lead_s)
            for averages, seconds in measured:
                before = averages.get(report.mode, seconds)
                averages[report.mode] = before + (seconds - before) / ENOUGH

    def part_s(self, mode: Mode) -> float:
        """Return the longest part of a frame in ``mode`` (seconds), which spaces frames; nan while unknown."""
        with self._lock:
            return max(self._way_s.get(mode, math.nan), self._robot_s.get(mode, math.nan))

    def mark_started(self, ticket: int, until_s: float) -> None:
        """Record that the result of ``ticket`` is expected at ``until_s`` (seconds); -inf: the robot computes it."""
        with self._lock:
            if ticket in self._open:
                self._until_s[ticket] = until_s

    def release_ticket(self, ticket: int) -> None:
        """Let the frames behind ``ticket`` go on: its result is there, or there will be none."""
        super().release_ticket(ticket)
        with self._lock:
            self._until_s.pop(ticket, None)

    def frame_wait_s(self, now: float, mode: Mode, taken_s: List[float]) -> float:
        """Return the seconds until one more frame is taken up; inf: when one has ended.

        While one is late, or the robot computes by itself, no other is begun: it would wait for the same.

        Args:
            now: seconds.
            mode: in force.
            taken_s: when the frames that are under way were taken up, in their order.
        """
        if not taken_s:
            return 0.0
        part_s = self.part_s(mode)
        if len(taken_s) >= self._most or mode is Mode.LOCAL or math.isnan(part_s):
            return math.inf
        with self._lock:
            if any(until_s < now for until_s in self._until_s.values()):
                return math.inf
        free_s = taken_s[-1] + part_s
        with self._changed:
            if self._open and mode not in TOGETHER:  # those that wait begin when the one before them has ended
                turn_s = next(iter(self._open.values())) + part_s * len(self._open)
                free_s = max(free_s, turn_s - self._lead_s.get(mode, 0.0))
        return max(0.0, free_s - now)

    def describe(self) -> str:
        """Describe how many frames are under way at once, and why not more."""
        if self._most == 1:
            return "1 frame at a time"
        why = "; ".join(f"{mode}: {reason}" for mode, reason in ONE_AFTER_THE_OTHER.items())
        return f"up to {self._most} frames; inferences one after the other in {why}"
