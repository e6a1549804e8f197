"""A lower bound on the makespan of every plan that planners can make: how far a plan is from optimal at most.

It holds for any stretch of rows of any operator on either side, replicated or not, any transfer in either direction
with the best codec, steps in program order and transfers in the order of first use. :mod:`counts
<edge_offload_research.split.bounds.counts>` says which problem is solved instead of the real one, :mod:`labels
<edge_offload_research.split.bounds.labels>` how, :mod:`potentials <edge_offload_research.split.bounds.potentials>` what
makes it end. Device-only is compared apart.

:mod:`clocks <edge_offload_research.split.bounds.clocks>` is asked first, where a compiler is at hand: it forgets more
and ends sooner. If that is not enough, labels are. A first, narrow search looks for a better plan; a plan that it finds
is real, checked and takes the place of the given one. A second one asks whether any plan is better than that by more
than ``gap``. If it runs to its end, the answer is a certificate; if labels have to be given up, the bound is what the
best of those might have become.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Tuple, TypeVar

from edge_offload.errors import BadInput, Unsupported
from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.check import check_plan
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.shares import refine_rows
from edge_offload.split.planners.space import ScoredPlan, Space
from edge_offload.split.planners.table import PlanTable
from edge_offload_research.split.bounds.clocks import Clocks
from edge_offload_research.split.bounds.counts import Counts
from edge_offload_research.split.bounds.labels import Search
from edge_offload_research.split.bounds.potentials import Potential

Item = TypeVar("Item")
FINER = ((48, 0.08), (96, 0.04))
"""Clocks that are kept per number of rows where fewer do not reach, and up to which gap they are worth their time."""
SLACK = 0.002
"""Share by which a move of the server's rows may make a plan slower, at first."""


@dataclass(frozen=True)
class Limits:
    """Limits of the effort.

    Attributes:
        gap: a bound this close is good enough; nothing closer is looked for.
        labels: partial plans that are kept per operator; a twentieth of them when looking for a better plan.
        width: share of the makespan that comparing tails on a grid may cost the bound.
        rows: values of more rows than this are too many for the search by clocks.
        moves: of the server's rows, before the bound is looked for; and twice as many that may make the plan slower.
    """

    gap: float = 0.03
    labels: int = 100000
    width: float = 0.005
    rows: int = 128
    moves: int = 3000


def improve_and_bound(space: Space, table: PlanTable,
                      limits: Optional[Limits] = None) -> Tuple[PlanTable, List[Optional[float]]]:  # fmt: skip
    """The table, with a better plan wherever the search finds one, and makespan / lower bound over all plans - 1.

    There is no bound (``None``) for a network with several inputs or results. ``space`` must be over the table's
    bandwidths. No gap is below ``limits.gap`` unless the plan is shown to be the best.
    """
    limits = limits or Limits()
    gaps: List[Optional[float]] = []
    for index in range(len(table.plans)):
        try:
            table, bound = _improve_plan(space, table, index, limits)
        except BadInput:
            return table, [None] * len(table.plans)
        gaps.append(max(table.predicted_s[index] / bound - 1.0, 0.0) if bound > 0 else None)
    return table, gaps


def lower_bound(space: Space, index: int, makespan: float, limits: Limits) -> float:
    """No plan is faster at bandwidth number ``index`` of the space; ``makespan`` is that of the best plan known.

    Raises:
        BadInput: see :class:`~edge_offload_research.split.bounds.counts.Counts`.
    """
    return _bound_makespan(space, Counts(space, float(space.bandwidths[index])), index, makespan, limits, None)[0]


def better_plan(space: Space, counts: Counts, makespan: float, search: Search, index: int) -> Optional[ScoredPlan]:
    """A real plan that is faster than ``makespan``, made of the counts that a search has found.

    The robot's rows are the first ones or the last ones. The counts promise more than plans keep, so a few are tried.
    """
    best: Optional[ScoredPlan] = None
    for counts_of_plan in search.list_counts(most=24) if search.best < makespan else []:
        for flipped in (False, True):
            ranges: List[Dict[int, Range]] = [{}, {}]
            for entry, rows in zip(counts.operators, counts_of_plan):
                for side, count in enumerate(rows):
                    low = entry.length - count if flipped != bool(side) else 0
                    if count:
                        ranges[side][entry.operator] = (low, low + count)
            try:
                scored = space.score_ranges(ranges[0], ranges[1])
            except BadInput:  # counts of rows that only one end of the value has
                continue
            if scored.makespan_s[index] < (makespan if best is None else best.makespan_s[index]):
                best = scored
    return best


def _improve_plan(space: Space, table: PlanTable, index: int, limits: Limits) -> Tuple[PlanTable, float]:
    """The table with the best plan that a narrow search and the one for the bound come by; the bound."""
    counts = Counts(space, float(space.bandwidths[index]))
    table = _with_better(space, table, index, _move_rows(space, table, index, limits.moves))
    makespan = table.predicted_s[index]
    device_only_s = float(space.score_row_splits(space.device_only).makespan_s[index])
    quick = min(_by_clocks(counts, min(makespan, device_only_s), limits), device_only_s)
    if quick >= makespan / (1.0 + limits.gap) * (1.0 - 1e-9):
        return table, quick
    narrow = Search(counts, makespan, max(limits.labels // 20, 1), limits.width * makespan)
    narrow.run()
    table = _with_better(space, table, index, better_plan(space, counts, makespan, narrow, index))
    makespan = table.predicted_s[index]
    bound, search = _bound_makespan(space, counts, index, makespan, limits, narrow.potentials)
    return _with_better(space, table, index, better_plan(space, counts, makespan, search, index)), max(bound, quick)


def _by_clocks(counts: Counts, makespan: float, limits: Limits) -> float:
    """A lower bound on all plans, at most ``makespan`` within the gap; 0 where clocks cannot be asked."""
    if max(entry.length for entry in counts.operators) > limits.rows:
        return 0.0
    target = makespan / (1.0 + limits.gap)
    try:
        clocks = Clocks(counts)
        bound = clocks.least_makespan(target)
        for most, near in FINER:
            if target <= bound or bound * (1.0 + near) < makespan:
                break
            bound = max(bound, clocks.least_makespan(target, most=most))
        return bound
    except Unsupported:  # no compiler: labels alone
        return 0.0


def _move_rows(space: Space, table: PlanTable, index: int, moves: int) -> Optional[ScoredPlan]:
    """The table's plan at one bandwidth with the server's rows moved, if that is faster."""
    single = Space(space.model, [float(space.bandwidths[index])], space.codecs)
    steps = [{step.operator: (step.low, step.high) for step in table.plans[index].steps_of(side)} for side in Side]
    before = single.score_ranges(steps[0], steps[1])
    near = refine_rows(single, Objective(), [before], moves, random.Random(0))
    (refined,) = refine_rows(single, Objective(), near, 2 * moves, random.Random(0), slack=SLACK)
    return space.score_ranges(refined.robot, refined.server) if refined.makespan_s[0] < before.makespan_s[0] else None


def _with_better(space: Space, table: PlanTable, index: int, scored: Optional[ScoredPlan]) -> PlanTable:
    if scored is None:
        return table
    plan = check_plan(space.make_plan(scored, float(space.bandwidths[index])), space.located, space.identity)
    makespan, joules = float(scored.makespan_s[index]), float(scored.energy_j[index])
    about = {**table.plans[index].about, "makespan_s": makespan, "energy_j": joules}
    return replace(
        table,
        plans=_replace_item(table.plans, index, plan.with_about(**about)),
        predicted_s=_replace_item(table.predicted_s, index, makespan),
        predicted_j=_replace_item(table.predicted_j, index, joules),
    )


def _bound_makespan(space: Space, counts: Counts, index: int, makespan: float, limits: Limits,
           tables: Optional[List[Potential]]) -> Tuple[float, Search]:  # fmt: skip
    device_only_s = float(space.score_row_splits(space.device_only).makespan_s[index])
    best = min(makespan, device_only_s)
    width = limits.width * best
    search = Search(counts, best / (1.0 + limits.gap) + width, limits.labels, width, tables)
    rows = counts.operators[-1].length
    at_once = max(float(potential.tables[-1][rows, 0]) for potential in search.potentials)  # holds without a search
    return min(max(search.run(), at_once), device_only_s), search


def _replace_item(items: Tuple[Item, ...], index: int, item: Item) -> Tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])
