"""While a remote result is out: whether the link has stopped, so that the robot had better begin by itself.

A forecast tells when a result is late. A link that dies tells earlier, to who asks: bytes are not acknowledged, pings
are not answered. How long a link that is well may be quiet is learned from the frames that came through. What makes
progress, but so little that the rest of the upload alone would take longer than the robot does, counts as stopped.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from typing import Callable, Deque, Iterator, Optional, Tuple

from edge_offload.link.transport.client import Client

#: Frames whose longest silence makes the limit, and the fewest of them.
FRAMES, FEWEST = 64, 8
#: The limit is this multiple of the silence that one frame in fifty exceeds, ...
FACTOR, ONE_IN = 1.5, 50
#: ... and no less than so many seconds, which is more than one ping.
LEAST_S = 0.04
#: Bytes under way below which their pace says nothing.
BACKLOG_BYTES = 4096
#: Seconds between two looks.
EVERY_S = 0.01


class Pauses:
    """How long the link is quiet in frames that come through. One thread at a time."""

    def __init__(self) -> None:
        self._longest: Deque[float] = deque(maxlen=FRAMES)

    def note(self, longest_s: float) -> None:
        """A result came; meanwhile the link had been quiet for so long at most (seconds)."""
        self._longest.append(longest_s)

    @property
    def limit_s(self) -> float:
        """A longer silence is none of a link that is well; inf while too little is known."""
        if len(self._longest) < FEWEST:
            return math.inf
        ordered = sorted(self._longest)
        return max(LEAST_S, FACTOR * ordered[-1 - len(ordered) // ONE_IN])


class Watch:
    """Over one remote frame.

    Args:
        limit_s: longest silence of a link that is well (:attr:`Pauses.limit_s`).
        local_s: what the robot takes by itself.
        note: told :attr:`longest_s` of a frame whose result came.

    Attributes:
        longest_s: for how long the link has been quiet at most.
    """

    def __init__(self, limit_s: float, local_s: float, note: Callable[[float], None] = lambda longest_s: None) -> None:
        self._limit_s, self._local_s, self._note = limit_s, local_s, note
        self._mark: Optional[Tuple[float, int]] = None
        self.longest_s = 0.0

    def stopped(self, now: float, quiet_s: float, given: int, acked: int) -> bool:
        """Whether the robot should begin.

        Args:
            now: seconds, monotonic.
            quiet_s: for how long a sign of life has been overdue.
            given: bytes given to the connection so far.
            acked: bytes acknowledged by the next hop so far.
        """
        self.longest_s = max(self.longest_s, quiet_s)
        return quiet_s > self._limit_s or self._crawls(now, given, acked)

    def came(self) -> None:
        """The remote result came, in time or not: the silences before it were none of a link that is dead."""
        self._note(self.longest_s)

    def _crawls(self, now: float, given: int, acked: int) -> bool:
        left = given - acked
        if left < BACKLOG_BYTES:
            self._mark = None
            return False
        if self._mark is None:
            self._mark = (now, acked)
        since_s, before = self._mark
        if now - since_s < self._limit_s:
            return False
        pace = (acked - before) / (now - since_s)
        return left > pace * self._local_s


class LinkMonitor:
    """Keeps a :class:`Watch` over every remote frame of a client. Thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pauses = Pauses()
        self._lock = threading.Lock()

    def _note(self, longest_s: float) -> None:
        with self._lock:
            self._pauses.note(longest_s)

    @contextlib.contextmanager
    def over(self, local_s: float) -> Iterator[Tuple[Watch, Callable[[], bool]]]:
        """A frame; yields its watch, and what says whether the link has stopped."""
        with self._lock:
            watch = Watch(self._pauses.limit_s, local_s, self._note)
        with self._client.attend() as attention:

            def stopped() -> bool:
                now = time.monotonic()
                return watch.stopped(now, attention.quiet_s(now), attention.given, attention.acked)

            yield watch, stopped
        watch.longest_s = max(watch.longest_s, attention.longest_s)
