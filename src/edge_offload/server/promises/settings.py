"""Interval and batch of one robot, as if all others were like it (3.4.4, Step 1)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Optional

from edge_offload.errors import BadInput
from edge_offload.server.promises.latencies import NEAR, Latencies

#: No robot waits longer than this many frames for its next slot, however still its scene is.
MAX_INTERVAL = 60
#: Standard deviations beyond which no frames come.
_FAR = 4.0


@dataclass(frozen=True)
class Wish:
    """A robot's promise and its declaration.

    Attributes:
        bound: accuracy that sharing the server may cost, over an exclusive server.
        slope: accuracy lost per frame of age of a result.
        frame_interval: time between two of its frames, in the unit of the latencies.
        up: time from the capture of a frame to its arrival, 95th percentile.
        down: time from the end of a batch to the result's use.
        batch: the largest batch that is exact enough for it.
        usual: median of ``up``, which counts if late frames are not waited for; None: equal to ``up``.
        flicker: accuracy that any older result loses, whatever its age: networks flicker.
        settle: frames in which two thirds of that are lost; 0: all at once.
        noise: standard deviation of a single result's loss, as far as it does not average out.
    """

    bound: float
    slope: float
    frame_interval: float
    up: float = 0.0
    down: float = 0.0
    batch: int = 1
    usual: Optional[float] = None
    flicker: float = 0.0
    settle: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (
            ("bound", True),
            ("slope", False),
            ("frame_interval", True),
            ("up", False),
            ("down", False),
            ("usual", False),
            ("flicker", False),
            ("settle", False),
            ("noise", False),
        ):
            value = getattr(self, name)
            if name == "usual" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise BadInput(f"{name} is {value!r}", remedy="give a finite number")
            if value < 0 or (least and value == 0):
                raise BadInput(f"{name} is {value}", remedy="give a number above 0" if least else "0 is the least")
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise BadInput(f"batch is {self.batch!r}", remedy="1 is the least")

    def result_age(self, service: float, up: Optional[float] = None) -> int:
        """Return frames from a capture to the use of its result, if the server takes ``service``."""
        return max(1, math.ceil(((self.up if up is None else up) + service + self.down) / self.frame_interval - NEAR))

    def total_loss(self, age: int, count: int) -> float:
        """Return the accuracy lost in ``count`` successive frames with a result that is ``age`` frames old at first."""
        total = self.slope * (count * age + count * (count - 1) / 2)
        if self.flicker:
            total += self.flicker * count
            if self.settle:
                decay = math.exp(-1 / self.settle)
                total -= self.flicker * math.exp(-age / self.settle) * (1 - decay**count) / (1 - decay)
        return total

    def planned_age(self, service: float, fresh: bool = False) -> float:
        """Return a result's first age in frames, if batches begin at any time, or (fresh) when the frame arrives.

        At any time the newest frame is half an interval old when its batch begins, and its result is used with the next
        frame that is taken, half an interval later: one frame more than the time for sending and computing.
        """
        if fresh:
            return float(self.result_age(service))
        return (self.up + service + self.down) / self.frame_interval + 1

    def _unsettled(self, age: float, interval: float) -> float:
        """Return the share of the flicker that is not lost yet, on average over the ages of an interval."""
        if not self.flicker or not self.settle:
            return 0.0
        begin = (age - 0.5) / self.settle
        return math.exp(-begin) * -math.expm1(-interval / self.settle) * self.settle / interval

    def longest_interval(self, service: float, latencies: Latencies, fresh: bool = False) -> float:
        """Return the longest interval that keeps the bound, in frames; below 1: none does."""
        return self._find_interval(service, self.reference_loss(latencies), fresh)

    def _find_interval(self, service: float, reference: float, fresh: bool) -> float:
        if self.slope == 0 and not (self.flicker and self.settle):
            return float(MAX_INTERVAL)
        age = self.planned_age(service, fresh)
        most = self.bound + reference - self.flicker - self.slope * (age - 0.5)
        if not self.flicker or not self.settle:
            return min(float(MAX_INTERVAL), 2 * most / self.slope)
        # the drop is concave in the interval: from the left, Newton's steps stay on the left
        interval = 1.0
        # steps of Newton's method
        for _ in range(6):
            unsettled = self._unsettled(age, interval)
            over = self.slope * interval / 2 - self.flicker * unsettled - most
            begin = math.exp(-(age - 0.5 + interval) / self.settle)
            rise = self.slope / 2 + self.flicker * (unsettled - begin) / interval
            if over >= 0 or rise <= 0:
                return interval if over <= NEAR else min(interval, 1.0 - over)
            interval = min(float(MAX_INTERVAL), interval - over / rise)
        return interval

    def reference_loss(self, latencies: Latencies) -> float:
        """Return the loss with an exclusive server: batch 1, and the next frame when the last result has arrived.

        Nothing waits there: results are ``age`` to ``2 * age - 1`` frames old.
        """
        return _mean_reference(self, latencies.batch_latency(1))


@functools.lru_cache(maxsize=4096)
def _mean_reference(wish: Wish, service: float) -> float:
    """Average over delays up, which are taken as normally distributed, weighted by how often each age occurs."""
    usual = wish.up if wish.usual is None else wish.usual
    spread = max(0.0, wish.up - usual) / 1.645  # 95 % of the frames come within
    age = wish.result_age(service, max(0.0, usual - _FAR * spread))
    most = max(age, wish.result_age(service, usual + _FAR * spread))
    total = before = 0.0
    while age < most:
        way = age * wish.frame_interval - service - wish.down
        share = 0.5 + 0.5 * math.erf((way - usual) / (spread * math.sqrt(2)))
        total += (share - before) * wish.total_loss(age, age) / age
        age, before = age + 1, share
    return total + (1 - before) * wish.total_loss(most, most) / most


@dataclass(frozen=True)
class RequestSettings:
    """Frames from request to request, and the largest batch that its promise allows."""

    interval: float
    batch: int


@functools.lru_cache(maxsize=4096)
def choose_settings(
    wish: Wish, latencies: Latencies, fixed_intervals: bool = False, fresh: bool = False
) -> RequestSettings:
    """Choose the greatest ``(batch / latency) * interval`` within the bound: most robots of this kind fit on a server.

    The smaller of two equal batches wins. If no setting keeps the bound, the result is every frame, in a batch of one.

    Args:
        wish: the promise.
        latencies: seconds per batch size.
        fixed_intervals: whole intervals, as in the text; otherwise they use the bound up.
        fresh: batches begin when a frame arrives.
    """
    best, most = RequestSettings(1, 1), -math.inf
    reference, longest = wish.reference_loss(latencies), float(MAX_INTERVAL)
    for batch in range(1, min(wish.batch, latencies.largest) + 1):
        service = latencies.batch_latency(batch)
        # a larger batch takes longer, so that its interval is no longer than that of a smaller one
        if batch / service * longest <= most:
            continue
        longest = wish._find_interval(service, reference, fresh) + NEAR
        if longest < 1:
            break
        interval = float(math.floor(longest)) if fixed_intervals else longest
        throughput = batch / service * interval
        if throughput > most * (1 + NEAR):
            best, most = RequestSettings(interval, batch), throughput
    return best
