"""What the ages of a schedule's results cost, robot by robot (3.4.4, *verify*)."""

from __future__ import annotations

import math
from typing import List, Optional, Sequence

import numpy as np

from edge_offload.arrays import Array
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.settings import Wish

_NEAR = 1e-9


class Staleness:
    """Of plans for the same robots, which differ in their paces.

    Args:
        wishes: of the robots.
        latencies: what a batch takes.
        fresh: of those who have had no turn yet: it counts from their first result.
    """

    def __init__(self, wishes: Sequence[Wish], latencies: Latencies, fresh: Sequence[bool] = ()) -> None:
        self._wishes, self._latencies = wishes, latencies
        self._fresh = np.array(fresh or [False] * len(wishes))
        facts = [(wish.slope, wish.flicker, wish.settle or math.nan, wish.up, wish.down) for wish in wishes]
        self._slope, self._flicker, self._settle, self._up, self._down = np.array(facts).reshape(-1, 5).T
        self._flicker_s = bool(np.any(self._flicker > 0))

    def mean_drops(self, plan: Sequence[Batch], paces: Sequence[Pace], until: Optional[float] = None) -> List[float]:
        """What each robot's results lose under ``plan``, on average over its frames; the reference is not taken off.

        It counts from the result of the frame that the robot asked for last to when, an interval after its last turn in
        the plan, the next result would be used: who waits for its first turn, or gets too few, is charged for it.

        Args:
            plan: batches in order of time.
            paces: who asks.
            until: it counts at least to then; None: the plan has all turns.
        """
        latencies, count = self._latencies, len(paces)
        if not count:
            return []
        facts = [(pace.arrival, pace.frame_interval, math.ceil(pace.interval - _NEAR)) for pace in paces]
        arrival, frame_interval, interval = np.array(facts).T
        sizes = [len(batch.members) for batch in plan]
        ends = np.repeat([batch.start + latencies.batch(size) for batch, size in zip(plan, sizes)], sizes)
        # frames count from the one that was asked for last
        members = [(place, frame - paces[place].frame) for batch in plan for place, frame in batch.members]
        place, frame = np.array(members, int).reshape(-1, 2).T
        captured = arrival[place] + frame * frame_interval[place] - self._up[place]
        late = (ends + self._down[place] - captured) / frame_interval[place]
        begin = frame + np.maximum(1.0, np.ceil(late - _NEAR))
        first = [
            float(wish.age(latencies.batch(min(pace.batch, latencies.largest))))
            for pace, wish in zip(paces, self._wishes)
        ]
        # robot by robot: the result that it has, then those of the plan
        place = np.concatenate([np.arange(count), place])
        order = np.argsort(place, kind="stable")
        place = place[order]
        frame, begin = np.concatenate([np.zeros(count), frame])[order], np.concatenate([first, begin])[order]
        starts = np.searchsorted(place, np.arange(count))
        following, last = np.empty_like(begin), np.append(starts[1:], len(place)) - 1
        following[:-1] = begin[1:]
        following[last] = begin[last] + interval
        if until is not None:
            following[last] = np.maximum(following[last], np.floor((until - arrival) / frame_interval))
        more = last > starts
        second = np.minimum(starts + 1, last)
        # what it has counts for nothing: for who is new, and where the plan's first result comes before
        nothing = starts[more & (self._fresh | (begin[second] < begin[starts]))]
        following[nothing] = begin[nothing]
        number = np.maximum(0.0, following - begin)
        lost = self._lost(place, begin - frame, number)
        frames = np.maximum(1.0, np.add.reduceat(number, starts))
        found: List[float] = (np.add.reduceat(lost, starts) / frames).tolist()
        return found

    def _lost(self, place: Array, age: Array, count: Array) -> Array:
        """As :meth:`~.settings.Wish.lost`, of many."""
        total: Array = self._slope[place] * (count * age + count * (count - 1) / 2)
        if self._flicker_s:
            settle = self._settle[place]
            kept = np.exp(-1 / settle)
            unsettled = np.exp(-age / settle) * (1 - kept**count) / (1 - kept)
            total += self._flicker[place] * (count - np.nan_to_num(unsettled))
        return total
