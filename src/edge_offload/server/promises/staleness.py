"""What the ages of a schedule's results cost, robot by robot (3.4.4, *verify*)."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.settings import Wish

_NEAR = 1e-9
#: Frames in which a flicker is lost that is lost at once.
_AT_ONCE = 1e-300


class Staleness:
    """Of plans for the same robots, which differ in their intervals and batches.

    Args:
        wishes: of the robots.
        latencies: what a batch takes.
        paces: from which frame and time on they ask.
        fresh: of those who have had no turn yet: it counts from their first result.
    """

    def __init__(
        self, wishes: Sequence[Wish], latencies: Latencies, paces: Sequence[Pace], fresh: Sequence[bool] = ()
    ) -> None:
        self._wishes, self._latencies = wishes, latencies
        self._fresh = np.array(fresh or [False] * len(wishes))
        facts = [
            (wish.slope, wish.flicker, wish.settle or _AT_ONCE, wish.up, wish.down, pace.arrival, pace.frame_interval)
            for wish, pace in zip(wishes, paces)
        ]
        columns = np.array(facts).reshape(-1, 7).T
        self._slope, self._flicker, self._settle, self._up, self._down, self._arrival, self._frame_interval = columns
        self._asked = np.array([pace.frame for pace in paces], int)
        self._flicker_s = bool(np.any(self._flicker > 0))
        self._kept = np.exp(-1 / self._settle)
        self._places = np.arange(len(wishes))
        self._none = np.zeros(len(wishes))
        self._ages: Dict[Tuple[int, int], float] = {}

    def mean_drops(self, plan: Sequence[Batch], paces: Sequence[Pace], until: Optional[float] = None) -> List[float]:
        """What each robot's results lose under ``plan``, on average over its frames; the reference is not taken off.

        It counts from the result of the frame that the robot asked for last to when, an interval after its last turn in
        the plan, the next result would be used: who waits for its first turn, or gets too few, is charged for it.

        Args:
            plan: batches in order of time.
            paces: who asks.
            until: it counts at least to then; None: the plan has all turns.
        """
        if not paces:
            return []
        arrival, frame_interval = self._arrival, self._frame_interval
        interval = np.ceil(np.array([pace.interval for pace in paces]) - _NEAR)
        # of each turn: the robot's place, its frame, and the end of its batch
        takes, ends = self._latencies.of, []
        members: List[int] = []
        for start, turns in plan:
            size = len(turns)
            ends += [start + takes[size - 1]] * size
            for turn in turns:
                members += turn
        place, frame = np.array(members, int).reshape(-1, 2).T
        # frames count from the one that was asked for last
        frame = frame - self._asked[place]
        own = frame_interval[place]
        late = (np.array(ends) + self._down[place] - (arrival[place] + frame * own - self._up[place])) / own
        begin = frame + np.maximum(1.0, np.ceil(late - _NEAR))
        first = [self._age(one, pace.batch) for one, pace in enumerate(paces)]
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
        # what it has counts for nothing: for who is new, and where the plan's first result comes before
        nothing = starts[more & (self._fresh | (begin[second] < begin[starts]))]
        following[nothing] = begin[nothing]
        number = np.maximum(0.0, following - begin)
        lost = self._lost(place, begin - frame, number)
        frames = np.maximum(1.0, np.add.reduceat(number, starts))
        found: List[float] = (np.add.reduceat(lost, starts) / frames).tolist()
        return found

    def _age(self, place: int, batch: int) -> float:
        """Of the result that a robot has when the plan begins, in frames."""
        found = self._ages.get((place, batch))
        if found is None:
            service = self._latencies.batch(min(batch, self._latencies.largest))
            found = self._ages[place, batch] = float(self._wishes[place].age(service))
        return found

    def _lost(self, place: Array, age: Array, count: Array) -> Array:
        """As :meth:`~.settings.Wish.lost`, of many."""
        total: Array = self._slope[place] * (count * age + count * (count - 1) / 2)
        if self._flicker_s:
            kept = self._kept[place]
            unsettled = np.exp(-age / self._settle[place]) * (1 - kept**count) / (1 - kept)
            total += self._flicker[place] * (count - unsettled)
        return total
