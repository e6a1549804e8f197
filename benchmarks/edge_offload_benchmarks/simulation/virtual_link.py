"""A link in virtual time: carries transfers and probes over a trace, and breaks as the real one does."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from concurrent.futures import Future
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from edge_offload.link.estimate.estimator import ACTIVE, LinkEstimator, Transfer
from edge_offload.link.transport.connection import ATTENTIVE_S
from edge_offload.link.transport.messages import PROBE
from edge_offload.link.transport.prober import POLL_S, Prober
from edge_offload.link.transport.replies import LinkState
from edge_offload_research.emulate.trace import Trace

#: As the link does it: silence before a connection is given up, back-off and handshake after packets flow again.
SILENCE_S = 1.0
BACK_TO_READY_S = 0.3
#: What counts as no bandwidth at all (bytes per second).
DEAD = 2e3
TICK_S = POLL_S
NEVER = math.inf


class VirtualLink:
    """Looks like a client to the prober; carries its probes, and frames, over the trace."""

    def __init__(self, trace: Trace, rtt_s: float) -> None:
        self.trace, self.rtt_s = trace, rtt_s
        self.estimator = LinkEstimator()
        self.state = LinkState.READY
        self.now = 0.0
        self.free_up_s = self.free_down_s = 0.0
        self.upload: Optional[Tuple[float, float, int]] = None  # begins, ends, bytes
        self._events: List[Tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.outstanding = 0
        self._dead = _silences(trace)
        self._down = _outages(self._dead)

    @property
    def busy(self) -> bool:
        """True while anything is in flight."""
        return self.outstanding > 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something done at a time."""
        heapq.heappush(self._events, (when, next(self._count), what))

    def lost_within(self, begin: float, end: float) -> float:
        """Return when the connection is given up between the two, NEVER if it is not."""
        return min((a for a, b in self._windows(begin, end, self._down) if a < end and b > begin), default=NEVER)

    def quiet_s(self, since: float) -> float:
        """Return for how long a heartbeat has been overdue.

        One has been asked for every :data:`ATTENTIVE_S` ``since`` then.
        """
        silent = self._within(self.now, self._dead)
        if silent is None:
            return 0.0
        # the first that was not answered: what is asked less than a round trip before the silence goes down with it
        turns = math.ceil((silent - self.rtt_s - since) / ATTENTIVE_S)
        return max(0.0, self.now - since - max(0, turns) * ATTENTIVE_S)

    def progress(self) -> Tuple[int, int]:
        """Bytes of the upload under way, and those that are through."""
        if self.upload is None or not self.upload[0] < self.now < self.upload[1]:
            return 0, 0
        start_s, _, size = self.upload
        return size, int(min(size, self.trace.bytes_until(self.now) - self.trace.bytes_until(start_s)))

    def _windows(self, begin: float, end: float, spans: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
        period = self.trace.period_s
        if not spans or math.isinf(begin):
            return []
        rounds = range(max(0, int(begin // period) - 1), int(min(end, begin + 2 * period) // period) + 1)
        return [(a + k * period, b + k * period) for k in rounds for a, b in spans]

    def _within(self, now: float, spans: Sequence[Tuple[float, float]]) -> Optional[float]:
        """Return the start of the span that ``now`` lies in; None if there is none."""
        period = self.trace.period_s
        for round_s in (now // period * period, (now // period - 1) * period):
            place = bisect.bisect_right(spans, (now - round_s, math.inf)) - 1
            if round_s >= 0 and place >= 0 and now - round_s < spans[place][1]:
                return round_s + spans[place][0]
        return None

    def carry(self, sent: float, up: int, server_s: float, down: int) -> Transfer:
        """One request and its reply; times are inf if it never gets through."""
        begin = max(sent, self.free_up_s)
        received = self.trace.finish_time(begin, up) + self.rtt_s / 2
        answered = received + server_s
        begin_down = max(answered, self.free_down_s)
        back = NEVER if math.isinf(answered) else self.trace.finish_time(begin_down, down) + self.rtt_s / 2
        return Transfer(sent, sent, received, answered, back, 1e-4, up, down)

    def commit(self, transfer: Transfer, source: str) -> None:
        """Let it take its time on the link."""
        lost = self.lost_within(transfer.sent_s, transfer.received_s)
        self.outstanding += 1
        if lost < NEVER:
            # what was under way goes with the connection
            self.upload = (transfer.sent_s, lost, transfer.bytes_up)
            self.at(lost, self._ended)
            self.free_up_s = self.free_down_s = lost
            return
        self.free_up_s, self.free_down_s = transfer.server_received_s - self.rtt_s / 2, transfer.received_s
        self.upload = (transfer.sent_s, transfer.server_received_s, transfer.bytes_up)

        def arrived() -> None:
            self._ended()
            self.estimator.round_trip(transfer.received_s, self.rtt_s)
            self.estimator.add_transfer(transfer, source)

        self.at(transfer.received_s, arrived)

    def _ended(self) -> None:
        self.outstanding -= 1

    def request(
        self, kind: str, body: Mapping[str, Any], buffers: Sequence[bytes], timeout_s: float = 0.0
    ) -> Future[Any]:
        """See :class:`~edge_offload.link.transport.client.Client`."""
        assert kind == PROBE
        self.commit(self.carry(self.now, len(buffers[0]) + 100, 0.0005, int(body["down"]) + 100), ACTIVE)
        return Future()

    def advance(self, to: float, prober: Prober) -> None:
        """Let time pass."""
        while self.now < to:
            self.now = min(to, self.now + TICK_S)
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            down = self._within(self.now, self._down) is not None
            if down and self.state is LinkState.READY:
                self.state = LinkState.LOST
                self.estimator.mark_lost()
            elif not down and self.state is LinkState.LOST:
                self.state = LinkState.READY
                self.estimator.round_trip(self.now, self.rtt_s)
            self._progress()
            prober.step(self.now)

    def _progress(self) -> None:
        if self.upload is None:
            return
        start_s, ends, size = self.upload
        if self.now >= ends:
            self.estimator.add_progress(self.now, 0, 0)
            self.upload = None
        elif self.now > start_s:
            carried = self.trace.bytes_until(self.now) - self.trace.bytes_until(start_s)
            self.estimator.add_progress(self.now, size, int(min(size, carried)))


def _silences(trace: Trace) -> List[Tuple[float, float]]:
    """List the times at which nothing passes."""
    silences: List[Tuple[float, float]] = []
    since: Optional[float] = None
    for start, rate in [*zip(trace.starts_s, trace.bytes_per_s), (trace.period_s, math.inf)]:
        if rate >= DEAD:
            if since is not None:
                silences.append((since, start))
            since = None
        elif since is None:
            since = start
    return silences


def _outages(silences: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """List the times without a connection: from a second of silence on until it is up again."""
    return [(a + SILENCE_S, b + BACK_TO_READY_S) for a, b in silences if b - a > SILENCE_S]
