"""Batches in the windows in which results are freshest: compiled where possible, Python otherwise, with the same plans.

``windows.c`` is built in the background on first use. ``EDGE_OFFLOAD_NATIVE=0`` keeps to Python.
"""

from __future__ import annotations

import array
from typing import List, Optional, Sequence, Tuple

from edge_offload.native.libraries import WINDOWS
from edge_offload.native.loader import Library
from edge_offload.protocol.promises import MOST_FRAME
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.packing import Batch, Pace
from edge_offload.server.promises.windows import portable

_library = Library(WINDOWS, switch="EDGE_OFFLOAD_NATIVE")


def batches(
    paces: Sequence[Pace], ways: Sequence[float], latencies: Latencies, begin: float, until: float, grace: float = 0.0
) -> List[Batch]:
    """See :func:`portable.batches`."""
    if _library.module is None and _library.look() is None:
        _library.start()
    # frames beyond that are not exact as floating-point numbers
    if _library.module is None or not paces or any(abs(pace.frame) > MOST_FRAME for pace in paces):
        return portable.batches(paces, ways, latencies, begin, until, grace)
    windows = portable.windows(paces, ways, latencies)
    facts = array.array("d", [fact for window in windows for fact in window])
    found: Optional[List[Tuple[float, Tuple[Tuple[int, int], ...]]]]
    found = _library.module.batches(facts, array.array("d", latencies.of), begin, until, grace, portable.EARLY_SHARE)
    return [Batch(start, members) for start, members in found or ()]
