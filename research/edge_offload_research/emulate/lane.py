"""One direction of an emulated link: a queue, a bandwidth, a delay. Pure: time comes in as an argument.

Bytes are served one chunk after the other at the trace's bandwidth, then fly for the delay. Several flows (connections)
share the lane in turns. The schedule is kept in exact times, so a late wake-up never stretches it: what was due is sent
at once and the next chunk is timed from when the last one should have ended.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Deque, List, Optional, Tuple

from edge_offload_research.emulate.trace import Trace

QUEUE_BYTES = 64 << 10
# chunks of about this long keep turns short; bounded so that slow links still get whole packets
CHUNK_S = 0.35e-3
MIN_CHUNK, MAX_CHUNK = 1448, 16 << 10
# a queue that ran dry while its source still had more, because the emulator itself woke up late, has not been idle
FORGIVEN_S = 0.02


class Flow:
    """The bytes of one connection in one direction."""

    def __init__(self) -> None:
        self.waiting: Deque[bytes] = deque()
        self.waiting_bytes = 0
        self.flying: Deque[Tuple[float, bytes]] = deque()  # (due, data)
        self.was_full = False
        self.blocked = False  # the receiver does not take what is due

    @property
    def empty(self) -> bool:
        """True if nothing is queued or in flight."""
        return not self.waiting and not self.flying


class Lane:
    """Bandwidth and delay shared by the flows of one direction."""

    def __init__(self, trace: Trace, delay_s: float, now: float, queue_bytes: int = QUEUE_BYTES, seed: int = 0) -> None:
        self.queue_bytes = queue_bytes
        self.carried = 0
        self.paused = False
        self.stall_fraction = 0.0
        self.stall_s = 0.0
        self._random = random.Random(seed)
        self._flows: List[Flow] = []
        self._turn = 0
        self._serving: Optional[Tuple[Flow, bytes]] = None
        self._remaining = 0.0  # bytes of the chunk in service, as of _since
        self._since = now
        self._ends = math.inf
        self._free = now
        self._origin = now
        self._trace = trace
        self._delay_s = delay_s

    def set(self, now: float, trace: Optional[Trace] = None, delay_s: Optional[float] = None) -> None:
        """Change bandwidth or delay at once, also for the chunk in service."""
        self.advance_to(now)
        self._account_progress(now)
        if trace is not None:
            self._trace, self._origin = trace, now
        if delay_s is not None:
            self._delay_s = delay_s
        self._compute_end()

    def set_paused(self, now: float, paused: bool) -> None:
        """Stop or resume service and delivery; nothing is lost."""
        self.advance_to(now)
        if paused != self.paused:
            if paused:
                self._account_progress(now)
            self.paused = paused
            self._since = self._free = now
            self._compute_end()

    def current_rate(self, now: float) -> float:
        """Bytes per second now."""
        return 0.0 if self.paused else self._trace.rate_at(now - self._origin)

    def current_delay(self, now: float) -> float:
        """One-way delay now, s."""
        traced = self._trace.delay_at(now - self._origin)
        return self._delay_s if traced is None else traced

    def chunk_size(self, now: float) -> int:
        """Return how many bytes to read from a source at once."""
        return int(min(MAX_CHUNK, max(MIN_CHUNK, self._trace.rate_at(now - self._origin) * CHUNK_S)))

    def add(self, flow: Flow) -> None:
        """Let a flow take part."""
        self._flows.append(flow)

    def remove(self, flow: Flow) -> None:
        """Drop a flow and all its bytes."""
        if flow in self._flows:
            self._flows.remove(flow)
        if self._serving is not None and self._serving[0] is flow:
            self._serving = None
            self._free, self._ends = self._since, math.inf

    def free_bytes(self, flow: Flow) -> int:
        """Bytes that may be offered for ``flow`` now."""
        room = self.queue_bytes - flow.waiting_bytes
        flow.was_full = flow.was_full or room <= 0
        return max(0, room)

    def offer_data(self, flow: Flow, data: bytes, now: float) -> None:
        """Queue ``data``, which arrived now."""
        if self._serving is None and not any(other.waiting for other in self._flows):
            late_s = now - self._free
            if not (flow.was_full and late_s < FORGIVEN_S):
                self._free = max(self._free, now)
        flow.was_full = False
        flow.waiting.append(data)
        flow.waiting_bytes += len(data)
        self.advance_to(now)

    def advance_to(self, now: float) -> None:
        """Serve everything that ends by ``now``."""
        while True:
            if self._serving is None and not self._begin_chunk(now):
                return
            if self._ends > now:
                return
            assert self._serving is not None
            flow, data = self._serving
            due = self._ends + self.current_delay(self._ends)
            if flow.flying:
                due = max(due, flow.flying[-1][0])  # TCP delivers in order, also when the delay shrinks
            flow.flying.append((due, data))
            self.carried += len(data)
            self._free = self._ends
            self._serving, self._ends = None, math.inf

    def next_s(self) -> float:
        """Return the time of the next event if nothing arrives."""
        due = self._ends
        if due < math.inf and not any(flow.was_full for flow in self._flows):
            # nobody waits for room, so the end of service matters only once the chunk has flown
            due += self.current_delay(due)
        if not self.paused:
            for flow in self._flows:
                if flow.flying and not flow.blocked:
                    due = min(due, flow.flying[0][0])
        return due

    def count_queued(self) -> int:
        """Bytes that wait for service."""
        return sum(flow.waiting_bytes for flow in self._flows)

    def _begin_chunk(self, now: float) -> bool:
        if self.paused:
            return False
        for offset in range(len(self._flows)):
            flow = self._flows[(self._turn + offset) % len(self._flows)]
            # a receiver that does not read holds up its own flow only, and not without bound
            if flow.waiting and not flow.blocked:
                self._turn = (self._turn + offset + 1) % len(self._flows)
                data = flow.waiting.popleft()
                flow.waiting_bytes -= len(data)
                self._serving = flow, data
                # time during which the receiver held everything up is no credit
                self._free = max(self._free, now - FORGIVEN_S)
                self._remaining, self._since = float(len(data)), self._free
                if self.stall_fraction and self._random.random() < self.stall_fraction:
                    self._since += self.stall_s
                self._compute_end()
                return True
        return False

    def _account_progress(self, now: float) -> None:
        """Bring the chunk in service up to date, before its bandwidth changes."""
        if self._serving is not None and now > self._since:
            if not self.paused:
                done = self._trace.bytes_until(now - self._origin) - self._trace.bytes_until(self._since - self._origin)
                self._remaining = max(0.0, self._remaining - done)
            self._since = now

    def _compute_end(self) -> None:
        self._ends = math.inf
        if self._serving is not None and not self.paused:
            self._ends = self._trace.finish_time(self._since - self._origin, self._remaining) + self._origin
