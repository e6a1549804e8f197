"""When the links of machines are in use, up and down (4.5.5)."""

from __future__ import annotations

import bisect
import math
from typing import List, Tuple

NEAR = 1e-9

#: Times from and to, rising, in which a link is in use.
Spans = List[Tuple[float, float]]


class Links:
    """When each machine's link is in use, up and down.

    Args:
        machines: how many there are.
    """

    def __init__(self, machines: int) -> None:
        self.up: List[Spans] = [[] for _ in range(machines)]
        self.down: List[Spans] = [[] for _ in range(machines)]

    def begin(self, sender: int, receiver: int, at: float, takes: float) -> float:
        """The first time from ``at`` on when both machines' links are free for so long."""
        up, down = self.up[sender], self.down[receiver]
        begin = -math.inf
        while at > begin:
            begin = at
            at = gap(down, gap(up, begin, takes), takes)
        return begin

    def take(self, sender: int, receiver: int, begin: float, end: float, now: float) -> None:
        """Nobody else sends from or to there meanwhile; what was over by ``now`` is forgotten."""
        for spans in (self.up[sender], self.down[receiver]):
            over = next((place for place, (_, until) in enumerate(spans) if until > now), len(spans))
            del spans[:over]
            bisect.insort(spans, (begin, end))


def gap(spans: Spans, at: float, takes: float) -> float:
    """The first time from ``at`` on that is free for so long; of spans that begin before, the last alone matters."""
    for begin, end in spans[max(0, bisect.bisect_left(spans, (at - 2 * NEAR,)) - 1) :]:
        if begin >= at + takes - NEAR:
            break
        at = max(at, end)
    return at
