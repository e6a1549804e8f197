"""Planners with one interface, which make a table of plans for a list of bandwidths.

============== =============================================================================================
device_only    the robot computes everything
server_only    the server computes everything
layer_cut      the best single cut through the program order
spso_ga        layer partition that saves energy under a deadline, by a swarm with genetic operators
loss_de        Intra-DP: local-operator split by differential evolution
loss_beam      LOPInfer Alg. 1: row splits at every position, then large-neighbourhood search; then the server's rows
               are moved operator by operator. The default.
============== =============================================================================================

:func:`plan_table` is the entry point. The two LOSS planners start from the baselines and keep the best plan. So under
the same model and objective they are never worse than device_only, server_only or layer_cut, at any bandwidth.
``dsccs``, ``spso_ga`` and ``loss_de`` are in ``edge_offload_research.split.planners``, for comparison. For row
splits see :class:`~edge_offload.split.planners.space.RowSplit`.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from edge_offload import beside
from edge_offload.errors import BadInput
from edge_offload.split.model.check import check_plan
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import SplitPlan
from edge_offload.split.planners.shares import refine_rows
from edge_offload.split.planners.space import (
    RowSplit,
    RowSplits,
    ScoredPlan,
    Space,
    choose_best,
    fraction_grid,
    insert_row_split,
    remove_row_split,
)

Choice = List[ScoredPlan]
"""One scored plan per bandwidth of the space."""
#: A planner.
Method = Callable[[Space, Objective, "Effort"], Choice]


@dataclass(frozen=True)
class Effort:
    """Budget of a search.

    Attributes:
        seconds: time budget for a whole table; checked between evaluations.
        evaluations: limit on evaluated plans, for results that do not depend on the machine's load. It also limits how
            often the default planner moves the server's rows.
        seed: seed of all random choices.
    """

    seconds: float = 8.0
    evaluations: int = 400
    seed: int = 0


@dataclass(frozen=True)
class PlanTable:
    """Plans by bandwidth, which robot and server both hold.

    Attributes:
        planner: name of the planner that made them.
        bandwidths: bytes per second, ascending. A plan is used from its bandwidth up to the next one.
        plans: one per bandwidth; checked.
        predicted_s, predicted_j: makespan (s) and energy (J) of each plan by the cost model.
    """

    planner: str
    bandwidths: Tuple[float, ...]
    plans: Tuple[SplitPlan, ...]
    predicted_s: Tuple[float, ...]
    predicted_j: Tuple[float, ...]

    def find_index(self, bandwidth: float) -> int:
        """Return the index of the entry for a measured bandwidth, bytes/s."""
        return max(int(np.searchsorted(self.bandwidths, bandwidth, side="right")) - 1, 0)

    def plan_at(self, bandwidth: float) -> SplitPlan:
        """Return the plan for a measured bandwidth, bytes/s."""
        return self.plans[self.find_index(bandwidth)]


def device_only(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Let the robot compute everything."""
    del objective, effort
    return [space.score_row_splits(space.device_only)] * len(space.bandwidths)


def server_only(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Let the server compute everything: inputs go up, results come down."""
    del objective, effort
    return [space.score_row_splits(space.server_only)] * len(space.bandwidths)


def layer_cut(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Find the best single cut at a position with little data; device_only or server_only if these are better."""
    del effort
    cuts = cut_layers(space)
    return [choose_best(cuts, objective, index) for index in range(len(space.bandwidths))]


def cut_layers(space: Space) -> List[ScoredPlan]:
    """Return the plans of device_only and server_only, and the single cuts through the program order."""
    positions = space.find_positions(most=32, largest=1.01)
    row_splits = [space.device_only, space.server_only]
    row_splits += [insert_row_split(space.server_only, RowSplit(position, 1.0)) for position in positions]
    return [space.score_row_splits(each) for each in row_splits]


def loss_beam(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Find plans by LOPInfer Alg. 1.

    Phase I: baselines, then row splits at every position. Phase II: large-neighbourhood search around each bandwidth's
    best plan, until nothing improves. The last quarter of the time moves the server's rows, operator by operator.
    """
    end_s = time.monotonic() + effort.seconds
    best = _search_row_splits(space, objective, replace(effort, seconds=0.75 * effort.seconds))
    chooser = random.Random(effort.seed)
    return refine_rows(space, objective, best, effort.evaluations, chooser, lambda: time.monotonic() >= end_s)


def _search_row_splits(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Search lists of row splits for :func:`loss_beam`: its phases I and II."""
    is_spent = SearchBudget(space, effort)
    candidates = [scored for choice in baseline_plans(space, objective, effort) for scored in choice]
    best = [choose_best(candidates, objective, index) for index in range(len(space.bandwidths))]
    positions = space.find_positions()
    for tail in (space.server_only, space.device_only):
        for fraction in (0.5, 0.25, 0.75):
            for position in positions:
                if is_spent():
                    return best
                _store_better(
                    best, space.score_row_splits(insert_row_split(tail, RowSplit(position, fraction))), objective
                )
    return _search_neighbourhoods(space, objective, best, positions, is_spent, random.Random(effort.seed))


def _search_neighbourhoods(space: Space, objective: Objective, best: Choice, positions: Sequence[int],
                           is_spent: Callable[[], bool], chooser: random.Random) -> Choice:  # fmt: skip
    """Improve ``best`` in place by random moves, the bandwidths in turn, and return it.

    Ends after 12 moves per bandwidth without an improvement.
    """
    failures_in_a_row = 0
    moves = 0
    while not is_spent() and failures_in_a_row < 12 * len(best) and positions:
        index = moves % len(best)
        moves += 1
        row_splits = _move_row_split(space, best[index].row_splits, positions, chooser)
        if row_splits is None:
            failures_in_a_row += 1
            continue
        improved = _store_better(best, space.score_row_splits(row_splits), objective)
        failures_in_a_row = 0 if improved else failures_in_a_row + 1
    return best


def _move_row_split(
    space: Space, row_splits: RowSplits, positions: Sequence[int], chooser: random.Random
) -> Optional[RowSplits]:
    """Return a random neighbour of ``row_splits``; None: the chosen move is not possible.

    Moves: shift a row split's fraction or position, flip it, drop it, add one, or change which side computes the end.
    """
    inner = [k for k, row_split in enumerate(row_splits) if row_split.position in positions]
    move = chooser.choice(["fraction", "fraction", "position", "add", "drop", "flip", "tail"])
    if move == "add" or not inner:
        return insert_row_split(
            row_splits, RowSplit(chooser.choice(list(positions)), chooser.choice([*fraction_grid(), 1.0, 0.0]))
        )
    k = chooser.choice(inner)
    row_split = row_splits[k]
    others = remove_row_split(row_splits, k)
    if move == "drop":
        return others if others != space.device_only else None
    if move == "fraction":
        step = chooser.choice([-0.125, -0.0625, -0.03125, 0.03125, 0.0625, 0.125])
        return insert_row_split(others, replace(row_split, fraction=min(max(row_split.fraction + step, 0.0), 1.0)))
    if move == "flip":
        return insert_row_split(others, replace(row_split, flipped=not row_split.flipped))
    if move == "tail":
        has_tail = row_splits[-1].position == space.last
        return (
            row_splits[:-1]
            if has_tail and len(row_splits) > 1
            else insert_row_split(row_splits, RowSplit(space.last, 0.0))
        )
    near = sorted(positions, key=lambda position: abs(position - row_split.position))[1:5]
    return insert_row_split(others, replace(row_split, position=chooser.choice(near))) if near else None


def _store_better(best: Choice, scored: ScoredPlan, objective: Objective) -> bool:
    """Store ``scored`` in ``best`` at every bandwidth where it is better; return whether there is one."""
    improved = False
    for index, current in enumerate(best):
        if cost_of(objective, scored, index) < cost_of(objective, current, index) - 1e-12:
            best[index] = scored
            improved = True
    return improved


def baseline_plans(space: Space, objective: Objective, effort: Effort) -> List[Choice]:
    """Return the choices of device_only, server_only and layer_cut."""
    return [planner(space, objective, effort) for planner in (device_only, server_only, layer_cut)]


def cost_of(objective: Objective, scored: ScoredPlan, index: int) -> float:
    """Return the cost of a plan by ``objective`` at the bandwidth number ``index`` of its space."""
    return objective.compute_cost(float(scored.makespan_s[index]), float(scored.energy_j[index]))


class SearchBudget:
    """Callable that returns True once the effort is spent, in seconds, evaluations or calls.

    Ten calls are allowed per evaluation. So a search that only meets plans already scored ends, too.
    """

    def __init__(self, space: Space, effort: Effort) -> None:
        self.space = space
        self.end_s = time.monotonic() + effort.seconds
        self.most_evaluations = space.evaluated_count + effort.evaluations
        self.checks, self.most_checks = 0, 10 * effort.evaluations

    def __call__(self) -> bool:
        """Count a call, and return True once the budget is spent."""
        self.checks += 1
        spent = self.space.evaluated_count >= self.most_evaluations or self.checks >= self.most_checks
        return spent or time.monotonic() >= self.end_s


def _load_lazily(name: str) -> Method:
    """Return a planner of ``edge_offload_research``, which is imported when the planner is called."""

    def plan(space: Space, objective: Objective, effort: Effort) -> Choice:
        choice: Choice = beside.action(f"planner-{name}", "edge_offload_research").plan(space, objective, effort)
        return choice

    return plan


PLANNERS: Dict[str, Method] = {
    "device_only": device_only,
    "server_only": server_only,
    "layer_cut": layer_cut,
    "dsccs": _load_lazily("dsccs"),
    "spso_ga": _load_lazily("spso_ga"),
    "loss_de": _load_lazily("loss_de"),
    "loss_beam": loss_beam,
}
DEFAULT_PLANNER = "loss_beam"
#: Makespans that differ by less than this share count as equal; then the least energy decides (bench papers).
EQUAL_SHARE = 0.01
#: Planner that finds the best plan in which no operator is divided, device_only and server_only included.
UNDIVIDED_PLANNER = "layer_cut"


def plan_table(space: Space, planner: str = DEFAULT_PLANNER, objective: Optional[Objective] = None,
               effort: Optional[Effort] = None) -> PlanTable:  # fmt: skip
    """Return one checked plan per bandwidth of ``space``.

    Raises:
        BadInput: no planner of that name.
        BadPlan: the planner made an invalid plan; no table is returned.
    """
    if planner not in PLANNERS:
        raise BadInput(f"unknown planner {planner!r}", remedy=f"use one of: {', '.join(PLANNERS)}")
    objective = objective or Objective()
    choice = PLANNERS[planner](space, objective, effort or Effort())
    if planner == DEFAULT_PLANNER and objective.kind == "latency":  # the others choose as published
        choice = space.least_energy(choice, EQUAL_SHARE)
    plans: List[SplitPlan] = []
    checked: Set[Tuple[Any, ...]] = set()
    for index, (scored, bandwidth) in enumerate(zip(choice, space.bandwidths)):
        plan = space.make_plan(scored, float(bandwidth))
        shape = (plan.robot, plan.server, tuple((t.value, t.low, t.high, t.sender) for t in plan.transfers))
        if shape not in checked:  # neighbouring bandwidths mostly share a plan, except for its codecs
            check_plan(plan, space.located, space.identity)
            checked.add(shape)
        plans.append(plan.with_about(planner=planner, objective=objective.kind, bandwidth=float(bandwidth),
                                     makespan_s=float(scored.makespan_s[index]),
                                     energy_j=float(scored.energy_j[index])))  # fmt: skip
    return PlanTable(
        planner,
        tuple(float(bandwidth) for bandwidth in space.bandwidths),
        tuple(plans),
        tuple(float(scored.makespan_s[index]) for index, scored in enumerate(choice)),
        tuple(float(scored.energy_j[index]) for index, scored in enumerate(choice)),
    )
