"""Latencies of batches on a device: the table from which every plan is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from edge_offload.errors import BadInput

#: Limit of batch sizes, which bounds tables from files and from the network.
MAX_BATCH = 64
#: Rounding of sums: times and shares this close to each other are equal.
NEAR = 1e-9


@dataclass(frozen=True)
class Latencies:
    """Latency of one batch by its size, in seconds or the unit of the plan.

    Attributes:
        seconds: ``seconds[b - 1]`` is the latency of a batch of ``b``.
    """

    seconds: Tuple[float, ...]

    @classmethod
    def parse(cls, values: Sequence[object]) -> Latencies:
        """Check values of a file or a measurement and build a table from them.

        Raises:
            BadInput: empty, too long, not finite and positive, or a larger batch that takes less than a smaller one.
        """
        if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= MAX_BATCH:
            raise BadInput(f"a latency table has 1 to {MAX_BATCH} entries, one for each batch size")
        numbers: List[float] = []
        for size, value in enumerate(values, 1):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise BadInput(f"the latency of a batch of {size} is {value!r}", remedy="give positive, finite numbers")
            if numbers and value < numbers[-1]:
                raise BadInput(
                    f"a batch of {size} takes {value}, less than one of {size - 1} ({numbers[-1]})",
                    remedy="measure again on an idle device; a table does not fall with the batch size",
                )
            numbers.append(float(value))
        return cls(tuple(numbers))

    @property
    def largest(self) -> int:
        """Size of the largest batch in the table."""
        return len(self.seconds)

    def batch_latency(self, size: int) -> float:
        """Return the latency of a batch of ``size``, ``1 <= size <= largest``."""
        return self.seconds[size - 1]
