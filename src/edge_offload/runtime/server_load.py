"""How busy the server is with others: asked once a second, never waited for."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from typing import Any, Mapping, Optional

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState

#: Seconds between two questions, and seconds after which an answer says nothing any more.
EVERY_S, STALE_S = 1.0, 5.0
#: A server that computes all the time: its queue has no mean, so something large but finite is taken.
BUSIEST = 0.95


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
            if now - self._asked_s < EVERY_S or self._client.state is not LinkState.READY:
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
