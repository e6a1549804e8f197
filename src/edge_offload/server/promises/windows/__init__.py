"""Batches of frames that have just arrived, by earliest deadline first; ``windows.c`` packs them.

Where robots have few frames from one slot to the next, as at 10 Hz, it matters most when in a frame's interval its
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
from edge_offload.server.promises.latencies import NEAR, Latencies
from edge_offload.server.promises.packing import Batch, Pace

#: If no robot is due, one gets an early slot after at least this share of its interval.
EARLY_SHARE = 0.4

_library = Library(WINDOWS, switch="EDGE_OFFLOAD_NATIVE")


class Window(NamedTuple):
    """Times in which a robot's frames can be computed. ``windows.c`` reads these as numbers, in this order.

    Attributes:
        opens: start of the window of the last requested frame, which has arrived by then.
        frame_interval: time between frames.
        length: a batch has to end so long after the window opens.
        batch: the largest batch that the robot may be computed in.
        interval: frames between slots.
        offset: frames are counted from this one; 0: the requested one.
    """

    opens: float
    frame_interval: float
    length: float
    batch: float
    interval: float
    offset: float = 0.0


def is_ready(wait: bool = False) -> bool:
    """Return True if the compiled module is loaded.

    Else it is built in the background, or before this returns (``wait``).
    """
    if _library.module is None and _library.look() is None:
        _library.start()
        if wait:
            _library.wait()
    return _library.look() is not None


def make_windows(paces: Sequence[Pace], ways: Sequence[float], latencies: Latencies) -> List[Window]:
    """Return the window of each robot.

    Args:
        paces: their requests; ``tolerance`` is negative: frames arrive so long before a batch begins.
        ways: time up and down of robots' frames and results.
        latencies: seconds per batch size.
    """
    result = []
    for pace, way in zip(paces, ways):
        spacing, early = pace.frame_interval, -(pace.tolerance or 0.0)
        batch = min(pace.batch, latencies.largest)
        # without a tenth of a frame interval to spare, it is the window of the next frame
        needed = way + latencies.batch_latency(batch) + early + 0.1 * spacing
        frames = max(1, math.ceil(needed / spacing - NEAR))
        length = frames * spacing - way - early
        result.append(Window(pace.arrival + early, spacing, length, batch, pace.interval))
    return result


def plan_batches(
    paces: Sequence[Pace], ways: Sequence[float], latencies: Latencies, begin: float, until: float, grace: float = 0.0
) -> List[Batch]:
    """Batches from ``begin`` on, each in the windows of all its members.

    A robot is due an interval after its last slot; a late one does not catch up. Due robots are computed by the end of
    their windows, or sooner if overdue. A batch waits for others that will be due if that uses the device better. It
    includes robots that are not due yet if they cost less now than later. If no robot is due, the one closest to its
    next due time is served, unless another robot would then miss its window.

    Args:
        paces: robots, with their intervals and largest batches.
        ways: time up and down of each robot's frames and results.
        latencies: seconds per batch size.
        begin: the device is free from then on.
        until: a batch that begins after this is the last.
        grace: share of a batch's time that is left open after it.

    Raises:
        Unsupported: it is not :func:`is_ready`.
    """
    if not is_ready():
        raise Unsupported(f"no compiled planner: {_library.why_not or 'it is being built'}", remedy="plan without it")
    if not paces:
        return []
    module: Any = _library.module
    numbers = array.array("d", [number for window in make_windows(paces, ways, latencies) for number in window])
    planned: Optional[List[Tuple[float, Tuple[Tuple[int, int], ...]]]]
    planned = module.batches(numbers, array.array("d", latencies.seconds), begin, until, grace, EARLY_SHARE)
    # the extension counts frames from the requested ones, because a double holds no frame number of any size
    return [
        Batch(start, tuple((place, paces[place].frame + frame) for place, frame in members))
        for start, members in planned or ()
    ]
