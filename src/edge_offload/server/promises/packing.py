"""Requests that will come, packed into batches back to back and moved to where they fit (3.4.4, Algorithm 2).

What the text leaves open is decided so: a robot is in a batch at most once; a batch is no larger than the strictest of
its members allows; a robot's frames rise, so a request whose frame has been asked for already falls away; the order of
arrivals is kept. The time is linear in the requests, but for their merging by arrival.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from edge_offload.server.promises.latencies import Latencies

#: Rounding of sums: an arrival this close after the end of the horizon belongs to it.
_NEAR = 1e-9


@dataclass(frozen=True)
class Pace:
    """How a robot asks: all times in the unit of the plan, on one clock.

    Attributes:
        robot: its name.
        interval: frames from one request to the next; any number from 1 on.
        batch: the largest batch that it may be computed in.
        frame: number of the last frame that it asked for.
        arrival: when that frame arrived.
        frame_interval: time between two of its frames.
        late: a frame may arrive this long after the start that it is chosen for (below 0: so long before it); None:
            half a frame interval, so that the nearest is chosen.
    """

    robot: str
    interval: float
    batch: int
    frame: int
    arrival: float
    frame_interval: float = 1.0
    late: Optional[float] = None

    def frame_at(self, start: float) -> int:
        """The newest frame that arrives by ``start + late``."""
        late = 0.5 * self.frame_interval if self.late is None else self.late
        return self.frame + math.floor((start - self.arrival + late) / self.frame_interval + _NEAR)

    def arrival_of(self, frame: int) -> float:
        """When ``frame`` arrives, if it is sent as soon as it is taken."""
        return self.arrival + (frame - self.frame) * self.frame_interval


class Batch(NamedTuple):
    """What is computed together.

    Attributes:
        start: when it begins; its members have arrived by then.
        members: (place of the robot among the paces, frame).
    """

    start: float
    members: Tuple[Tuple[int, int], ...]


def simulate(paces: Sequence[Pace], until: float) -> Iterator[int]:
    """Whose request arrives next, if each robot keeps to its interval: places among ``paces``, up to ``until``."""
    heap = [(pace.arrival + pace.interval * pace.frame_interval, place, 1) for place, pace in enumerate(paces)]
    heapq.heapify(heap)
    while heap and heap[0][0] <= until + _NEAR:
        _, place, count = heap[0]
        pace = paces[place]
        yield place
        coming = pace.arrival + (count + 1) * pace.interval * pace.frame_interval
        heapq.heapreplace(heap, (coming, place, count + 1))


def adjust(
    paces: Sequence[Pace],
    requests: Sequence[int],
    latencies: Latencies,
    begin: float,
    grace: float = 0.0,
    wait: bool = False,
    fresh: bool = False,
) -> List[Batch]:
    """Batches back to back from ``begin`` on, in the order of ``requests`` (Algorithm 2).

    Args:
        paces: the robots.
        requests: places among them, in order of arrival: :func:`simulate`.
        latencies: what a batch takes.
        begin: when the device is free.
        grace: share of a batch's time that is left open after it, for members that come late.
        wait: where a device would be idle, a request whose frame has been asked for already is moved half its interval
            on, instead of falling away: batches are not back to back there.
        fresh: with ``wait``, a batch whose first request is not due yet begins when that arrives, not with an earlier
            frame.
    """
    plan: List[Batch] = []
    newest: Dict[int, int] = {}
    at, start = 0, begin
    while at < len(requests):
        members: List[Tuple[int, int]] = []
        inside: Set[int] = set()
        limit = latencies.largest
        while at < len(requests) and len(members) < limit:
            place = requests[at]
            pace = paces[place]
            if place in inside or len(members) >= pace.batch:
                break
            frame = pace.frame_at(start)
            least = newest.get(place, pace.frame) + (max(1, int(pace.interval)) - 1 if fresh else 0)
            if wait and not members and frame <= least:
                frame = least + 1 if fresh else least + max(1, int(pace.interval // 2))
                start = max(start, pace.arrival_of(frame) - min(0.0, pace.late or 0.0))
                frame = max(frame, pace.frame_at(start))
            if frame > newest.get(place, pace.frame):
                members.append((place, frame))
                inside.add(place)
                newest[place] = frame
                limit = min(limit, pace.batch)
            at += 1
        if members:
            plan.append(Batch(start, tuple(members)))
            start += latencies.batch(len(members)) * (1.0 + grace)
    return plan
