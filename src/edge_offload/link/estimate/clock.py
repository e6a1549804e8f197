"""The peer's clock as seen from here: offset with a guaranteed error bound, from ping/pong over the link.

One exchange (sent t1, received there t2, answered there t3, received t4) proves, with no assumption about symmetry,
t3 - t4 <= offset <= t2 - t1 (Cristian 1989). Older proofs are widened by the drift two quartz clocks can have, and all
proofs of the window are intersected (Marzullo 1984): queueing in either direction loosens a proof, but never biases it.
So a transfer has times at both ends on one clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Deque, Optional, Tuple

WARN_S = 0.05


@dataclass(frozen=True)
class ClockReading:
    """Estimate of the peer's clock.

    Attributes:
        offset_s: peer's monotonic clock minus ours, s; nan before the first exchange.
        error_s: the true offset lies within ``offset_s`` +- ``error_s``; inf before the first exchange.
        rtt_s: shortest round trip of the last few exchanges, s; nan before the first.
        wall_offset_s: peer's wall clock minus ours, s (message stamps of two hosts differ by this), within ``error_s``.
        steps: how often one of the clocks was found to have jumped.
        latest_s: round trip of the latest exchange, s; nan before the first.
    """

    offset_s: float = math.nan
    error_s: float = math.inf
    rtt_s: float = math.nan
    wall_offset_s: float = math.nan
    steps: int = 0
    latest_s: float = math.nan

    @property
    def warning(self) -> str:
        """Describe what is wrong with the clocks; empty if nothing is."""
        if self.error_s > WARN_S:
            return f"clock offset of the peer is known only to {self.error_s * 1e3:.0f} ms: do not trust one-way times"
        if abs(self.wall_offset_s) > WARN_S:
            return f"wall clocks differ by {self.wall_offset_s * 1e3:.0f} ms: synchronise both hosts (chrony)"
        return ""

    def to_local(self, peer_s: float) -> float:
        """A time on the peer's monotonic clock, on ours."""
        return peer_s - self.offset_s


class PeerClock:
    """Collects exchanges and keeps :attr:`reading` up to date. One thread samples; any thread may read."""

    # two clocks, each within 100 ppm of true time; the monotonic clock may be slewed on top
    def __init__(self, max_drift: float = 3e-4, window_s: float = 30.0) -> None:
        self.reading = ClockReading()
        self._max_drift = max_drift
        self._window_s = window_s
        self._proofs: Deque[Tuple[float, float, float]] = deque()  # (when here, lowest offset, highest offset)
        self._round_trips: Deque[float] = deque(maxlen=8)
        self._steps = 0

    def add_sample(self, t1: float, t2: float, t3: float, t4: float, wall_difference_s: Optional[float] = None) -> bool:
        """Take in one exchange; ``wall_difference_s`` is the peer's wall - monotonic difference minus ours.

        Returns False, and learns nothing, if the four times contradict each other.
        """
        low, high = t3 - t4, t2 - t1
        if not (low <= high and t1 <= t4 and t2 <= t3):
            return False
        while self._proofs and t4 - self._proofs[0][0] > self._window_s:
            self._proofs.popleft()
        self._proofs.append((t4, low, high))
        bounds = self._intersect_bounds(t4)
        if bounds is None:
            # no offset explains old and new exchanges alike: a clock jumped (suspend, migration); believe the new one
            self._proofs.clear()
            self._proofs.append((t4, low, high))
            self._round_trips.clear()
            self._steps += 1
            bounds = low, high
        self._round_trips.append((t4 - t1) - (t3 - t2))
        offset = (bounds[0] + bounds[1]) / 2
        wall = self.reading.wall_offset_s if wall_difference_s is None else wall_difference_s + offset
        shortest_s, latest_s = min(self._round_trips), self._round_trips[-1]
        self.reading = ClockReading(offset, (bounds[1] - bounds[0]) / 2, shortest_s, wall, self._steps, latest_s)
        return True

    def _intersect_bounds(self, now: float) -> Optional[Tuple[float, float]]:
        slack = self._max_drift
        low = max(proof[1] - slack * (now - proof[0]) for proof in self._proofs)
        high = min(proof[2] + slack * (now - proof[0]) for proof in self._proofs)
        return (low, high) if low <= high else None


class RoundTrips:
    """Round trips of small messages in the latest 5 s. Statistics are updated per sample.

    Attributes:
        delay_s: half of the shortest; 0 while there is none.
        above_s: how far the median is above the shortest.
        variation_s: how far successive ones differ, in the mean.
        usual_at_s: when one was last nearer to the shortest than to the median; -inf while there is none.
    """

    def __init__(self) -> None:
        self._latest: Deque[Tuple[float, float]] = deque()
        self.delay_s = self.above_s = self.variation_s = 0.0
        self.usual_at_s = -math.inf

    def __bool__(self) -> bool:
        return bool(self._latest)

    def add_round_trip(self, now: float, rtt_s: float) -> None:
        """Add one that has just ended."""
        latest = self._latest
        while latest and now - latest[0][0] > 5.0:  # the shortest is the delay of the empty link
            latest.popleft()
        latest.append((now, rtt_s))
        seconds = [rtt for _, rtt in latest]
        shortest_s = min(seconds)
        self.delay_s = shortest_s / 2
        self.above_s = sorted(seconds)[len(seconds) // 2] - shortest_s
        differences_s = sum(abs(after - before) for before, after in zip(seconds, seconds[1:]))
        self.variation_s = differences_s / len(seconds)
        limit_s = shortest_s + self.above_s / 2
        self.usual_at_s = max(at_s for at_s, rtt in latest if rtt <= limit_s)


@dataclass(frozen=True)
class Transfer:
    """Times and sizes of one request and its reply. Seconds on this machine's monotonic clock.

    Attributes:
        queued_s: :meth:`Client.request` was called.
        sent_s: the link's thread gave the message to ZeroMQ.
        server_received_s, server_sent_s: the whole request was there; the reply was given to ZeroMQ there. Mapped with
            the clock offset, off by at most ``clock_error_s``.
        received_s: the whole reply was here.
        clock_error_s: bound on the error of the two server times, s.
        bytes_up, bytes_down: what the two messages took on the TCP connection, headers and encryption included.
        waited_up_s, waited_down_s: for which threads of either end waited for a processor meanwhile, at most: so much
            of the duration may not have been the link's.
    """

    queued_s: float
    sent_s: float
    server_received_s: float
    server_sent_s: float
    received_s: float
    clock_error_s: float
    bytes_up: int
    bytes_down: int
    waited_up_s: float = 0.0
    waited_down_s: float = 0.0

    @property
    def uplink_s(self) -> float:
        """Duration of the way up, s (never negative; off by at most ``clock_error_s``)."""
        return max(0.0, self.server_received_s - self.sent_s)

    @property
    def downlink_s(self) -> float:
        """Duration of the way down, s (never negative; off by at most ``clock_error_s``)."""
        return max(0.0, self.received_s - self.server_sent_s)
