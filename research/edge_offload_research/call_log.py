"""A call log: what an intercepting recorder sees of a program, one entry per call to the device.

The searches of :mod:`edge_offload_research.operator_search` read nothing else, so they work on a log of CUDA runtime
calls (as in RRTO), of operators, or of whole segments.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Hashable, Tuple


class Category(str, enum.Enum):
    """Kind of a call: the alphabet of the compact string that FastCheck compares."""

    HTOD = "H"
    DTOH = "D"
    DTOD = "C"
    LAUNCH = "K"
    ALLOC = "A"
    SYNC = "S"
    QUERY = "Q"


#: Calls that neither move nor compute data. They may stand between two inferences and belong to neither.
NEUTRAL = frozenset({Category.SYNC, Category.QUERY})


@dataclass(frozen=True)
class Call:
    """One entry of the log. Two entries are the same record when every field is equal.

    Attributes:
        category: the kind of call.
        function: its name, for example ``cudaLaunchKernel`` or ``aten::add.Tensor``.
        arguments: everything else that the call depends on, except the bytes that a copy carries.
        reads: addresses (or storage ids) whose contents the call uses.
        writes: addresses whose contents the call produces. A host-to-device copy writes, a device-to-host copy reads.
    """

    category: Category
    function: str
    arguments: Hashable = ()
    reads: Tuple[int, ...] = ()
    writes: Tuple[int, ...] = ()
