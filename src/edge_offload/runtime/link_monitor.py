"""While a remote result is out: whether the link has stopped, so that the robot had better begin by itself.

And how busy the server is with others: asked once a second, never waited for.

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
from concurrent.futures import Future
from typing import Any, Callable, Deque, Iterator, Mapping, Optional, Tuple

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState

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
#: Seconds between two questions for the server's load, and seconds after which an answer says nothing any more.
LOAD_EVERY_S, STALE_S = 1.0, 5.0
#: A server that computes all the time: its queue has no mean, so something large but finite is taken.
BUSIEST = 0.95


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


class ServerLoad:
    """Keeps the latest answer. Thread-safe."""

    def __init__(self, client: Optional[Client]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._asked_s = self._told_s = -math.inf
        self._load = self._service_s = math.nan

    def step(self, now: float) -> None:
        """Ask if it is time to; returns at once."""
        if self._client is None:
            return
        with self._lock:
            if now - self._asked_s < LOAD_EVERY_S or self._client.state is not LinkState.READY:
                return
            self._asked_s = now
        self._client.request("status", {}, timeout_s=STALE_S).add_done_callback(lambda done: self._told(done, now))

    def _told(self, done: Future[Any], asked_s: float) -> None:
        if done.exception() is not None:
            return
        body: Mapping[str, Any] = done.result().body
        try:
            load, models = float(body["load"]), list(body["models"].values())
            counts = [int(model["count"]) for model in models]
            seconds = sum(count * float(model["mean_s"]) for count, model in zip(counts, models))
        except (KeyError, TypeError, ValueError, AttributeError, EdgeOffloadError):
            return
        with self._lock:
            self._told_s = asked_s
            self._load = min(1.0, max(0.0, load))
            self._service_s = seconds / sum(counts) if sum(counts) else 0.0

    def load(self, now: float) -> float:
        """Share of the server's last seconds spent computing, 0 to 1; nan while unknown."""
        with self._lock:
            return self._load if now - self._told_s < STALE_S else math.nan

    def waiting_s(self, now: float) -> float:
        """What a request that comes now may expect to wait (seconds); 0 while nothing is known.

        The mean of a queue with one server and equal service times (M/D/1): load / (2 (1 - load)) of one service time.
        Robots that wait for their answers before they ask again queue less than that.
        """
        load = self.load(now)
        if math.isnan(load):
            return 0.0
        load = min(load, BUSIEST)
        with self._lock:
            return load / (2 * (1 - load)) * self._service_s
