"""Plans whose steps follow the pieces: the receiver computes a first wave of rows while later ones are on their way.

Streaming is nothing but a finer plan. A transfer of many rows becomes several, and the receiver's steps behind it are
taken in as many waves, each as far as its rows reach. Halos between waves are not computed twice: a wave takes the
rows of the one before it from where they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

import numpy as np

from edge_offload.split.model.check import BadPlan, check
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import Plan, Side, Step, Transfer
from edge_offload.split.model.simulate import compile_plan, sweep

WAVES = (2, 4)
DEPTHS = (6, 24, 80)
WORTHWHILE = 0.15
"""Expected gain below which a plan stays whole: rows in waves are gathered and read in slices, which costs leave out
(measured: a quarter to a half more time)."""


def stream(plan: Plan, located: LocalityMap, waves: int, depth: int) -> Plan:
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
    early, late = _early(plan, located, transfer, depth)
    if not early:
        return plan
    order: List[Step] = []
    done: Dict[int, int] = {step.operator: step.low for step in early}
    limit = {step.operator: step.high for step in early}
    reach: Dict[int, int] = {}
    for edge in edges[1:]:
        reach[transfer.value] = edge
        for step in early:
            upto = _upto(located, step.operator, done[step.operator], limit[step.operator], reach, edge == edges[-1])
            if upto > done[step.operator]:
                order.append(Step(step.operator, done[step.operator], upto))
                done[step.operator] = upto
            for number in located.made_by[step.operator]:
                reach[number] = done[step.operator]
    parts = [Transfer(transfer.value, low, high, transfer.sender, transfer.codec)
             for low, high in zip(edges, edges[1:])]  # fmt: skip
    transfers = (*plan.transfers[:place], *parts, *plan.transfers[place + 1 :])
    found = replace(plan, server=(*order, *late), transfers=transfers)
    try:
        return check(found, located, plan.sequence)
    except BadPlan:
        return plan


def _early(plan: Plan, located: LocalityMap, transfer: Transfer, depth: int) -> Tuple[List[Step], List[Step]]:
    """Return the server's first local steps that need only this transfer, and the rest; order is preserved."""
    reached = {transfer.value}
    early: List[Step] = []
    for position, step in enumerate(plan.server):
        needs = located.footprint(step.operator, step.low, step.high)
        local = located.operators[step.operator].local is not None
        repeated = any(other.operator == step.operator for other in early)
        if not local or repeated or not set(needs) <= reached or len(early) == depth:
            return early, list(plan.server[position:])
        early.append(step)
        reached.update(located.made_by[step.operator])
    return early, []


def _upto(located: LocalityMap, operator: int, low: int, high: int, reach: Dict[int, int], last: bool) -> int:
    """Return the last row that an operator can compute from the present rows, by bisection: footprints grow."""
    if last:
        return high

    def fits(end: int) -> bool:
        return all(rows[1] <= reach[number] for number, rows in located.footprint(operator, low, end).items())

    first, behind = low, high + 1
    while behind - first > 1:
        middle = (first + behind) // 2
        if fits(middle):
            first = middle
        else:
            behind = middle
    return first


def best_stream(
    plan: Plan,
    model: CostModel,
    bandwidths: Sequence[float],
    waves: Sequence[int] = WAVES,
    depths: Sequence[int] = DEPTHS,
) -> Plan:
    """Return the variant of ``plan`` with the best simulated mean; ``plan`` itself for little gain.

    Args:
        plan: checked.
        model: costs.
        bandwidths: bytes per second at which the plan will serve.
        waves: numbers of waves that are tried.
        depths: depths that are tried.
    """
    rates = np.asarray(bandwidths, dtype=float)

    def mean_s(candidate: Plan) -> float:
        return float(sweep(compile_plan(candidate, model), model, rates)[0].mean())

    best, shortest = plan, mean_s(plan) * (1 - WORTHWHILE)
    seen: List[Tuple[Step, ...]] = [plan.server]
    for count in waves:
        for depth in depths:
            candidate = stream(plan, model.located, count, depth)
            if candidate.server in seen:
                continue
            seen.append(candidate.server)
            seconds = mean_s(candidate)
            if seconds < shortest:
                best, shortest = candidate, seconds
    return best
