"""A robot with a promise: what it was promised and had so far, when its frames come. No clock, no thread."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional, Tuple

from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.planner import Client
from edge_offload.server.promises.settings import settle

#: A promise is kept on average over about this many seconds: who had less may have so many times the rest, but a single
#: plan costs at most half a bound more, or less.
MEMORY_S, GAIN, MOST_SPARE = 10.0, 2.0, 0.5
#: Plans keep to this share of what was promised: links are uneven.
PLANNED = 0.965
#: Where single results are noisy sessions differ: their means over 20 s are within this share of the noise. What a plan
#: keeps to is that much less, and at least this share of what was promised.
SESSION, LEAST = 0.21, 0.71
#: Nor may the mean over 5 s exceed so many bounds in more than one case of twenty: it is within so much of the noise.
BEYOND, WINDOW, LEAST_OF_WINDOWS = 1.5, 0.5, 0.51
#: A frame that comes later than believed moves what is believed by the first share, an earlier one by the second:
#: frames are expected when nearly all of them have come.
_LATER, _EARLIER = 0.3, 0.01
#: Share of a frame in what is known of how far from that belief they are.
_APART = 0.05
#: Share of a plan in what is known of how much less plans cost than they say, and the most that is believed of it.
_LESS, _MOST_LESS = 0.05, 0.1


@dataclass(frozen=True)
class Rules:
    """How plans are made.

    Attributes:
        horizon_s: that is planned ahead (seconds).
        most_spare: share of a bound by which a plan may exceed it, if plans of before cost less.
        planned: share of a bound that plans keep to.
        whole: intervals as in the text.
        cautious: so much of what is usually kept back is; 1: all.
    """

    # the text plans 1 s ahead; 2 s hold 5 to 30 % more robots, since intervals may be nearly as long as that
    horizon_s: float = 2.0
    most_spare: float = MOST_SPARE
    planned: float = PLANNED
    whole: bool = False
    cautious: float = 1.0


@dataclass
class Robot:
    """One robot on a board.

    Attributes:
        client: what it was promised, and says of itself.
    """

    client: Client
    #: Newest frame that is in a batch, and when that arrives if it is sent as soon as it is taken.
    frame: int
    arrival: float
    #: Share of the device that it was admitted with.
    claim: float = 0.0
    #: Mean drop of what it was given so far, what is long ago counting less; None before its first turn.
    mean: Optional[float] = None
    #: How much less plans cost than they say, on average: batches begin as soon as all members have come.
    less: float = 0.0
    #: How much earlier or later frames come than believed, on average; None before the first.
    apart: Optional[float] = None
    #: Frames from turn to turn in the last plan in windows; 0: there was none.
    interval: float = 0.0
    #: Newest frame whose result it has, and the first frame it is used for.
    result: Optional[Tuple[int, int]] = None

    def at(self, begin: float, latencies: Latencies, rules: Rules) -> Client:
        """On the clock of a plan that begins then, with what earlier plans have left of its bound.

        Who has had no plan yet does without until then; its first turn is due at once.
        """
        wish = self.client.wish
        left = rules.planned * wish.bound
        if rules.most_spare:
            left = max(LEAST * wish.bound, left - SESSION * wish.noise)
            left = max(LEAST_OF_WINDOWS * wish.bound, min(left, BEYOND * wish.bound - WINDOW * wish.noise))
            left = wish.bound - rules.cautious * (wish.bound - left)
        wish, interval = replace(wish, bound=left), self.interval
        if self.mean is None:
            frames = math.floor((begin - self.arrival) / wish.frame_interval) - math.ceil(
                settle(wish, latencies).interval
            )
            arrival = self.arrival + frames * wish.frame_interval
            return replace(
                self.client, wish=wish, frame=self.frame + frames, arrival=arrival, fresh=True, interval=interval
            )
        most = rules.most_spare * wish.bound
        spare = min(max((wish.bound - self.mean) * GAIN, -most), most)
        return replace(self.client, wish=wish, frame=self.frame, arrival=self.arrival, spare=spare, interval=interval)

    @property
    def kept(self) -> bool:
        """Whether it had what it was promised of late."""
        return self.mean is None or self.mean <= self.client.wish.bound

    @property
    def usual_spare(self) -> float:
        """What a plan may cost it beyond its bound, in the long run."""
        return min(max(self.less, 0.0), _MOST_LESS * self.client.wish.bound)

    def used(self, frame: int, begin: int, latencies: Latencies) -> None:
        """A result for ``frame`` is used from the frame ``begin`` on."""
        before, wish = self.result, self.client.wish
        if before is not None and frame <= before[0]:
            return
        self.result = frame, begin
        if before is None or begin <= before[1]:
            return
        count = begin - before[1]
        drop = wish.lost(before[1] - before[0], count) / count - wish.reference(latencies)
        kept = math.exp(-count * wish.frame_interval / MEMORY_S)
        self.mean = drop if self.mean is None else drop + kept * (self.mean - drop)

    def came(self, frame: int, arrival: float) -> None:
        """A frame has come: what is believed of the robot's clock follows, slowly, since links are uneven."""
        late = arrival - self._expected(frame)
        if abs(late) > 10 * self.client.wish.frame_interval:
            self.frame, self.arrival = max(self.frame, frame), arrival  # the robot counts anew, or its clock stepped
            self.apart = None
        else:
            before = late if self.apart is None else self.apart
            self.apart = before + _APART * (late - before)
            self.arrival += (_LATER if late > 0 else _EARLIER) * late

    def captured(self, frame: int) -> float:
        """When a frame was captured, as believed."""
        wish = self.client.wish
        if self.apart is None or wish.usual is None:
            return self._expected(frame) - wish.up
        return self._expected(frame) + self.apart - wish.usual

    def planned(self, drop: float, interval: float) -> None:
        """A plan costs it so much, with so many frames from turn to turn."""
        self.interval = interval
        if self.mean is None:
            self.mean = drop
        self.less += _LESS * (drop - self.mean - self.less)

    def take(self, frame: int) -> None:
        """A frame of it is in a batch."""
        if frame > self.frame:
            self.arrival, self.frame = self._expected(frame), frame

    def _expected(self, frame: int) -> float:
        return self.arrival + (frame - self.frame) * self.client.wish.frame_interval
