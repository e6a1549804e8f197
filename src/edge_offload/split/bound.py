"""A lower bound on the makespan of every plan that planners can make: how far a plan is from optimal at most.

It holds for any stretch of rows of any operator on either side, replicated or not, any transfer in either direction
with the best codec, steps in program order and transfers in the order of first use. :mod:`counts
<edge_offload.split.counts>` says which problem is solved instead of the real one, :mod:`labels
<edge_offload.split.labels>` how, :mod:`potentials <edge_offload.split.potentials>` what makes it end. Device-only is
compared apart.

The search asks whether any plan is better than the given one by more than ``gap``. If it runs to its end, the answer is
a certificate; if labels have to be given up, the bound is what the best of those might have become.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

from edge_offload.errors import BadInput
from edge_offload.split.counts import Counts
from edge_offload.split.labels import Search
from edge_offload.split.planners import PlanTable
from edge_offload.split.space import Space


@dataclass(frozen=True)
class Limits:
    """How hard to try.

    Attributes:
        gap: a bound this close is good enough; nothing closer is looked for.
        labels: partial plans that are kept per operator.
        width: share of the makespan that comparing tails on a grid may cost the bound.
    """

    gap: float = 0.03
    labels: int = 20000
    width: float = 0.004


def full_space_gaps(space: Space, table: PlanTable, limits: Optional[Limits] = None) -> List[Optional[float]]:
    """Makespan / lower bound over all plans - 1 for every plan of a table; ``None`` where no bound is known.

    There is none for a network with several inputs or results. ``space`` must be over the table's bandwidths. No gap is
    below ``limits.gap`` unless the plan is shown to be the best.
    """
    gaps: List[Optional[float]] = []
    for index, makespan in enumerate(table.predicted_s):
        try:
            bound = lower_bound(space, index, makespan, limits or Limits())
        except BadInput:
            return [None] * len(table.plans)
        gaps.append(max(makespan / bound - 1.0, 0.0) if bound > 0 else None)
    return gaps


def lower_bound(space: Space, index: int, makespan: float, limits: Limits) -> float:
    """No plan is faster at bandwidth number ``index`` of the space; ``makespan`` is that of the best plan known.

    Raises:
        BadInput: see :class:`~edge_offload.split.counts.Counts`.
    """
    counts = Counts(space, float(space.bandwidths[index]))
    alone = float(space.score(space.device_only).makespan_s[index])
    best = min(makespan, alone)
    width = limits.width * best
    return min(Search(counts, best / (1.0 + limits.gap) + width, limits.labels, width).run(), alone)
