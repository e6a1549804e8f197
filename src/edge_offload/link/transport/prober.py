"""Measures an idle link: a small exchange now and then, of a bounded share of what the link carries."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Optional, Tuple

from edge_offload.errors import ProtocolError, Refused
from edge_offload.link.transport.messages import PROBE
from edge_offload.link.transport.replies import LinkState

if TYPE_CHECKING:
    from edge_offload.link.transport.client import Client
    from edge_offload.link.transport.peers import Request

MAX_PROBE_BYTES = 128 << 10
MIN_PROBE_BYTES = 4 << 10
#: A probe that was too fast to be timed is followed by one four times as large, up to this factor.
MAX_GROWTH = 16
#: So does one that raised the estimate by this factor.
RISING = 1.15
#: A follow-up comes after this share of the interval ...
SOONER = 16
#: ... or when the prober looks next, every so many seconds.
POLL_S = 0.02
#: An idle link of which nothing is in doubt is looked at so many times an interval: each look wakes a sleeping thread.
IDLE_PROBES = 2
UP, DOWN = range(2)


class Prober:
    """Sends probes over a client while it is idle, on a thread of its own.

    Args:
        client: the link; probed only while it is ready and nothing else is under way.
        interval_s: between two probes of an idle link.
        share: of the link's capacity that probes may take, 0 to 1 (at least :data:`MIN_PROBE_BYTES` an interval).
    """

    def __init__(self, client: Client, interval_s: float = 0.25, share: float = 0.02) -> None:
        self._client = client
        self._interval_s = interval_s
        self._share = share
        self._payload = os.urandom(MAX_PROBE_BYTES)
        self._last_s = 0.0
        # up, down: size of the last probe in its usual one, samples heard before it, rate then
        self._grown = [1, 1]
        self._useful = (-1, -1)
        self._before = (0.0, 0.0)
        # what was heard when the prober last thought about it, and until when there is nothing to do unless more is
        self._considered: Optional[Tuple[int, int]] = None
        self._due_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_probes, name="edge_offload-prober", daemon=True)
        self.sent = 0

    def start(self) -> Prober:
        """Begin."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End; a probe under way is not waited for."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run_probes(self) -> None:
        while not self._stop.wait(self._pause_s(time.monotonic())):
            self.step(time.monotonic())

    def _pause_s(self, now: float) -> float:
        """Until the next look."""
        poll_s = min(POLL_S, self._interval_s / 4)
        if self._considered is None:
            return poll_s
        return min(max(self._due_s - now, poll_s), self._interval_s / IDLE_PROBES)

    def step(self, now: float) -> None:
        """Probe if it is time to."""
        client = self._client
        if client.state is not LinkState.READY or client.busy:
            self._considered = None
            return
        if client.estimator.useful == self._considered and now < self._due_s:
            return
        reading = client.estimator.make_reading(now)
        quiet_s = min(reading.age_s, now - self._last_s)
        rates, useful, unsure = ((reading.uplink, reading.downlink), client.estimator.useful, client.estimator.unsure)
        # through before its duration could be told, or so fast that a larger one will tell better
        small = [useful[way] == self._useful[way] or self._rises(way, rates[way], unsure[way]) for way in (UP, DOWN)]
        grown = [min(4 * self._grown[way], MAX_GROWTH) if small[way] else 1 for way in (UP, DOWN)]
        # what surprised, and what was too small, is followed up at once; what no size can tell is not
        mute = [small[way] and self._grown[way] >= MAX_GROWTH for way in (UP, DOWN)]
        repeat = any((small[way] or unsure[way]) and not mute[way] for way in (UP, DOWN))
        wait_s = (self._interval_s / SOONER if repeat else self._interval_s) - quiet_s
        if wait_s > 0:
            self._considered, self._due_s = useful, now + wait_s
            return
        self._considered = None
        self._last_s = now
        self.sent += 1
        for way in (UP, DOWN):
            if small[way] or not unsure[way]:  # else the same size again
                self._grown[way] = grown[way]
        self._useful, self._before = useful, rates
        size_up, size_down = (
            min(self._grown[way] * probe_bytes(rates[way], self._interval_s, self._share), MAX_PROBE_BYTES)
            for way in (UP, DOWN)
        )
        probe = client.request(PROBE, {"down": size_down}, [self._payload[:size_up]], timeout_s=5.0)
        probe.add_done_callback(self._on_answer)

    def _rises(self, way: int, rate: float, unsure: bool) -> bool:
        return not unsure and rate > RISING * max(self._before[way], 1.0)

    def _on_answer(self, done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, (ProtocolError, Refused)):
            # this server does not answer probes
            self._stop.set()


def probe_bytes(bytes_per_s: float, interval_s: float, share: float) -> int:
    """Size of a probe in one direction (bytes)."""
    if bytes_per_s <= 0:
        return 32 << 10
    return int(min(MAX_PROBE_BYTES, max(MIN_PROBE_BYTES, share * bytes_per_s * interval_s)))


def answer_probe(request: Request) -> None:
    """The listener's part: as many bytes back as asked for."""
    size = request.body.get("down")
    if type(size) is int and 0 <= size <= MAX_PROBE_BYTES:
        request.reply({}, [bytes(size)])
    else:
        request.fail(ProtocolError(f"a probe asks for 0 to {MAX_PROBE_BYTES} bytes"))
