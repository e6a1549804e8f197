"""What ``windows.c`` does, in Python: plans are equal bit for bit."""

from __future__ import annotations

import math
from typing import List, Sequence, Tuple

from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.windows import EARLY_SHARE, Window, make_windows

_NEAR = 1e-9


def batches(
    paces: Sequence[Pace], ways: Sequence[float], latencies: Latencies, begin: float, until: float, grace: float = 0.0
) -> List[Batch]:
    """See :func:`edge_offload.server.promises.windows.plan_batches`."""
    robots, seconds = make_windows(paces, ways, latencies), (0.0, *latencies.seconds)
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
            next_frame = max(newest[place] + 1, math.ceil(target[place] - 0.5 - _NEAR))
            ends = opens + frame * taken + length
            in_window = start + seconds[1] <= ends + _NEAR
            if frame >= next_frame and in_window:
                due.append((ends - taken * max(0.0, frame - target[place]), ends, place, frame))
                continue
            following = max(frame + 1, next_frame)
            opening = opens + following * taken
            soon.append((opening, place, following, opening + length))
            if newest[place] < frame < next_frame and in_window:
                early.append(((newest[place] - frame) / interval, ends, place, frame))
        soon.sort()
        early.sort()
        batch = _Batch(robots, seconds)
        if not due:
            ends = start + seconds[1] * (1 + grace)
            if not (early and -early[0][0] >= EARLY_SHARE and _in_time(soon, early[0][2], ends, seconds[1])):
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
            if (max(0.0, opening - start) + seconds[size + 1]) / (size + 1) >= seconds[size] / size:
                break
            batch.add(ends, place, frame)
            start = max(start, opening)
        for share, ends, place, frame in early:
            size = len(batch.members)
            if batch.has(place) or not batch.fits(start, ends, place):
                continue
            if seconds[size + 1] - seconds[size] < -share * seconds[size] / size:
                batch.add(ends, place, frame)
        plan.append(Batch(start, tuple((place, paces[place].frame + int(frame)) for place, frame in batch.members)))
        for place, frame in batch.members:
            newest[place] = frame
            target[place] = min(max(target[place], frame - 0.5), frame + 0.5) + robots[place].interval
        start += seconds[len(batch.members)] * (1 + grace)
    return plan


class _Batch:
    """One that grows."""

    def __init__(self, robots: Sequence[Window], seconds: Sequence[float]) -> None:
        self.members: List[Tuple[int, float]] = []
        self._robots, self._seconds = robots, seconds
        self._most, self._ends = float(len(seconds) - 1), math.inf

    def has(self, place: int) -> bool:
        return any(place == member for member, _ in self.members)

    def fits(self, start: float, ends: float, place: int) -> bool:
        """Whether with this robot it ends in all windows, and is not too large for anybody."""
        size = len(self.members) + 1
        return size <= min(self._most, self._robots[place].batch) and (
            start + self._seconds[size] <= min(self._ends, ends) + _NEAR
        )

    def add(self, ends: float, place: int, frame: float) -> None:
        self.members.append((place, frame))
        self._most, self._ends = min(self._most, self._robots[place].batch), min(self._ends, ends)


def _in_time(soon: Sequence[Tuple[float, int, float, float]], place: int, free: float, seconds: float) -> bool:
    """Whether all others that will be due before ``free`` can still be computed after it, each in its window."""
    return all(opening >= free or free + seconds <= ends + _NEAR for opening, other, _, ends in soon if other != place)
