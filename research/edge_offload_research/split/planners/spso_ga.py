"""SPSO-GA: layer partition that saves energy under a deadline, by a swarm with genetic operators."""

from __future__ import annotations

import random
from typing import List, Sequence, Tuple

from edge_offload.split.model.objective import Objective
from edge_offload.split.planners.space import RowSplit, RowSplits, ScoredPlan, Space
from edge_offload.split.planners.table import Choice, Effort


def plan(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Self-adaptive particle swarm with genetic operators over placements of segments between candidate cuts.

    A particle places every segment on one side; it moves by mutation, crossover with its own best and crossover with
    the swarm's best, with an inertia that falls as the swarm agrees. Feasible beats infeasible, then energy counts
    (a ``latency`` objective is taken as energy under the objective's deadline, which is what the method is for).
    """
    goal = objective if objective.kind == "deadline" else Objective("deadline", deadline_s=objective.deadline_s)
    chooser = random.Random(effort.seed)
    positions = sorted({*space.find_positions(most=10, largest=1.01), space.last})
    seeds: List[Tuple[int, ...]] = [(1,) * len(positions), (0,) * len(positions)]
    seeds += [(1,) * k + (0,) * (len(positions) - k) for k in range(1, len(positions))]
    while len(seeds) < 16:
        seeds.append(tuple(chooser.randint(0, 1) for _ in positions))

    def score_places(places: Tuple[int, ...]) -> ScoredPlan:
        return space.score_row_splits(_place_segments(places, positions, space.last))

    chosen = []
    for index in range(len(space.bandwidths)):

        def cost_of(places: Tuple[int, ...], at: int = index) -> float:
            found = score_places(places)
            return goal.compute_cost(float(found.makespan_s[at]), float(found.energy_j[at]))

        swarm, personal_best = list(seeds), list(seeds)
        best = min(swarm, key=cost_of)
        for generation in range(10):
            for k, places in enumerate(swarm):
                agreement = sum(a == b for a, b in zip(places, best)) / len(best)
                if chooser.random() < 0.9 - 0.5 * generation / 10 * agreement:
                    at = chooser.randrange(len(places))
                    places = (*places[:at], 1 - places[at], *places[at + 1 :])
                for guide in (personal_best[k], best):
                    if chooser.random() < 0.5:
                        low, high = sorted((chooser.randrange(len(places) + 1), chooser.randrange(len(places) + 1)))
                        places = (*places[:low], *guide[low:high], *places[high:])
                swarm[k] = places
                if cost_of(places) < cost_of(personal_best[k]):
                    personal_best[k] = places
            best = min([best, *personal_best], key=cost_of)
        chosen.append(score_places(best))
    return chosen


def _place_segments(places: Sequence[int], positions: Sequence[int], last: int) -> RowSplits:
    """Return row splits where the placement of consecutive segments changes (1: robot, 0: server)."""
    row_splits: List[RowSplit] = []
    for k, position in enumerate(positions):
        following = places[k + 1] if k + 1 < len(places) else 1
        if places[k] != following:
            row_splits.append(RowSplit(position, float(places[k])))
    if row_splits and row_splits[-1].position < last and all(row_split.fraction == 1.0 for row_split in row_splits):
        row_splits.append(RowSplit(last, 0.0))
    return tuple(row_splits)
