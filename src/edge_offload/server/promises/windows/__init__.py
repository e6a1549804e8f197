"""Batches of frames that have just come, by earliest deadline first; ``windows.c`` packs them.

Where robots have few frames from one turn to the next, as at 10 Hz, it matters most when in a frame's interval its
batch begins: until some moment the result is used as early as the frame allows, after it a whole frame later, and then
the next frame would have given a fresher result for the same use. So each frame has a *window*, and robots are served
within windows only: a robot that misses one slides to its next frame, by which robots spread over frames by themselves.
Algorithm 2 (:mod:`~edge_offload.server.promises.packing`) keeps the order of arrivals, and knows nothing of windows.

It is C because plans are made five times a second, and for 64 robots Python takes several times as long. It is built by
``scripts/setup``, else in the background on first use. Without it (no compiler) Algorithm 2 plans alone.
"""

from __future__ import annotations

import array
import math
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from edge_offload.errors import Unsupported
from edge_offload.native.libraries import WINDOWS
from edge_offload.native.loader import Library
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace

_NEAR = 1e-9
#: A window is at least this share of a frame interval longer than the batch itself; where it were shorter, it is that
#: of the next frame.
LEAST = 0.1
#: Where nobody is due, somebody of whose interval at least this share has passed gets a turn sooner.
EARLY_SHARE = 0.4

_library = Library(WINDOWS, switch="EDGE_OFFLOAD_NATIVE")


class Window(NamedTuple):
    """When a robot's frames can be computed. ``windows.c`` reads these as numbers, in this order.

    Attributes:
        opens: when that of the frame asked for last opened: it has arrived for certain.
        frame_interval: from one to the next.
        length: a batch has to end so long after the window opens.
        batch: the largest batch that the robot may be computed in.
        interval: frames from one turn to the next.
        asked: frames are counted from this one; 0: the one asked for.
    """

    opens: float
    frame_interval: float
    length: float
    batch: float
    interval: float
    asked: float = 0.0


def ready(wait: bool = False) -> bool:
    """Whether the compiled module is there; if not, it is built in the background, or while this waits (seconds)."""
    if _library.module is None and _library.look() is None:
        _library.start()
        if wait:
            _library.wait()
    return _library.look() is not None


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
        found.append(Window(pace.arrival + early, taken, length, batch, pace.interval))
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

    Raises:
        Unsupported: it is not :func:`ready`.
    """
    if not ready():
        raise Unsupported(f"no compiled planner: {_library.why_not or 'it is being built'}", remedy="plan without it")
    if not paces:
        return []
    module: Any = _library.module
    facts = array.array("d", [fact for window in windows(paces, ways, latencies) for fact in window])
    found: Optional[List[Tuple[float, Tuple[Tuple[int, int], ...]]]]
    found = module.batches(facts, array.array("d", latencies.of), begin, until, grace, EARLY_SHARE)
    # frames are counted from those asked for, since numbers of any size are exact here alone
    return [
        Batch(start, tuple((place, paces[place].frame + frame) for place, frame in members))
        for start, members in found or ()
    ]
