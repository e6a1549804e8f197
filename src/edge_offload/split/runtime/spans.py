"""When a side computed, as spans of time; how long both sides did."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, List, Sequence, Tuple

#: Most spans that are kept of an inference; what is computed behind them is not in them.
MAX_SPANS = 64

Pair = Tuple[float, float]


@dataclass
class ComputeSpans:
    """Spans of one side, in order (monotonic seconds of its own clock).

    Attributes:
        pairs: (begin, end) of each.
    """

    pairs: List[Pair] = field(default_factory=list)

    def add_span(self, started_s: float) -> None:
        """It has computed since ``started_s``."""
        now = time.monotonic()
        # between two blocks that had all they awaited a side does not wait
        if self.pairs and started_s - self.pairs[-1][1] <= 1e-4:
            self.pairs[-1] = self.pairs[-1][0], now
        elif len(self.pairs) < MAX_SPANS:
            self.pairs.append((started_s, now))

    def to_numbers(self) -> List[float]:
        """Return the spans as numbers for the other side."""
        return [moment for pair in list(self.pairs) for moment in pair]


def parse_spans(numbers: Any, offset_s: float) -> Tuple[Pair, ...]:
    """What the other side told (:meth:`Spans.to_numbers`), on our own clock; ``offset_s``: its clock minus ours.

    Empty where it told nothing that can be, or how the clocks differ is not known.
    """
    if not isinstance(numbers, list) or len(numbers) % 2 or len(numbers) > 2 * MAX_SPANS or not math.isfinite(offset_s):
        return ()
    if not all(isinstance(moment, float) and math.isfinite(moment) for moment in numbers) or sorted(numbers) != numbers:
        return ()
    return tuple((begin - offset_s, end - offset_s) for begin, end in zip(numbers[::2], numbers[1::2]))


def overlap_seconds(one: Sequence[Pair], other: Sequence[Pair]) -> float:
    """Return seconds that lie in spans of both."""
    return sum(
        max(0.0, min(own_span[1], other_span[1]) - max(own_span[0], other_span[0]))
        for own_span in one
        for other_span in other
    )
