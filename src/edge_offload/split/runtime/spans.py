"""When a side computed, as spans of time; how long both sides did."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, List, Sequence, Tuple

#: Spans this close to each other are one: between two blocks that had all they awaited a side does not wait.
NEAR_S = 1e-4
#: Most spans that are kept of an inference; what is computed behind them is not in them.
MOST = 64

Pair = Tuple[float, float]


@dataclass
class Spans:
    """Spans of one side, in order (monotonic seconds of its own clock).

    Attributes:
        pairs: (begin, end) of each.
    """

    pairs: List[Pair] = field(default_factory=list)

    def add(self, began_s: float) -> None:
        """It has computed since ``began_s``."""
        now = time.monotonic()
        if self.pairs and began_s - self.pairs[-1][1] <= NEAR_S:
            self.pairs[-1] = self.pairs[-1][0], now
        elif len(self.pairs) < MOST:
            self.pairs.append((began_s, now))

    def told(self) -> List[float]:
        """Return the spans as numbers for the other side."""
        return [moment for pair in list(self.pairs) for moment in pair]


def spans_told(told: Any, offset_s: float) -> Tuple[Pair, ...]:
    """What the other side told (:meth:`Spans.told`), on our own clock; ``offset_s``: its clock minus ours.

    Empty where it told nothing that can be, or how the clocks differ is not known.
    """
    if not isinstance(told, list) or len(told) % 2 or len(told) > 2 * MOST or not math.isfinite(offset_s):
        return ()
    if not all(isinstance(moment, float) and math.isfinite(moment) for moment in told) or sorted(told) != told:
        return ()
    return tuple((begin - offset_s, end - offset_s) for begin, end in zip(told[::2], told[1::2]))


def both_s(one: Sequence[Pair], other: Sequence[Pair]) -> float:
    """Return seconds that lie in spans of both."""
    return sum(max(0.0, min(mine[1], yours[1]) - max(mine[0], yours[0])) for mine in one for yours in other)
