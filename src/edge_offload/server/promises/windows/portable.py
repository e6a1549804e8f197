"""Batches of frames that have just come, by earliest deadline first.

Where robots have few frames from one turn to the next, as at 10 Hz, it matters most when in a frame's interval its
batch begins: until some moment the result is used as early as the frame allows, after it a whole frame later, and then
the next frame would have given a fresher result for the same use. So each frame has a *window*, and robots are served
within windows only: a robot that misses one slides to its next frame, by which robots spread over frames by themselves.
Algorithm 2 (:mod:`~edge_offload.server.promises.packing`) keeps the order of arrivals, and knows nothing of windows.

``windows.c`` does the same; plans are equal bit for bit.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Sequence, Tuple

from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace

_NEAR = 1e-9
#: A window is at least this share of a frame interval longer than the batch itself; where it were shorter, it is that
#: of the next frame.
LEAST = 0.1
#: Where nobody is due, somebody of whose interval at least this share has passed gets a turn sooner.
EARLY_SHARE = 0.4


class Window(NamedTuple):
    """When a robot's frames can be computed. ``windows.c`` reads these as numbers, in this order.

    Attributes:
        opens: when that of the frame asked for last opened: it has arrived for certain.
        frame_interval: from one to the next.
        length: a batch has to end so long after the window opens.
        batch: the largest batch that the robot may be computed in.
        interval: frames from one turn to the next.
        asked: number of the frame asked for.
    """

    opens: float
    frame_interval: float
    length: float
    batch: float
    interval: float
    asked: float


def windows(paces: Sequence[Pace], ways: Sequence[float], latencies: Latencies) -> List[Window]:
    """Of each robot.

    Args:
        paces: how robots ask; ``late`` is how long before a batch begins their frames arrive, as a negative number.
        ways: what robots' frames and results take up and down.
        latencies: what a batch takes.
    """
    found = []
    for pace, way in zip(paces, ways):
        taken, early = pace.frame_interval, -(pace.late or 0.0)
        batch = min(pace.batch, latencies.largest)
        needed = way + latencies.batch(batch) + early + LEAST * taken
        frames = max(1, math.ceil(needed / taken - _NEAR))
        length = frames * taken - way - early
        found.append(Window(pace.arrival + early, taken, length, batch, pace.interval, pace.frame))
    return found


def batches(
    paces: Sequence[Pace], ways: Sequence[float], latencies: Latencies, begin: float, until: float, grace: float = 0.0
) -> List[Batch]:
    """Batches from ``begin`` on, each in the windows of all its members.

    A robot is due an interval after its last turn (from then on: one that was late does not catch up). Those that are
    due and in their windows are computed by the end of those, sooner where they are overdue; the batch waits for others
    that will be due where that takes less of the device per robot, and has room left for some who are not due yet where
    they cost less than they would later. Where nobody is due, whoever waits longest for its interval has a turn, unless
    it would make one miss its window who will be.

    Args:
        paces: robots, with their intervals and largest batches.
        ways: of each, what its frames and results take up and down.
        latencies: what a batch takes.
        begin: when the device is free.
        until: a batch that begins after this is the last.
        grace: share of a batch's time that is left open after it.
    """
    robots, takes = windows(paces, ways, latencies), (0.0, *latencies.of)
    #: Of each robot, from the frame asked for last on: the newest in the plan, and which it should be next, on average.
    newest, target = [0.0] * len(robots), [window.interval for window in robots]
    plan: List[Batch] = []
    start = begin
    while robots and start <= until:
        #: Places with what they are chosen by; the ends of their windows are in it, for frames in question.
        due: List[Tuple[float, float, int, float]] = []
        soon: List[Tuple[float, int, float, float]] = []
        early: List[Tuple[float, float, int, float]] = []
        for place, (opens, taken, length, _, interval, _) in enumerate(robots):
            frame = float(math.floor((start - opens) / taken + _NEAR))
            wanted = max(newest[place] + 1, math.ceil(target[place] - 0.5 - _NEAR))
            ends = opens + frame * taken + length
            in_window = start + takes[1] <= ends + _NEAR
            if frame >= wanted and in_window:
                due.append((ends - taken * max(0.0, frame - target[place]), ends, place, frame))
                continue
            following = max(frame + 1, wanted)
            opening = opens + following * taken
            soon.append((opening, place, following, opening + length))
            if newest[place] < frame < wanted and in_window:
                early.append(((newest[place] - frame) / interval, ends, place, frame))
        soon.sort()
        early.sort()
        batch = _Batch(robots, takes)
        if not due:
            ends = start + takes[1] * (1 + grace)
            if not (early and -early[0][0] >= EARLY_SHARE and _in_time(soon, early[0][2], ends, takes[1])):
                if not soon[0][0] > start:
                    break  # numbers so large that no time passes
                start = soon[0][0]
                continue
            batch.add(*early[0][1:])
        for _, ends, place, frame in sorted(due):
            if batch.fits(start, ends, place):
                batch.add(ends, place, frame)
        for opening, place, frame, ends in soon:
            if batch.has(place):
                continue
            size = len(batch.members)
            if not batch.fits(max(start, opening), ends, place):
                break
            if (max(0.0, opening - start) + takes[size + 1]) / (size + 1) >= takes[size] / size:
                break
            batch.add(ends, place, frame)
            start = max(start, opening)
        for share, ends, place, frame in early:
            size = len(batch.members)
            if batch.has(place) or not batch.fits(start, ends, place):
                continue
            if takes[size + 1] - takes[size] < -share * takes[size] / size:
                batch.add(ends, place, frame)
        plan.append(Batch(start, tuple((place, paces[place].frame + int(frame)) for place, frame in batch.members)))
        for place, frame in batch.members:
            newest[place] = frame
            target[place] = min(max(target[place], frame - 0.5), frame + 0.5) + robots[place].interval
        start += takes[len(batch.members)] * (1 + grace)
    return plan


class _Batch:
    """One that grows."""

    def __init__(self, robots: Sequence[Window], takes: Sequence[float]) -> None:
        self.members: List[Tuple[int, float]] = []
        self._robots, self._takes = robots, takes
        self._most, self._ends = float(len(takes) - 1), math.inf

    def has(self, place: int) -> bool:
        return any(place == member for member, _ in self.members)

    def fits(self, start: float, ends: float, place: int) -> bool:
        """Whether with this robot it ends in all windows, and is not too large for anybody."""
        size = len(self.members) + 1
        return size <= min(self._most, self._robots[place].batch) and (
            start + self._takes[size] <= min(self._ends, ends) + _NEAR
        )

    def add(self, ends: float, place: int, frame: float) -> None:
        self.members.append((place, frame))
        self._most, self._ends = min(self._most, self._robots[place].batch), min(self._ends, ends)


def _in_time(soon: Sequence[Tuple[float, int, float, float]], place: int, free: float, takes: float) -> bool:
    """Whether all others that will be due before ``free`` can still be computed after it, each in its window."""
    return all(opening >= free or free + takes <= ends + _NEAR for opening, other, _, ends in soon if other != place)
