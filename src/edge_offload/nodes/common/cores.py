"""CPU cores of a process, by number or by rank, so that one launch file fits machines of any size."""

from __future__ import annotations

import os
from typing import FrozenSet, Optional

from edge_offload.execute.threads import parse_cores


def resolve_cores(text: str) -> Optional[FrozenSet[int]]:
    """Core numbers from ``"0,2-3"``, ``first``, ``second`` (of those allowed; the only one where there is one).

    None for ``any``.

    Raises:
        BadInput: not such a text.
    """
    if text == "any":
        return None
    if text not in ("first", "second"):
        return parse_cores(text)
    allowed = sorted(os.sched_getaffinity(0))
    rank = 0 if text == "first" else min(1, len(allowed) - 1)
    return frozenset({allowed[rank]})
