"""Accuracy lost to the age of a schedule's results, robot by robot (3.4.4, *verify*)."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.server.promises.latencies import NEAR, Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.settings import Wish


class Staleness:
    """Losses under plans for the same robots, which differ in their intervals and batches.

    Args:
        wishes: of the robots.
        latencies: seconds per batch size.
        paces: first frame, time and interval of requests.
        fresh: True for robots without a slot so far: counting starts at their first result.
    """

    def __init__(
        self, wishes: Sequence[Wish], latencies: Latencies, paces: Sequence[Pace], fresh: Sequence[bool] = ()
    ) -> None:
        self._wishes, self._latencies = wishes, latencies
        self._fresh = np.array(fresh or [False] * len(wishes))
        # 1e-300: a flicker that is lost at once
        facts = [
            (wish.slope, wish.flicker, wish.settle or 1e-300, wish.up, wish.down, pace.arrival, pace.frame_interval)
            for wish, pace in zip(wishes, paces)
        ]
        columns = np.array(facts).reshape(-1, 7).T
        self._slope, self._flicker, self._settle, self._up, self._down, self._arrival, self._frame_interval = columns
        self._requested = np.array([pace.frame for pace in paces], int)
        self._flicker_s = bool(np.any(self._flicker > 0))
        self._decay = np.exp(-1 / self._settle)
        self._places = np.arange(len(wishes))
        self._none = np.zeros(len(wishes))
        self._ages: Dict[Tuple[int, int], float] = {}

    def mean_drops(self, plan: Sequence[Batch], paces: Sequence[Pace], until: Optional[float] = None) -> List[float]:
        """Return each robot's mean loss per frame under ``plan``, without subtracting the reference.

        Counting goes from the result of the robot's last request to the use of the next result, an interval after its
        last slot in the plan: waiting for a first slot, or too few slots, costs.

        Args:
            plan: batches in order of time.
            paces: of the robots.
            until: counting goes at least to this time; None: the plan has all slots.
        """
        if not paces:
            return []
        arrival, frame_interval = self._arrival, self._frame_interval
        interval = np.ceil(np.array([pace.interval for pace in paces]) - NEAR)
        # of each slot: the robot's place, its frame, and the end of its batch
        seconds, ends = self._latencies.seconds, []
        members: List[int] = []
        for start, slots in plan:
            size = len(slots)
            ends += [start + seconds[size - 1]] * size
            for slot in slots:
                members += slot
        place, frame = np.array(members, int).reshape(-1, 2).T
        # frames count from the last request
        frame = frame - self._requested[place]
        spacing = frame_interval[place]
        late = (np.array(ends) + self._down[place] - (arrival[place] + frame * spacing - self._up[place])) / spacing
        begin = frame + np.maximum(1.0, np.ceil(late - NEAR))
        first = [self._first_age(index, pace.batch) for index, pace in enumerate(paces)]
        # robot by robot: the result that it has, then those of the plan
        place = np.concatenate((self._places, place))
        order = place.argsort(kind="stable")
        place = place[order]
        frame, begin = np.concatenate((self._none, frame))[order], np.concatenate((first, begin))[order]
        starts = place.searchsorted(self._places)
        following, last = np.empty_like(begin), np.append(starts[1:], len(place)) - 1
        following[:-1] = begin[1:]
        following[last] = begin[last] + interval
        if until is not None:
            following[last] = np.maximum(following[last], np.floor((until - arrival) / frame_interval))
        more = last > starts
        second = np.minimum(starts + 1, last)
        # the present result does not count for a new robot, nor if the plan's first result arrives before it
        unused = starts[more & (self._fresh | (begin[second] < begin[starts]))]
        following[unused] = begin[unused]
        number = np.maximum(0.0, following - begin)
        lost = self._total_loss(place, begin - frame, number)
        frames = np.maximum(1.0, np.add.reduceat(number, starts))
        means: List[float] = (np.add.reduceat(lost, starts) / frames).tolist()
        return means

    def _first_age(self, place: int, batch: int) -> float:
        """Return the age, in frames, of a robot's result when the plan begins."""
        age = self._ages.get((place, batch))
        if age is None:
            service = self._latencies.batch_latency(min(batch, self._latencies.largest))
            age = self._ages[place, batch] = float(self._wishes[place].result_age(service))
        return age

    def _total_loss(self, place: Array, age: Array, count: Array) -> Array:
        """Vectorise :meth:`~.settings.Wish.total_loss` over robots."""
        total: Array = self._slope[place] * (count * age + count * (count - 1) / 2)
        if self._flicker_s:
            decay = self._decay[place]
            unsettled = np.exp(-age / self._settle[place]) * (1 - decay**count) / (1 - decay)
            total += self._flicker[place] * (count - unsettled)
        return total
