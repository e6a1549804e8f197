"""What the ages of a schedule's results cost, robot by robot (3.4.4, *verify*)."""

from __future__ import annotations

import math
from typing import List, Sequence, Tuple

from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.settings import Wish

_NEAR = 1e-9


def mean_drops(
    plan: Sequence[Batch],
    paces: Sequence[Pace],
    wishes: Sequence[Wish],
    latencies: Latencies,
    fresh: Sequence[bool] = (),
) -> List[float]:
    """What each robot's results lose under ``plan``, on average over its frames; the reference is not taken off.

    It counts from the result of the frame that the robot asked for last to when, an interval after its last turn in the
    plan, the next result would be used: who waits for its first turn, or gets too few, is charged for it.

    Args:
        plan: batches in order of time.
        paces: who asks.
        wishes: of the same robots.
        latencies: what a batch takes.
        fresh: of those who have had no turn yet: it counts from their first result.
    """
    used: List[List[Tuple[int, int]]] = [
        [(pace.frame, pace.frame + wish.age(latencies.batch(min(pace.batch, latencies.largest))))]
        for pace, wish in zip(paces, wishes)
    ]
    for batch in plan:
        done = batch.start + latencies.batch(len(batch.members))
        for place, frame in batch.members:
            pace, wish = paces[place], wishes[place]
            captured = pace.arrival_of(frame) - wish.up
            age = max(1, math.ceil((done + wish.down - captured) / pace.frame_interval - _NEAR))
            used[place].append((frame, frame + age))
    for place, is_fresh in enumerate(fresh):
        if is_fresh and len(used[place]) > 1:
            del used[place][0]
    return [_mean(results, wish, pace.interval) for results, wish, pace in zip(used, wishes, paces)]


def _mean(results: Sequence[Tuple[int, int]], wish: Wish, interval: float) -> float:
    if len(results) > 1 and results[1][1] < results[0][1]:
        results = results[1:]
    nexts = [begin for _, begin in results[1:]] + [results[-1][1] + math.ceil(interval - _NEAR)]
    frames, total = 0, 0.0
    for (frame, begin), following in zip(results, nexts):
        count = max(0, following - begin)
        frames += count
        total += wish.lost(begin - frame, count)
    return total / frames
