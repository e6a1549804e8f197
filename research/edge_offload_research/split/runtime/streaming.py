"""Plans whose steps follow the pieces: the receiver computes a first wave of rows while later ones are on their way.

Streaming is nothing but a finer plan. A transfer of many rows becomes several, and the receiver's steps behind it are
taken in as many waves, each as far as its rows reach. Halos between waves are not computed twice: a wave takes the
rows of the one before it from where they are. ``edge-offload plan --stream`` shows it; no robot does it, as none of six
profiled networks at nine bandwidths has a plan that gains :data:`LEAST_GAIN`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

import numpy as np

from edge_offload.split.model.check import BadPlan, check_plan
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import PlanStep, RowTransfer, Side, SplitPlan
from edge_offload.split.model.simulate import compile_plan, sweep_bandwidths
from edge_offload.split.planners.table import PlanTable

WAVE_COUNTS = (2, 4)
STEP_DEPTHS = (6, 24, 80)
LEAST_GAIN = 0.15
"""Expected gain below which a plan stays whole: rows in waves are gathered and read in slices, which costs leave out
(measured: a quarter to a half more time)."""


def stream_plan(plan: SplitPlan, located: LocalityMap, waves: int, depth: int) -> SplitPlan:
    """``plan`` with the first input transfer in ``waves`` parts, and the first ``depth`` steps behind it likewise.

    The plan as it is, where its input does not travel, has too few rows, or the steps are not local; or where waves
    would wait for each other: the robot may hand over rows that it makes from those of a later wave.
    """
    inputs = set(located.sequence.inputs)
    places = [k for k, t in enumerate(plan.transfers)
              if t.sender is Side.ROBOT and t.value in inputs and t.value in located.axes]  # fmt: skip
    if len(places) != 1 or waves < 2:
        return plan
    place = places[0]
    transfer = plan.transfers[place]
    size = transfer.high - transfer.low
    if size < 4 * waves:
        return plan
    edges = [transfer.low + size * k // waves for k in range(waves + 1)]
    early, late = _early_steps(plan, located, transfer, depth)
    if not early:
        return plan
    order: List[PlanStep] = []
    finished: Dict[int, int] = {step.operator: step.low for step in early}
    limit = {step.operator: step.high for step in early}
    ends: Dict[int, int] = {}
    for edge in edges[1:]:
        ends[transfer.value] = edge
        for step in early:
            end = _last_row(
                located, step.operator, finished[step.operator], limit[step.operator], ends, edge == edges[-1]
            )
            if end > finished[step.operator]:
                order.append(PlanStep(step.operator, finished[step.operator], end))
                finished[step.operator] = end
            for number in located.made_by[step.operator]:
                ends[number] = finished[step.operator]
    parts = [RowTransfer(transfer.value, low, high, transfer.sender, transfer.codec)
             for low, high in zip(edges, edges[1:])]  # fmt: skip
    transfers = (*plan.transfers[:place], *parts, *plan.transfers[place + 1 :])
    streamed = replace(plan, server=(*order, *late), transfers=transfers)
    try:
        return check_plan(streamed, located, plan.sequence)
    except BadPlan:
        return plan


def _early_steps(
    plan: SplitPlan, located: LocalityMap, transfer: RowTransfer, depth: int
) -> Tuple[List[PlanStep], List[PlanStep]]:
    """Return the server's first local steps that need only this transfer, and the rest; order is preserved."""
    available = {transfer.value}
    early: List[PlanStep] = []
    for position, step in enumerate(plan.server):
        needs = located.footprint(step.operator, step.low, step.high)
        local = located.operators[step.operator].local is not None
        repeated = any(other.operator == step.operator for other in early)
        if not local or repeated or not set(needs) <= available or len(early) == depth:
            return early, list(plan.server[position:])
        early.append(step)
        available.update(located.made_by[step.operator])
    return early, []


def _last_row(located: LocalityMap, operator: int, low: int, high: int, ends: Dict[int, int], last: bool) -> int:
    """Return the last row that an operator can compute from the present rows, by bisection: footprints grow."""
    if last:
        return high

    def fits(end: int) -> bool:
        return all(rows[1] <= ends[number] for number, rows in located.footprint(operator, low, end).items())

    first, beyond = low, high + 1
    while beyond - first > 1:
        middle = (first + beyond) // 2
        if fits(middle):
            first = middle
        else:
            beyond = middle
    return first


def best_stream(
    plan: SplitPlan,
    model: CostModel,
    bandwidths: Sequence[float],
    waves: Sequence[int] = WAVE_COUNTS,
    depths: Sequence[int] = STEP_DEPTHS,
) -> SplitPlan:
    """Return the variant of ``plan`` with the best simulated mean; ``plan`` itself for little gain.

    Args:
        plan: checked.
        model: costs.
        bandwidths: bytes per second at which the plan will serve.
        waves: numbers of waves that are tried.
        depths: depths that are tried.
    """
    rates = np.asarray(bandwidths, dtype=float)

    def mean_s(candidate: SplitPlan) -> float:
        return float(sweep_bandwidths(compile_plan(candidate, model), model, rates)[0].mean())

    best, shortest = plan, mean_s(plan) * (1 - LEAST_GAIN)
    seen: List[Tuple[PlanStep, ...]] = [plan.server]
    for count in waves:
        for depth in depths:
            candidate = stream_plan(plan, model.located, count, depth)
            if candidate.server in seen:
                continue
            seen.append(candidate.server)
            seconds = mean_s(candidate)
            if seconds < shortest:
                best, shortest = candidate, seconds
    return best


def stream_table(table: PlanTable, model: CostModel) -> PlanTable:
    """Return the table with the best variant of each plan, and with their makespans and energy."""
    plans = tuple(best_stream(plan, model, [rate]) for plan, rate in zip(table.plans, table.bandwidths))
    costs = [
        sweep_bandwidths(compile_plan(plan, model), model, np.asarray([rate]))
        for plan, rate in zip(plans, table.bandwidths)
    ]
    seconds, joules = (tuple(float(cost[k][0]) for cost in costs) for k in (0, 1))
    return replace(table, plans=plans, predicted_s=seconds, predicted_j=joules)
