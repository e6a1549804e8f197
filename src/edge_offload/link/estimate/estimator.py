"""The state of the link as the robot sees it: bandwidth both ways, round trip, how sure, how old.

Three kinds of evidence, none of which asks a network emulator or a radio for its setting:

* every finished transfer: its bytes over the time that it had the link to itself, so without the delay of the link and
  without the time that it waited behind an earlier one;
* while a transfer is under way: the kernel's count of acknowledged bytes. It can only lower the estimate (the next hop
  may buffer), and it is what shows a collapse before the transfer has ended;
* probes when nothing travels (:mod:`edge_offload.link.transport.prober`).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Callable, Deque, Optional, Tuple

from edge_offload.link.estimate.rate import RateFilter
from edge_offload.link.replies import Transfer

#: Standard deviation of a rate's logarithm from which on no more is subtracted.
MOST_CAUTION = 1.2

PASSIVE, ACTIVE, NONE = "passive", "active", "none"

#: Seconds of upload between two looks at the kernel's count.
PROGRESS_S = 0.1
#: The count lowers the estimate when it shows less than this share of it.
PROGRESS_SHARE = 0.6
#: Bytes under way below which nothing can be told from the count.
BACKLOG_BYTES = 4096
#: A smaller message tells how late threads are, not what the link carries.
SAMPLE_BYTES = 4096
#: A thread that nobody counted may have been late by so many times what is typical.
UNSEEN = 2.0
#: Bytes that stand for none at all: the logarithm needs some.
TRICKLE_BYTES = 256
#: Scheduling of the two ends' threads blurs a transfer's duration by this (seconds).
JITTER_S = 1e-3
#: Seconds of round trips of which the shortest counts as the delay of the empty link.
RTT_WINDOW_S = 5.0


@dataclass(frozen=True)
class LinkReading:
    """What is known of the link at one moment.

    Attributes:
        uplink, downlink: bytes per second, robot to server and back; 0: unknown or nothing passes.
        uplink_error, downlink_error: standard deviation of their logarithms; inf while unknown.
        rtt_s: round trip of a small message over the empty link; nan while unknown.
        source: ``passive``, ``active`` or ``none``: what the latest sample was.
        samples: transfers and probes that were of use so far.
        age_s: since the latest of them; inf if there was none.
    """

    uplink: float = 0.0
    downlink: float = 0.0
    uplink_error: float = math.inf
    downlink_error: float = math.inf
    rtt_s: float = math.nan
    source: str = NONE
    samples: int = 0
    age_s: float = math.inf

    @property
    def cautious(self) -> LinkReading:
        """The same with the rates at which a transfer takes as long as is to be expected.

        What is uncertain may be slower or faster, and slower costs more than faster gains (mean of a log-normal
        quantity).

        What is uncertain may be slower or faster, and slower costs more than faster gains (mean of a log-normal
        quantity).
        """
        return replace(
            self,
            uplink=self.uplink * _caution(self.uplink_error),
            downlink=self.downlink * _caution(self.downlink_error),
        )


def _caution(error: float) -> float:
    return math.exp(-(min(error, MOST_CAUTION) ** 2) / 2) if math.isfinite(error) else 1.0


class LinkEstimator:
    """Collects evidence, answers with a :class:`LinkReading`. Thread-safe. Times are of one monotonic clock.

    Attributes:
        late_s: for how long a thread of the two ends typically waits for a processor; set by the owner.
    """

    def __init__(self) -> None:
        self.late_s = 0.0
        self._lock = threading.Lock()
        self._up = RateFilter()
        self._down = RateFilter()
        self._source = NONE
        self._round_trips: Deque[Tuple[float, float]] = deque()
        self._up_free_s = self._down_free_s = -math.inf
        self._mark: Optional[Tuple[float, int]] = None

    def round_trip(self, now: float, rtt_s: float) -> None:
        """A small message took this long, there and back."""
        if not math.isfinite(rtt_s) or rtt_s < 0:
            return
        with self._lock:
            while self._round_trips and now - self._round_trips[0][0] > RTT_WINDOW_S:
                self._round_trips.popleft()
            self._round_trips.append((now, rtt_s))

    def transfer(self, transfer: Transfer, source: str = PASSIVE) -> None:
        """A request was answered."""
        with self._lock:
            delay_s = self._delay_s()
            error_s = transfer.clock_error_s + JITTER_S
            # a transfer had the link to itself only from when the one before it was through
            up_began = max(transfer.sent_s + delay_s, self._up_free_s)
            down_began = max(transfer.server_sent_s + delay_s, self._down_free_s)
            now = transfer.received_s
            if transfer.bytes_up >= SAMPLE_BYTES:
                self._up_free_s = max(self._up_free_s, transfer.server_received_s)
            if transfer.bytes_down >= SAMPLE_BYTES:
                self._down_free_s = max(self._down_free_s, now)
            lag_up_s, lag_down_s = (
                waited_s + UNSEEN * self.late_s for waited_s in (transfer.waited_up_s, transfer.waited_down_s)
            )
            up_s, down_s = transfer.server_received_s - up_began, now - down_began
            used = self._told(self._up, transfer.server_received_s, transfer.bytes_up, up_s, error_s, lag_up_s)
            used |= self._told(self._down, now, transfer.bytes_down, down_s, error_s, lag_down_s)
            if used:
                self._source = source

    def sample(self, now: float, size_up: float, up_s: float, size_down: float, down_s: float, error_s: float) -> None:
        """A transfer of which only sizes and durations are known, delays included."""
        with self._lock:
            delay_s = self._delay_s()
            error_s, lag_s = error_s + JITTER_S, UNSEEN * self.late_s
            used = self._told(self._up, now, size_up, up_s - delay_s, error_s, lag_s)
            used |= self._told(self._down, now, size_down, down_s - delay_s, error_s, lag_s)
            if used:
                self._source = PASSIVE

    @staticmethod
    def _told(rate: RateFilter, now: float, size: float, busy_s: float, error_s: float, lag_s: float) -> bool:
        return size >= SAMPLE_BYTES and rate.observe(now, size, busy_s, error_s, lag_s)

    def progress(
        self, now: float, given: int, acked: int, waited: Callable[[float, float], float] = lambda begin, end: 0.0
    ) -> None:
        """Bytes given to the connection and acknowledged by the next hop so far; call it at least every 0.1 s.

        Args:
            waited: for how long threads of either end waited for a processor between two times, at most.
        """
        with self._lock:
            if given - acked < BACKLOG_BYTES:
                self._mark = None
                return
            if self._mark is None:
                self._mark = (now, acked)
                return
            since_s, before = self._mark
            busy_s = now - since_s
            if busy_s < PROGRESS_S:
                return
            size = max(acked - before, TRICKLE_BYTES)
            if size / busy_s < PROGRESS_SHARE * self._up.bytes_per_s:
                lag_s = waited(since_s, now) + UNSEEN * self.late_s
                if busy_s - lag_s < PROGRESS_S / 2:
                    return  # who was to send has hardly run since: look again later
                self._up.observe(now, size, busy_s, JITTER_S, lag_s)
            self._mark = (now, acked)

    def adopt(self, now: float, reading: LinkReading) -> None:
        """Take over what somebody else on this robot has measured more recently."""
        with self._lock:
            for mine, rate, error in (
                (self._up, reading.uplink, reading.uplink_error),
                (self._down, reading.downlink, reading.downlink_error),
            ):
                if rate > 0 and now - reading.age_s > mine.updated_s + 0.1:
                    mine.observe(now - reading.age_s, rate, 1.0, min(error, 0.5))
                    self._source = reading.source

    def lost(self) -> None:
        """The connection broke: what was known of the link's rate is void."""
        with self._lock:
            for rate in (self._up, self._down):
                rate.forget()
            self._round_trips.clear()
            self._mark = None
            self._source = NONE
            self._up_free_s = self._down_free_s = -math.inf

    @property
    def unsure(self) -> Tuple[bool, bool]:
        """Up, down: whether one more sample would settle whether the link has just changed."""
        return self._up.unsure, self._down.unsure

    @property
    def heard(self) -> Tuple[int, int]:
        """Up, down: samples that said something, whether they were believed or not."""
        return self._up.heard, self._down.heard

    def reading(self, now: float) -> LinkReading:
        """What is known now."""
        with self._lock:
            up, down = self._up, self._down
            return LinkReading(
                uplink=up.bytes_per_s,
                downlink=down.bytes_per_s,
                uplink_error=up.error(now),
                downlink_error=down.error(now),
                rtt_s=min((rtt for _, rtt in self._round_trips), default=math.nan),
                source=self._source,
                samples=up.samples + down.samples,
                age_s=now - max(up.updated_s, down.updated_s),
            )

    def _delay_s(self) -> float:
        return min((rtt for _, rtt in self._round_trips), default=0.0) / 2
