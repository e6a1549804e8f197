"""How long a frame waits for the server before the robot computes by itself."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Deque, Optional


@dataclass(frozen=True)
class TimeoutLimits:
    """Bounds on the wait for a reply.

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


class TimeoutPolicy:
    """Predicts round trips from the latest ones and derives the wait. Thread-safe."""

    def __init__(self, limits: Optional[TimeoutLimits] = None, samples: int = 16) -> None:
        self.limits = limits or TimeoutLimits()
        self._recent: Deque[float] = deque(maxlen=samples)
        self._lock = threading.Lock()

    def note(self, round_trip_s: float) -> None:
        """A reply took this long, from the call to usable outputs (seconds). Late replies count too."""
        with self._lock:
            self._recent.append(round_trip_s)

    def expected_s(self) -> Optional[float]:
        """Median of the latest round trips (seconds); None while there are none."""
        with self._lock:
            ordered = sorted(self._recent)
        return ordered[len(ordered) // 2] if ordered else None

    def wait_s(self, deadline_s: Optional[float] = None, local_s: float = 0.0) -> float:
        """Longest wait for the next reply (seconds).

        Args:
            deadline_s: when the result is due, seconds from now.
            local_s: what the local computation takes (seconds).

        The wait leaves room for the local computation before the deadline, unless that room is too short for a normal
        reply while the server is the one that can be in time, or is the faster one anyway (a slow robot).
        """
        limits = self.limits
        with self._lock:
            slowest = max(self._recent) if self._recent else None
            expected = sorted(self._recent)[len(self._recent) // 2] if self._recent else None
        if expected is None or slowest is None:
            wait = limits.first_s
        else:
            wait = max(limits.floor_s, limits.factor * expected + limits.slack_s, slowest)
        if deadline_s is not None:
            room = max(deadline_s - local_s, 0.0)
            remote_is_best = (
                expected is not None and slowest is not None and room < slowest and expected <= max(deadline_s, local_s)
            )
            if not remote_is_best:
                wait = min(wait, room)
        return min(wait, limits.cap_s)
