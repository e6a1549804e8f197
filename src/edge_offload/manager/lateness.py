"""When a remote result is late, when the robot begins by itself, and when an attempt is given up: the one place.

A result is late when it exceeds its forecast by more than all but one frame in fifty did, or by as long as the robot
takes by itself. While there is no forecast, the latest replies tell how long one is waited for. A link that dies tells
earlier: bytes are not acknowledged, pings are not answered. How long a link that is well may be quiet is learnt from
the frames that came through. What makes progress, but so little that the rest of the upload alone would take longer
than the robot does, counts as stopped. Knows nothing of torch or ROS.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, ContextManager, Deque, Dict, Hashable, NamedTuple, Optional, Tuple

from edge_offload.link.estimate.estimator import BACKLOG_BYTES
from edge_offload.link.transport.attention import Attention
from edge_offload.manager.forecast import Forecast
from edge_offload.manager.tuning import CHANGE, ENOUGH, FRAMES, GIVE_UP_S, POLL_S, SILENCE_S


@dataclass(frozen=True)
class TimeoutLimits:
    """Bounds on the wait for a reply of which there is no forecast.

    Attributes:
        factor: multiple of the recent round trip that a reply may take.
        slack_s: added to it, so that a few milliseconds of jitter are no fault on a fast link (seconds).
        floor_s, cap_s: the wait is never shorter or longer than this (seconds).
        first_s: the wait while nothing is known yet (seconds).
    """

    factor: float = 3.0
    slack_s: float = 0.05
    floor_s: float = 0.1
    cap_s: float = 5.0
    first_s: float = 5.0


class Budget(NamedTuple):
    """Time limits of a remote attempt.

    Attributes:
        use_s: how long its result is of use (seconds): a server refuses what cannot be ready by then.
        give_up_s: when it fails if nothing has come (seconds).
        local_s: what the robot takes by itself (seconds); 0 while that is unknown.
    """

    use_s: float
    give_up_s: float
    local_s: float = 0.0


class Tail:
    """The time of the slowest of the latest frames but one in fifty. One thread at a time."""

    def __init__(self) -> None:
        self._seconds: Deque[float] = deque(maxlen=FRAMES)

    def add_seconds(self, seconds: float) -> None:
        """Add the seconds of one more frame."""
        self._seconds.append(seconds)

    @property
    def limit_s(self) -> float:
        """Return that time in seconds; inf for fewer than :data:`.ENOUGH` frames."""
        if len(self._seconds) < ENOUGH:
            return math.inf
        ordered = sorted(self._seconds)
        return ordered[-1 - len(ordered) // FRAMES]


class Patience:
    """Predicts round trips from the latest ones and derives the wait for the next. Thread-safe."""

    def __init__(self, limits: Optional[TimeoutLimits] = None, samples: int = 16) -> None:
        self.limits = limits or TimeoutLimits()
        self._recent: Deque[float] = deque(maxlen=samples)
        self._lock = threading.Lock()

    def add_round_trip(self, round_trip_s: float) -> None:
        """Add the time from a call to its usable outputs (seconds). Late replies count too."""
        with self._lock:
            self._recent.append(round_trip_s)

    def expected_s(self) -> Tuple[float, float]:
        """Median and maximum of the latest round trips (seconds); inf while there are none."""
        with self._lock:
            ordered = sorted(self._recent)
        return (ordered[len(ordered) // 2], ordered[-1]) if ordered else (math.inf, math.inf)

    def reply_wait_s(self, deadline_s: Optional[float] = None, local_s: float = 0.0) -> float:
        """Return the longest wait for the next reply (seconds), within the deadline as :func:`due_s` takes it."""
        limits, (expected_s, slowest_s) = self.limits, self.expected_s()
        wait_s = limits.first_s
        if math.isfinite(expected_s):
            wait_s = max(limits.floor_s, limits.factor * expected_s + limits.slack_s, slowest_s)
        return min(wait_s, limits.cap_s, due_s(deadline_s, local_s, expected_s, slowest_s))


def due_s(deadline_s: Optional[float], local_s: float, expected_s: float, slowest_s: float) -> float:
    """Return when the robot must begin by itself to be in time (seconds from now).

    inf without a deadline, or where that is too soon for a normal reply while the server is the one that can be in
    time, or is the faster one anyway (a slow robot).

    Args:
        deadline_s: when the result is due, seconds from now.
        local_s: what the local computation takes (seconds).
        expected_s: what a reply usually takes (seconds).
        slowest_s: what it takes at most when all is well (seconds).
    """
    if deadline_s is None:
        return math.inf
    room_s = max(0.0, deadline_s - local_s)
    if room_s < slowest_s < math.inf and expected_s <= max(deadline_s, local_s):
        return math.inf
    return room_s


class Watch:
    """Over the link while one remote frame is out.

    Args:
        limit_s: longest silence of a link that is well; inf while that is unknown.
        local_s: what the robot takes by itself.

    Attributes:
        longest_s: for how long the link has been quiet at most.
    """

    def __init__(self, limit_s: float, local_s: float) -> None:
        self._limit_s, self._local_s = max(SILENCE_S, math.exp(CHANGE) * limit_s), local_s
        self._mark: Optional[Tuple[float, int]] = None
        self.longest_s = 0.0

    def has_stopped(self, now: float, quiet_s: float, queued_bytes: int, acked_bytes: int) -> bool:
        """Tell whether the robot should begin.

        Args:
            now: seconds, monotonic.
            quiet_s: for how long a sign of life has been overdue.
            queued_bytes: bytes given to the connection so far.
            acked_bytes: bytes acknowledged by the next hop so far.
        """
        self.longest_s = max(self.longest_s, quiet_s)
        return quiet_s > self._limit_s or self._crawls(now, queued_bytes, acked_bytes)

    def next_check_s(self, quiet_s: float) -> float:
        """Return the seconds until the next call of :meth:`has_stopped`; short while bytes are in flight."""
        return POLL_S if self._mark is not None else max(POLL_S, self._limit_s - quiet_s)

    def _crawls(self, now: float, queued_bytes: int, acked_bytes: int) -> bool:
        backlog = queued_bytes - acked_bytes
        if backlog < BACKLOG_BYTES:
            self._mark = None
            return False
        if self._mark is None:
            self._mark = (now, acked_bytes)
        since_s, before = self._mark
        if now - since_s < self._limit_s:
            return False
        pace = (acked_bytes - before) / (now - since_s)
        return backlog > pace * self._local_s


class FrameLateness:
    """One frame's: from the beginning of its remote attempt until the first result. A context, while that is out.

    Attributes:
        started_s: when the attempt started (monotonic seconds).
        budget: of the attempt.
        watch: over the link; None where nobody looks.
    """

    def __init__(
        self,
        owner: Lateness,
        forecast: Forecast,
        started_s: float,
        limits_s: Tuple[float, float, float],
        budget: Budget,
        behind: Optional[Callable[[], Tuple[float, float]]] = None,
        watch: Optional[Watch] = None,
    ) -> None:
        self.started_s, self.budget, self.watch = started_s, budget, watch
        self._owner, self._forecast, self._behind = owner, forecast, behind
        self._usual_s, self._slack_s, self._due_s = limits_s
        self._attention: Optional[Attention] = None
        self._attending = contextlib.ExitStack()

    def __enter__(self) -> FrameLateness:
        if self.watch is not None and self._owner.attend is not None:
            self._attention = self._attending.enter_context(self._owner.attend())
        return self

    def __exit__(self, *_error: object) -> None:
        self._attending.close()

    @property
    def doubtful_at(self) -> float:
        """Return when no other frame is begun while this one is out (monotonic seconds)."""
        return self.started_s + self._usual_s + self._slack_s / 2

    def hedge_at(self) -> float:
        """Return when the robot begins by itself (monotonic seconds); it moves while earlier frames are out."""
        return self._hedge_at()[0]

    def next_check_at(self) -> float:
        """Return the earliest time at which :meth:`hedge_at` or :meth:`link_stopped` may change (monotonic seconds)."""
        hedge_at, moves = self._hedge_at()
        now, check_at = time.monotonic(), hedge_at
        if moves:
            check_at = min(check_at, now + POLL_S)
        if self._attention is not None and self.watch is not None:
            check_at = min(check_at, now + self.watch.next_check_s(self._attention.quiet_s(now)))
        return check_at

    def _hedge_at(self) -> Tuple[float, bool]:
        """Return when the robot begins by itself, and whether that still moves."""
        since_s, part_s = (-math.inf, math.nan) if self._behind is None else self._behind()
        since_s -= self.started_s
        usual_s = self._usual_s
        if since_s > 0:
            usual_s = max(usual_s, since_s + (usual_s if math.isnan(part_s) else part_s))
        return self.started_s + min(usual_s + self._slack_s, self._due_s), since_s == math.inf

    def link_stopped(self) -> bool:
        """Tell whether the link has stopped, so that waiting is of no use."""
        attention, now = self._attention, time.monotonic()
        if attention is None or self.watch is None:
            return False
        return self.watch.has_stopped(now, attention.quiet_s(now), attention.given, attention.acked)

    def note_result(self, seconds: float) -> None:
        """Learn from the remote result, in time or not, which took ``seconds``.

        The silences before it were none of a link that is dead.
        """
        silence_s = math.nan if self.watch is None else self.watch.longest_s
        if self._attention is not None:
            silence_s = max(silence_s, self._attention.longest_s, self._attention.quiet_s(time.monotonic()))
        self._owner.learn_result(self._forecast.mode, seconds, seconds - self._forecast.latency_s, silence_s)


class Lateness:
    """Decides for every remote frame; learns from those that came. Thread-safe.

    Args:
        limits: bounds on waits of which there is no forecast.
        hedging: whether the robot begins when a result is late by its forecast; else when none has come for long.
        attend: signs of life of the link (:meth:`.Client.attend`); None: nobody looks.
    """

    def __init__(
        self,
        limits: Optional[TimeoutLimits] = None,
        hedging: bool = True,
        attend: Optional[Callable[[], ContextManager[Attention]]] = None,
    ) -> None:
        self.attend = attend
        self._limits, self._hedging = limits, hedging
        self._patience: Dict[Hashable, Patience] = {}
        self._errors: Dict[Hashable, Tail] = {}
        self._silences = Tail()
        self._lock = threading.Lock()

    def limit_attempt(self, key: Hashable, local_s: float, deadline_s: Optional[float] = None) -> Budget:
        """Return the time limits of an attempt without a hedge: the caller computes locally after it."""
        wait_s = self._get_patience(key).reply_wait_s(deadline_s, local_s)
        return Budget(wait_s, wait_s, local_s)

    def limit_frame(
        self,
        forecast: Forecast,
        local_s: float,
        deadline_s: Optional[float] = None,
        now: Optional[float] = None,
        watched: bool = False,
        behind: Optional[Callable[[], Tuple[float, float]]] = None,
    ) -> FrameLateness:
        """Return the time limits of a frame whose remote attempt starts.

        Args:
            forecast: of its mode.
            local_s: what the robot takes by itself (seconds); 0 while that is unknown.
            deadline_s: when its result is due, seconds from now.
            now: monotonic seconds.
            watched: whether the robot begins, too, when the link is seen to have stopped.
            behind: since when nothing of the robot's own is before it (monotonic; inf: something is), and what takes
                longest of a frame (seconds; nan while that is unknown).
        """
        now = time.monotonic() if now is None else now
        patience = self._get_patience(forecast.mode)
        wait_s = patience.reply_wait_s()
        usual_s, slowest_s = patience.expected_s()
        by_forecast = self._hedging and local_s > 0 and forecast.measured
        if by_forecast:
            usual_s, slowest_s = forecast.latency_s, forecast.latency_s + forecast.error_s
        due = due_s(deadline_s, local_s, usual_s, slowest_s)
        usual_s = usual_s if math.isfinite(usual_s) else 0.0
        slack_s = self._slack_s(forecast, local_s) if by_forecast else max(0.0, wait_s - usual_s)
        # what a rival sees to, the server need not know
        use_s = wait_s if by_forecast else min(wait_s, due)
        with self._lock:
            watch = Watch(self._silences.limit_s, local_s) if watched and local_s > 0 else None
        return FrameLateness(
            self, forecast, now, (usual_s, slack_s, due), self._raced(use_s, local_s), behind, watch
        )  # fmt: skip

    def limit_probe(self, forecast: Forecast, local_s: float, now: Optional[float] = None) -> FrameLateness:
        """Return the time limits of a probe: the robot computes the frame in any case, and starts at once."""
        now = time.monotonic() if now is None else now
        budget = self._raced(self._get_patience(forecast.mode).reply_wait_s(), local_s)
        return FrameLateness(self, forecast, now, (0.0, 0.0, 0.0), budget)

    def learn_result(
        self, key: Hashable, seconds: float, error_s: float = math.nan, silence_s: float = math.nan
    ) -> None:
        """Learn from the time of a remote result (seconds).

        Args:
            key: of its mode.
            seconds: from the call to usable outputs, without what was spent behind the robot's own frames.
            error_s: how much later that is than its forecast; nan: there was none.
            silence_s: for how long the link was quiet at most meanwhile; nan: nobody looked.
        """
        self._get_patience(key).add_round_trip(seconds)
        with self._lock:
            if not math.isnan(error_s):
                self._errors.setdefault(key, Tail()).add_seconds(error_s)
            if not math.isnan(silence_s):
                self._silences.add_seconds(silence_s)

    def _get_patience(self, key: Hashable) -> Patience:
        with self._lock:
            return self._patience.setdefault(key, Patience(self._limits))

    def _slack_s(self, forecast: Forecast, local_s: float) -> float:
        """Return by how many seconds a result may exceed its forecast."""
        with self._lock:
            tail_s = self._errors.get(forecast.mode, Tail()).limit_s
        slack_s = POLL_S + max(0.0, tail_s if math.isfinite(tail_s) else forecast.latency_s)
        # by then the robot could have had its own result: whoever waits longer has chosen the wrong mode
        return min(slack_s, max(POLL_S, local_s))

    @staticmethod
    def _raced(use_s: float, local_s: float) -> Budget:
        return Budget(use_s, max(GIVE_UP_S, 2 * use_s), local_s)
