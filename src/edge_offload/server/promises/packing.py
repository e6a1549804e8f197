"""Requests that will come, packed into batches back to back and moved to where they fit (3.4.4, Algorithm 2).

What the text leaves open is decided so: a robot is in a batch at most once; a batch is no larger than the strictest of
its members allows; a robot's frames rise, so a request whose frame has been asked for already falls away; the order of
arrivals is kept; where nobody who has requests left has a new frame, the device waits for the next one. The time is
linear in the requests, but for their merging by arrival, and for such looks at all robots.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edge_offload.server.promises.latencies import Latencies

#: Rounding of sums: an arrival this close after the end of the horizon belongs to it.
_NEAR = 1e-9


class Pace(NamedTuple):
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


def simulate(paces: Sequence[Pace], until: float) -> List[int]:
    """Whose request arrives next, if each robot keeps to its interval: places among ``paces``, up to ``until``."""
    counts = [_requests(pace, until + _NEAR) for pace in paces]
    total = sum(counts)
    if not total:
        return []
    each = np.array(counts)
    places = np.repeat(np.arange(len(paces)), each)
    number = np.arange(1, total + 1) - (np.cumsum(each) - each)[places]
    columns = np.array([(pace.arrival, pace.interval, pace.frame_interval) for pace in paces])
    arrival, interval, frame_interval = columns[places].T
    # of requests that arrive together the first robot's goes first
    order = np.argsort(arrival + number * interval * frame_interval, kind="stable")
    found: List[int] = places[order].tolist()
    return found


def _requests(pace: Pace, until: float) -> int:
    """How many of its requests arrive by then: as many as the sums, rounded as they are, say."""
    count = max(0, int((until - pace.arrival) / (pace.interval * pace.frame_interval)))
    while pace.arrival + (count + 1) * pace.interval * pace.frame_interval <= until:
        count += 1
    while count and pace.arrival + count * pace.interval * pace.frame_interval > until:
        count -= 1
    return count


def adjust(
    paces: Sequence[Pace],
    requests: Sequence[int],
    latencies: Latencies,
    begin: float,
    grace: float = 0.0,
    wait: bool = False,
    until: float = math.inf,
) -> List[Batch]:
    """Batches back to back from ``begin`` on, in the order of ``requests`` (Algorithm 2), as long as there are frames.

    Args:
        paces: the robots.
        requests: places among them, in order of arrival: :func:`simulate`.
        latencies: what a batch takes.
        begin: when the device is free.
        grace: share of a batch's time that is left open after it, for members that come late.
        wait: where a device would be idle, a request whose frame has been asked for already is moved half its interval
            on, instead of falling away: batches are not back to back there.
        until: a batch that begins after this is the last.
    """
    plan: List[Batch] = []
    # a planner does this some thousand times a second: what a robot is, side by side
    largest, count = latencies.largest, len(requests)
    takes = [latencies.batch(size) * (1.0 + grace) for size in range(1, largest + 1)]
    facts = []
    for pace in paces:
        late = 0.5 * pace.frame_interval if pace.late is None else pace.late
        later = max(1, int(pace.interval // 2))
        facts.append((pace.batch, pace.frame, pace.arrival, pace.frame_interval, late, pace.arrival - late, later))
    newest = [pace.frame for pace in paces]
    inside = [-1] * len(paces)
    floor = math.floor
    #: Of each robot, which of the requests is its last.
    last = {} if wait else {place: at for at, place in enumerate(requests)}
    at, start, number, looked = 0, begin, 0, math.nan
    while at < count:
        members: List[Tuple[int, int]] = []
        size, limit = 0, largest
        while size < limit and at < count:
            place = requests[at]
            most, first, arrival, frame_interval, late, base, later = facts[place]
            if size >= most or inside[place] == number:
                break
            # as Pace.frame_at
            frame = first + floor((start - base) / frame_interval + _NEAR)
            if wait and not size and frame <= newest[place]:
                frame = newest[place] + later
                start = max(start, arrival + (frame - first) * frame_interval - min(0.0, late))
                frame = max(frame, first + floor((start - arrival + late) / frame_interval + _NEAR))
            elif not wait and not size and frame <= newest[place] and looked != start:
                looked = max(start, _next_frame_s(paces, [one for one in last if last[one] >= at], newest, start))
                if looked > start:
                    start = looked
                    continue
            if frame > newest[place]:
                members.append((place, frame))
                size += 1
                inside[place] = number
                newest[place] = frame
                if most < limit:
                    limit = most
            at += 1
        if members:
            plan.append(Batch(start, tuple(members)))
            if start > until:
                break
            start += takes[size - 1]
            number += 1
    return plan


def _next_frame_s(paces: Sequence[Pace], places: Sequence[int], newest: Sequence[int], start: float) -> float:
    """When the first of the robots at ``places`` has a frame after its ``newest`` one; ``start``: it has one then."""
    if any(paces[place].frame_at(start) > newest[place] for place in places):
        return start
    return min(paces[place].arrival_of(newest[place] + 1) - min(0.0, paces[place].late or 0.0) for place in places)
