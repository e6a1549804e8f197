"""A robot with a promise: its promise, its drops so far and its clock. No clock, no thread."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional, Tuple

from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.planner import Client
from edge_offload.server.promises.settings import choose_settings

#: A promise holds on average over about this many seconds.
MEMORY_S = 10.0
#: A frame later than its estimate moves the estimate by the first share, an earlier one by the second: the estimate is
#: the time by which nearly all frames have arrived.
_LATER, _EARLIER = 0.3, 0.01
#: Weight of a frame in the mean error of that estimate.
_CLOCK_SHARE = 0.05
#: Weight of a plan in the mean margin (planned minus real drop), and the margin's limit in bounds.
_MARGIN_SHARE, _MOST_MARGIN = 0.05, 0.1


@dataclass(frozen=True)
class Rules:
    """Parameters of planning.

    Attributes:
        horizon_s: length of a plan (seconds).
        most_spare: share of a bound by which a plan may exceed it, if earlier plans cost less.
        spare_gain: a lower drop before permits so many times the difference now.
        planned: share of a bound that plans keep to.
        noise_share: noisy results make sessions differ, whose means over 20 s are within this share of the noise: plans
            aim lower by as much, but at no less than ``least_share`` of the bound.
        window_noise: the mean over 5 s is within this share of the noise: it exceeds ``window_bounds`` bounds in at
            most 5 % of cases, if plans aim at no less than ``least_window_share`` of the bound.
        fixed_intervals: intervals as in the text.
        caution: share of the usual reserve that is applied, 0 to 1.
    """

    # the text plans 1 s ahead; 2 s hold 5 to 30 % more robots, since intervals may be nearly as long as that
    horizon_s: float = 2.0
    most_spare: float = 0.5
    spare_gain: float = 2.0
    # plans aim at this share of the bound, since links are uneven
    planned: float = 0.965
    noise_share: float = 0.21
    least_share: float = 0.71
    window_noise: float = 0.5
    window_bounds: float = 1.5
    least_window_share: float = 0.51
    fixed_intervals: bool = False
    caution: float = 1.0


@dataclass
class Robot:
    """One robot on a board.

    Attributes:
        client: its promise and declaration.
    """

    client: Client
    #: Newest frame in a batch, and its arrival if it is sent as soon as it is taken.
    frame: int
    arrival: float
    #: Share of the device at its admission.
    claim: float = 0.0
    #: Mean drop so far, decayed over :data:`MEMORY_S`; None before its first slot.
    mean: Optional[float] = None
    #: Mean of planned minus real drop: batches begin as soon as all members have arrived.
    margin: float = 0.0
    #: Mean error of the estimated arrival (seconds); None before the first frame.
    clock_error: Optional[float] = None
    #: Frames between slots in the last plan with windows; 0: there was none.
    interval: float = 0.0
    #: Newest frame with a result, and the first frame it is used for.
    result: Optional[Tuple[int, int]] = None

    def as_client(self, begin: float, latencies: Latencies, rules: Rules) -> Client:
        """Return the client of a plan that begins at ``begin``, with the rest of its bound.

        A robot without a plan does without results until then; its first slot is due at once.
        """
        wish = self.client.wish
        remaining = rules.planned * wish.bound
        if rules.most_spare:
            remaining = max(rules.least_share * wish.bound, remaining - rules.noise_share * wish.noise)
            within_window = rules.window_bounds * wish.bound - rules.window_noise * wish.noise
            remaining = max(rules.least_window_share * wish.bound, min(remaining, within_window))
            remaining = wish.bound - rules.caution * (wish.bound - remaining)
        wish, interval = replace(wish, bound=remaining), self.interval
        if self.mean is None:
            frames = math.floor((begin - self.arrival) / wish.frame_interval) - math.ceil(
                choose_settings(wish, latencies).interval
            )
            arrival = self.arrival + frames * wish.frame_interval
            return replace(
                self.client, wish=wish, frame=self.frame + frames, arrival=arrival, fresh=True, interval=interval
            )
        most = rules.most_spare * wish.bound
        spare = min(max((wish.bound - self.mean) * rules.spare_gain, -most), most)
        return replace(self.client, wish=wish, frame=self.frame, arrival=self.arrival, spare=spare, interval=interval)

    @property
    def within_bound(self) -> bool:
        """True if its recent mean drop is within its bound."""
        return self.mean is None or self.mean <= self.client.wish.bound

    @property
    def usual_spare(self) -> float:
        """Drop beyond its bound that a plan may cost it in the long run."""
        return min(max(self.margin, 0.0), _MOST_MARGIN * self.client.wish.bound)

    def record_use(self, frame: int, begin: int, latencies: Latencies) -> None:
        """Record that a result for ``frame`` is used from the frame ``begin`` on."""
        before, wish = self.result, self.client.wish
        if before is not None and frame <= before[0]:
            return
        self.result = frame, begin
        if before is None or begin <= before[1]:
            return
        count = begin - before[1]
        drop = wish.total_loss(before[1] - before[0], count) / count - wish.reference_loss(latencies)
        decay = math.exp(-count * wish.frame_interval / MEMORY_S)
        self.mean = drop if self.mean is None else drop + decay * (self.mean - drop)

    def record_arrival(self, frame: int, arrival: float) -> None:
        """Update the estimate of the robot's clock, slowly, since links are uneven."""
        late = arrival - self._expected_arrival(frame)
        if abs(late) > 10 * self.client.wish.frame_interval:
            self.frame, self.arrival = max(self.frame, frame), arrival  # the robot counts anew, or its clock stepped
            self.clock_error = None
        else:
            before = late if self.clock_error is None else self.clock_error
            self.clock_error = before + _CLOCK_SHARE * (late - before)
            self.arrival += (_LATER if late > 0 else _EARLIER) * late

    def capture_time(self, frame: int) -> float:
        """Return the estimated capture time of a frame."""
        wish = self.client.wish
        if self.clock_error is None or wish.usual is None:
            return self._expected_arrival(frame) - wish.up
        return self._expected_arrival(frame) + self.clock_error - wish.usual

    def record_plan(self, drop: float, interval: float) -> None:
        """Record a plan's drop, and its number of frames between slots."""
        self.interval = interval
        if self.mean is None:
            self.mean = drop
        self.margin += _MARGIN_SHARE * (drop - self.mean - self.margin)

    def mark_planned(self, frame: int) -> None:
        """Record that a frame is in a batch."""
        if frame > self.frame:
            self.arrival, self.frame = self._expected_arrival(frame), frame

    def _expected_arrival(self, frame: int) -> float:
        return self.arrival + (frame - self.frame) * self.client.wish.frame_interval
