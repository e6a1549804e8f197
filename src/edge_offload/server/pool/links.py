"""Schedule of machines' links, up and down (4.5.5)."""

from __future__ import annotations

import bisect
import math
from typing import List, Tuple

NEAR = 1e-9

#: Times from and to, rising, in which a link is in use.
Spans = List[Tuple[float, float]]


class LinkSchedule:
    """Reserved times of each machine's link, up and down.

    Args:
        machines: their number.
    """

    def __init__(self, machines: int) -> None:
        self.up: List[Spans] = [[] for _ in range(machines)]
        self.down: List[Spans] = [[] for _ in range(machines)]

    def earliest_start(self, sender: int, receiver: int, at: float, duration: float) -> float:
        """Return the first time from ``at`` on when both machines' links are free for ``duration`` seconds."""
        up, down = self.up[sender], self.down[receiver]
        begin = -math.inf
        while at > begin:
            begin = at
            at = find_gap(down, find_gap(up, begin, duration), duration)
        return begin

    def reserve_span(self, sender: int, receiver: int, begin: float, end: float, now: float) -> None:
        """Reserve both links from ``begin`` to ``end``; remove reservations that ended before ``now``."""
        for spans in (self.up[sender], self.down[receiver]):
            past = next((place for place, (_, until) in enumerate(spans) if until > now), len(spans))
            del spans[:past]
            bisect.insort(spans, (begin, end))


def find_gap(spans: Spans, at: float, duration: float) -> float:
    """Return the first time from ``at`` on that is free for so long; of earlier spans only the last matters."""
    for begin, end in spans[max(0, bisect.bisect_left(spans, (at - 2 * NEAR,)) - 1) :]:
        if begin >= at + duration - NEAR:
            break
        at = max(at, end)
    return at
