"""Requests that will come, packed into batches back to back and moved to where they fit (3.4.4, Algorithm 2).

Choices that the text leaves open: a robot is in a batch at most once. A batch is no larger than the strictest of its
members allows. Frames of a robot rise: a second request for a frame is dropped. The order of arrivals is preserved. If
no robot with requests has a new frame, the device waits for the next one. The time is linear in the requests, except
for their merging by arrival and these waits.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edge_offload.server.promises.latencies import NEAR, Latencies


class Pace(NamedTuple):
    """Request rate of a robot; all times are in the unit of the plan, on one clock.

    Attributes:
        robot: its name.
        interval: frames from one request to the next; any number from 1 on.
        batch: the largest batch that it may be computed in.
        frame: number of its last requested frame.
        arrival: arrival time of that frame.
        frame_interval: time between two of its frames.
        tolerance: a frame may arrive this long after the start of its batch (negative: before it); None: half a frame
            interval, which chooses the nearest frame.
    """

    robot: str
    interval: float
    batch: int
    frame: int
    arrival: float
    frame_interval: float = 1.0
    tolerance: Optional[float] = None

    def frame_at(self, start: float) -> int:
        """Return the newest frame that arrives by ``start + tolerance``."""
        tolerance = 0.5 * self.frame_interval if self.tolerance is None else self.tolerance
        return self.frame + math.floor((start - self.arrival + tolerance) / self.frame_interval + NEAR)

    def arrival_of(self, frame: int) -> float:
        """Return the arrival time of ``frame`` if it is sent as soon as it is taken."""
        return self.arrival + (frame - self.frame) * self.frame_interval


class Batch(NamedTuple):
    """Requests that are computed together.

    Attributes:
        start: its start; its members have arrived by then.
        members: (index of the robot in the paces, frame).
    """

    start: float
    members: Tuple[Tuple[int, int], ...]


def order_requests(paces: Sequence[Pace], until: float) -> List[int]:
    """Return indices into ``paces`` in the order in which requests arrive up to ``until``, at constant intervals."""
    counts = [_count_requests(pace, until + NEAR) for pace in paces]
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
    ordered: List[int] = places[order].tolist()
    return ordered


def _count_requests(pace: Pace, until: float) -> int:
    """Count requests that arrive by ``until``, consistent with the rounding of the sums."""
    count = max(0, int((until - pace.arrival) / (pace.interval * pace.frame_interval)))
    while pace.arrival + (count + 1) * pace.interval * pace.frame_interval <= until:
        count += 1
    while count and pace.arrival + count * pace.interval * pace.frame_interval > until:
        count -= 1
    return count


def pack_requests(
    paces: Sequence[Pace],
    requests: Sequence[int],
    latencies: Latencies,
    begin: float,
    grace: float = 0.0,
    wait: bool = False,
    until: float = math.inf,
) -> List[Batch]:
    """Pack requests into batches back to back from ``begin`` on, in the order of ``requests`` (Algorithm 2).

    Args:
        paces: the robots.
        requests: indices into ``paces`` in order of arrival: :func:`order_requests`.
        latencies: seconds per batch size.
        begin: start of the first batch: the device is free.
        grace: share of a batch's time that is left open after it for late members.
        wait: if the device would be idle, a request for a frame that is already planned moves on by half its interval,
            instead of being dropped: batches are not back to back there.
        until: a batch that begins after this is the last.
    """
    plan: List[Batch] = []
    # a planner calls this some thousand times a second: the fields of each robot in one tuple
    largest, count = latencies.largest, len(requests)
    durations = [latencies.batch_latency(size) * (1.0 + grace) for size in range(1, largest + 1)]
    facts = []
    for pace in paces:
        tolerance = 0.5 * pace.frame_interval if pace.tolerance is None else pace.tolerance
        later = max(1, int(pace.interval // 2))
        facts.append(
            (pace.batch, pace.frame, pace.arrival, pace.frame_interval, tolerance, pace.arrival - tolerance, later)
        )
    newest = [pace.frame for pace in paces]
    inside = [-1] * len(paces)
    floor = math.floor
    # the position of each robot's last request
    last = {} if wait else {place: position for position, place in enumerate(requests)}
    position, start, number, waited_until = 0, begin, 0, math.nan
    while position < count:
        members: List[Tuple[int, int]] = []
        size, limit = 0, largest
        while size < limit and position < count:
            place = requests[position]
            most, first, arrival, frame_interval, tolerance, base, later = facts[place]
            if size >= most or inside[place] == number:
                break
            # as Pace.frame_at
            frame = first + floor((start - base) / frame_interval + NEAR)
            if wait and not size and frame <= newest[place]:
                frame = newest[place] + later
                start = max(start, arrival + (frame - first) * frame_interval - min(0.0, tolerance))
                frame = max(frame, first + floor((start - arrival + tolerance) / frame_interval + NEAR))
            elif not wait and not size and frame <= newest[place] and waited_until != start:
                waited_until = max(
                    start, _next_frame_s(paces, [other for other in last if last[other] >= position], newest, start)
                )
                if waited_until > start:
                    start = waited_until
                    continue
            if frame > newest[place]:
                members.append((place, frame))
                size += 1
                inside[place] = number
                newest[place] = frame
                if most < limit:
                    limit = most
            position += 1
        if members:
            plan.append(Batch(start, tuple(members)))
            if start > until:
                break
            start += durations[size - 1]
            number += 1
    return plan


def _next_frame_s(paces: Sequence[Pace], places: Sequence[int], newest: Sequence[int], start: float) -> float:
    """Return when the first of the robots at ``places`` has a frame after its ``newest`` one, at least ``start``."""
    if any(paces[place].frame_at(start) > newest[place] for place in places):
        return start
    return min(paces[place].arrival_of(newest[place] + 1) - min(0.0, paces[place].tolerance or 0.0) for place in places)
