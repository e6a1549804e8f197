"""The state of the link as the robot sees it: bandwidth both ways, round trip, how sure, how old.

Three kinds of evidence, none of which asks a network emulator or a radio for its setting:

* every finished transfer: its bytes over the time that it had the link to itself;
* while a transfer is under way: the kernel's count of acknowledged bytes. It can only lower the estimate (the next hop
  may buffer), and it is what shows a collapse before the transfer has ended;
* of a large upload or answer: the pace at which its bytes were delivered, unless the next hop took them before the
  server did. It depends neither on the delay nor on threads that come late;
* probes when nothing travels (:mod:`edge_offload.link.transport.prober`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Callable, Deque, Optional, Tuple

from edge_offload.link.estimate.clock import RoundTrips, Transfer
from edge_offload.link.sockets.descriptors import ARRIVAL_SAMPLE_S, UPLOAD_SAMPLE_S, Deliveries, Runs

__all__ = ["ACTIVE", "NONE", "PASSIVE", "LinkEstimator", "LinkReading", "RateFilter", "Transfer"]

#: Spread of the logarithm of the bandwidth that one second brings on a link in motion.
DRIFT_PER_S = 0.3
#: Error of the logarithm that even a long transfer has: what shares the link, TCP's own pace.
SAMPLE_ERROR = 0.08
#: Innovation, in standard deviations, from which on a sample surprises.
SURPRISE = 2.5
#: A sample whose error is larger than this is brief: it tells only what the link carries at least. So many of them, at
#: least the second number, raise the estimate together, whose logarithm then has the third as error.
MAX_ERROR = 1.0
BRIEF, FEWEST_BRIEF, BRIEF_ERROR = 8, 3, 0.5
#: A transfer that kept the link busy for so long is no accident: it needs no second one. A fall that one sample alone
#: has shown may have gone on since, by this share of it (of the logarithm).
LONG_S, STEP_DOUBT = 0.25, 0.5
#: Share of the lag that usually held a transfer up: threads wait beside it, too.
LIKELY_LAG = 0.25
#: Waiting scatters: what it may have added to a transfer is no more than this share of the latest ones leave below
#: themselves, of so many within so many seconds (fewer tell nothing).
UNDELAYED, RECENT, RECENT_S, FEWEST = 0.9, 16, 3.0, 6
#: No transfer takes less (seconds).
LEAST_S = 1e-6
#: Weight of an estimate of unknown age.
MAX_VARIANCE = 1.5


class RateFilter:
    """Bytes per second of one direction: a Kalman filter on the logarithm that holds still and jumps at steps.

    A radio link wanders slowly and now and then falls or rises at once. A sample that surprises is kept aside; a second
    one that surprises the same way is a step and is believed at once, anything else shows that the first was an
    accident (a thread that came late). One thread at a time.

    Attributes:
        samples: how many were believed.
        useful: how many were informative, those that were put aside included.
        updated_s: when the latest was believed.
    """

    def __init__(self) -> None:
        self.samples = self.useful = 0
        self.updated_s = -math.inf
        self._log: Optional[float] = None
        self._variance = MAX_VARIANCE
        self._aside: Optional[float] = None
        self._recent: Deque[Tuple[float, float]] = deque(maxlen=RECENT)
        self._brief: Deque[Tuple[float, float, float]] = deque(maxlen=BRIEF)

    def observe_transfer(self, now: float, size: float, busy_s: float, error_s: float, lag_s: float = 0.0) -> bool:
        """``size`` bytes had the link to themselves for ``busy_s`` seconds, known to within ``error_s``.

        Args:
            now: seconds, monotonic.
            size: bytes.
            busy_s: seconds that they took.
            error_s: seconds by which that may be off.
            lag_s: for so much of ``busy_s`` at most it was not the link that was waited for, but a processor. What that
                explains is not held against the link.

        Returns False if the sample says nothing that was not known: it is brief, or its lag explains it.
        """
        if size <= 0 or busy_s <= 0:
            return False
        error = math.hypot(error_s / busy_s, SAMPLE_ERROR)
        if error > MAX_ERROR:
            return self._raise_estimate(now, size, busy_s, error_s)
        self._brief.clear()
        # the link carried no less than this, and no more than this
        least, most = math.log(size / busy_s), math.log(size / max(busy_s - lag_s, LEAST_S))
        likely = math.log(size / (busy_s - LIKELY_LAG * min(lag_s, busy_s)))
        likely = min(likely, max(least, self._undelayed_log(now, least)))
        width = math.hypot(error, (most - least) / 2)
        self.useful += 1
        if self._log is None:
            self._set_estimate(now, likely, min(width**2, MAX_VARIANCE))
            return True
        value, variance = min(max(self._log, least), most), self._variance_at(now)
        surprise = (value - self._log) / math.sqrt(variance + error**2)
        if abs(surprise) > SURPRISE:
            repeated = self._aside is not None and (self._aside > self._log) == (value > self._log)
            if not repeated and not (busy_s - lag_s >= LONG_S and surprise < 0):
                self._aside = value
                return True
            step, doubt = value, STEP_DOUBT * (value - self._log)
            if repeated and self._aside is not None:
                # a sample during which the link fell saw some of what was before: the lower one is the newer truth
                step, doubt = min(value, self._aside) if surprise < 0 else (value + self._aside) / 2, 0.0
            self._set_estimate(now, step, min(width**2 + doubt**2, MAX_VARIANCE))
            return True
        # what the sample rules out weighs as much as the sample is exact, where in between less
        exact, wide = _gain(variance, error), _gain(variance, width)
        moves = [exact * (value - self._log), wide * (likely - self._log)]
        self._set_estimate(now, self._log + max(moves, key=abs), (1 - wide) * variance)
        return True

    def _raise_estimate(self, now: float, size: float, busy_s: float, error_s: float) -> bool:
        """Raise the estimate to what brief transfers, of independent errors, prove; return whether it was below."""
        self._brief.append((size, busy_s, error_s))
        sizes, seconds, errors_s = zip(*self._brief)
        least = math.log(sum(sizes) / (sum(seconds) + math.hypot(*errors_s)))
        if len(self._brief) < FEWEST_BRIEF or (self._log is not None and least <= self._log):
            return False
        self.useful += 1
        self._set_estimate(now, least, BRIEF_ERROR**2)
        return True

    def _undelayed_log(self, now: float, least: float) -> float:
        """Logarithm of what the link carried when hardly anything was waited for, by the latest samples."""
        self._recent.append((now, least))
        latest = sorted(log for since_s, log in self._recent if now - since_s <= RECENT_S)
        return latest[int(UNDELAYED * (len(latest) - 1))] if len(latest) >= FEWEST else math.inf

    def reset_estimate(self) -> None:
        """The link was away: whatever comes next is believed."""
        self._log, self._aside, self._variance = None, None, MAX_VARIANCE
        for latest in (self._recent, self._brief):
            latest.clear()

    @property
    def unsure(self) -> bool:
        """Tell whether one more sample would decide between an accident and a step."""
        return self._aside is not None

    @property
    def bytes_per_s(self) -> float:
        """The estimate; 0 while nothing is known."""
        return 0.0 if self._log is None else math.exp(self._log)

    def log_error(self, now: float) -> float:
        """Standard deviation of the logarithm: 0.1 is about 10 %. Infinite while nothing is known."""
        return math.inf if self._log is None else math.sqrt(self._variance_at(now))

    def _variance_at(self, now: float) -> float:
        return min(MAX_VARIANCE, self._variance + DRIFT_PER_S**2 * max(0.0, now - self.updated_s))

    def _set_estimate(self, now: float, log: float, variance: float) -> None:
        self._log, self._variance, self.updated_s, self._aside = log, variance, now, None
        self.samples += 1


def _gain(variance: float, error: float) -> float:
    """Weight of a sample against an estimate."""
    return variance / (variance + error**2)


#: Standard deviation of a rate's logarithm from which on no more is subtracted.
MOST_CAUTION = 1.2

PASSIVE, ACTIVE, NONE = "passive", "active", "none"

#: Seconds of upload between two looks at the kernel's count, which lowers the estimate below this share of it.
PROGRESS_S, PROGRESS_SHARE = 0.1, 0.6
#: Bytes under way below which nothing can be told from the count.
BACKLOG_BYTES = 4096
#: A smaller message tells how late threads are, not what the link carries; bytes that stand for none at all.
SAMPLE_BYTES, TRICKLE_BYTES = 4096, 256
#: A thread that nobody counted may have been late by so many times what is typical.
UNSEEN = 2.0
#: Scheduling of the two ends' threads blurs a transfer's duration by this (seconds).
JITTER_S = 1e-3


@dataclass(frozen=True)
class LinkReading:
    """Estimate of the link at one moment.

    Attributes:
        uplink, downlink: bytes per second, robot to server and back; 0: unknown or nothing passes.
        uplink_error, downlink_error: standard deviation of their logarithms; inf while unknown.
        rtt_s: round trip of a small message over the empty link; nan while unknown.
        source: ``passive``, ``active`` or ``none``: what the latest sample was.
        samples: transfers and probes that were of use so far.
        age_s: since the latest of them; inf if there was none.
        rtt_age_s: since a round trip last took about ``rtt_s``; 0 if nobody measures that.
    """

    uplink: float = 0.0
    downlink: float = 0.0
    uplink_error: float = math.inf
    downlink_error: float = math.inf
    rtt_s: float = math.nan
    source: str = NONE
    samples: int = 0
    age_s: float = math.inf
    rtt_age_s: float = 0.0

    @property
    def cautious(self) -> LinkReading:
        """The same with the rates at which a transfer takes as long as is to be expected.

        What is uncertain may be slower or faster, and slower costs more than faster gains (mean of a log-normal
        quantity).
        """
        return replace(
            self,
            uplink=self.uplink * _caution_factor(self.uplink_error),
            downlink=self.downlink * _caution_factor(self.downlink_error),
        )


def _caution_factor(error: float) -> float:
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
        self._deliveries, self._arrivals = Deliveries(UPLOAD_SAMPLE_S), Deliveries(ARRIVAL_SAMPLE_S)
        self._round_trips = RoundTrips()
        self._up_free_s = self._down_free_s = -math.inf
        self._mark: Optional[Tuple[float, int]] = None

    def round_trip(self, now: float, rtt_s: float) -> None:
        """A small message took this long, there and back."""
        if not math.isfinite(rtt_s) or rtt_s < 0:
            return
        with self._lock:
            self._round_trips.add_round_trip(now, rtt_s)

    def add_transfer(self, transfer: Transfer, source: str = PASSIVE) -> None:
        """A request was answered."""
        with self._lock:
            delay_s, above_s = self._round_trips.delay_s, self._round_trips.above_s
            # the clock's error is in the delay, too; what round trips vary by is in no transfer's delay
            error_s = min(transfer.clock_error_s, abs(transfer.clock_error_s - delay_s) + above_s) + JITTER_S
            # a transfer had the link to itself when the one before it was through
            up_start_s = max(transfer.sent_s + delay_s, self._up_free_s)
            down_start_s = max(transfer.server_sent_s + delay_s, self._down_free_s)
            now = transfer.received_s
            if transfer.bytes_up >= SAMPLE_BYTES:
                self._up_free_s = max(self._up_free_s, transfer.server_received_s)
            if transfer.bytes_down >= SAMPLE_BYTES:
                self._down_free_s = max(self._down_free_s, now)
            lag_up_s, lag_down_s = (
                waited_s + UNSEEN * self.late_s + above_s / 2
                for waited_s in (transfer.waited_up_s, transfer.waited_down_s)
            )
            up_s, down_s = transfer.server_received_s - up_start_s, now - down_start_s
            runs = self._deliveries.take_runs(now)
            if runs.size and runs.done_s >= transfer.server_received_s - transfer.clock_error_s:
                used = self._add_runs(self._up, now, runs, self._deliveries.scatter, transfer.waited_up_s)
            else:  # the next hop took the bytes before the server did, or it was too little
                used = self._add_rate(self._up, transfer.server_received_s, transfer.bytes_up, up_s, error_s, lag_up_s)
            runs = self._arrivals.take_runs(now)
            if runs.size:
                used |= self._add_runs(self._down, now, runs, self._arrivals.scatter, transfer.waited_down_s)
            else:
                used |= self._add_rate(self._down, now, transfer.bytes_down, down_s, error_s, lag_down_s)
            if used:
                self._source = source

    def sample(self, now: float, size_up: float, up_s: float, size_down: float, down_s: float, error_s: float) -> None:
        """A transfer of which only sizes and durations are known, delays included."""
        with self._lock:
            delay_s = self._round_trips.delay_s
            error_s, lag_s = error_s + JITTER_S, UNSEEN * self.late_s
            used = self._add_rate(self._up, now, size_up, up_s - delay_s, error_s, lag_s)
            used |= self._add_rate(self._down, now, size_down, down_s - delay_s, error_s, lag_s)
            if used:
                self._source = PASSIVE

    def _add_runs(self, rate: RateFilter, now: float, runs: Runs, scatter: float, lag_s: float) -> bool:
        error_s = JITTER_S + min(self._round_trips.variation_s, scatter * runs.seconds)
        return self._add_rate(rate, now, runs.size, runs.seconds, error_s, lag_s + runs.paused_s)

    @staticmethod
    def _add_rate(rate: RateFilter, now: float, size: float, busy_s: float, error_s: float, lag_s: float) -> bool:
        return size >= SAMPLE_BYTES and rate.observe_transfer(now, size, busy_s, error_s, lag_s)

    def add_progress(
        self, now: float, given: int, acked: int, waited: Callable[[float, float], float] = lambda begin, end: 0.0,
        delivered: int = 0, arrived: int = 0,
    ) -> None:  # fmt: skip
        """Bytes given to the connection and acknowledged by the next hop so far; call it at least every 0.1 s.

        Args:
            now: seconds, monotonic.
            given: bytes given so far.
            acked: bytes acknowledged so far.
            waited: for how long threads of either end waited for a processor between two times, at most.
            delivered: bytes that have reached the next hop, those behind a hole included; 0: the kernel does not count.
            arrived: the same of this end, while an answer is awaited; else 0.
        """
        with self._lock:
            if arrived:
                self._arrivals.add_sample(now, 1, arrived)
            self._deliveries.add_sample(now, given - acked if given - acked >= BACKLOG_BYTES else 0, delivered)
            if given - acked < BACKLOG_BYTES:
                self._mark = None
                return
            if self._mark is None:
                # the first acknowledgement takes a round trip
                self._mark = (now + 2 * self._round_trips.delay_s + self._round_trips.above_s, acked)
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
                self._up.observe_transfer(now, size, busy_s, JITTER_S, lag_s)
            self._mark = (now, acked)

    def skip_arrivals(self, now: float) -> None:
        """A part of an answer has arrived: when the next one was sent, nobody tells."""
        with self._lock:
            self._arrivals.take_runs(now)

    def adopt_reading(self, now: float, reading: LinkReading) -> None:
        """Take over what somebody else on this robot has measured more recently."""
        with self._lock:
            for mine, rate, error in (
                (self._up, reading.uplink, reading.uplink_error),
                (self._down, reading.downlink, reading.downlink_error),
            ):
                if rate > 0 and now - reading.age_s > mine.updated_s + 0.1:
                    mine.observe_transfer(now - reading.age_s, rate, 1.0, min(error, 0.5))
                    self._source = reading.source

    def mark_lost(self) -> None:
        """The connection broke: what was known of the link's rate is void."""
        with self._lock:
            for rate in (self._up, self._down):
                rate.reset_estimate()
            self._mark, self._source, self._round_trips = None, NONE, RoundTrips()
            self._deliveries, self._arrivals = Deliveries(UPLOAD_SAMPLE_S), Deliveries(ARRIVAL_SAMPLE_S)
            self._up_free_s = self._down_free_s = -math.inf

    @property
    def unsure(self) -> Tuple[bool, bool]:
        """Up, down: whether one more sample would settle whether the link has just changed."""
        return self._up.unsure, self._down.unsure

    @property
    def useful(self) -> Tuple[int, int]:
        """Up, down: samples that said something, whether they were believed or not."""
        return self._up.useful, self._down.useful

    def make_reading(self, now: float) -> LinkReading:
        """Return the present estimate."""
        with self._lock:
            up, down = self._up, self._down
            return LinkReading(
                uplink=up.bytes_per_s,
                downlink=down.bytes_per_s,
                uplink_error=up.log_error(now),
                downlink_error=down.log_error(now),
                rtt_s=2 * self._round_trips.delay_s if self._round_trips else math.nan,
                source=self._source,
                samples=up.samples + down.samples,
                age_s=now - max(up.updated_s, down.updated_s),
                rtt_age_s=now - self._round_trips.usual_at_s if self._round_trips else 0.0,
            )

    @property
    def uplink(self) -> float:
        """Bytes per second, robot to server; 0 while unknown."""
        return self._up.bytes_per_s

    @property
    def current(self) -> LinkReading:
        """The reading of this moment, cautious."""
        return self.make_reading(time.monotonic()).cautious
