"""Exact planning of small graphs by branch and bound, over every range that row splits leave out.

For each operator, from the outputs back, every decision of the plan space is tried: one side, each side's own needs
(replication), and every cut either way round. A branch is left when what is already decided costs more than the best
plan known. That proves optimality on graphs of a few operators and a few rows, and is the yardstick of the heuristic
planners' tests. It is exponential in the number of operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterator, List, Tuple

from edge_offload.errors import BadInput
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.locality import unite_rows
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.space import ScoredPlan, Space

MOST_OPERATORS = 12
Pair = Tuple[Range, Range]


@dataclass
class Search:
    """What a search found: the best plan, and how many plans were simulated and branches left."""

    best: ScoredPlan
    simulated: int = 0
    pruned: int = 0


def decisions(space: Space, index: int, robot: Range, server: Range) -> Iterator[Pair]:
    """Every placement of one operator's needed rows, without repeats."""
    low, high = unite_rows(robot, server)
    seen = set()

    def fresh(pair: Pair) -> bool:
        clean = tuple(rows if rows[0] < rows[1] else EMPTY for rows in pair)
        new = clean not in seen
        seen.add(clean)
        return new

    candidates: List[Pair] = [((low, high), EMPTY), (EMPTY, (low, high))]
    if space.located.operators[index].kind is not Locality.GLOBAL:
        candidates.append((robot, server))
        for cut in range(low + 1, high):
            candidates += [((low, cut), (cut, high)), ((cut, high), (low, cut))]
    yield from filter(fresh, candidates)


def solve(space: Space, objective: Objective, prune: bool = True) -> Search:
    """The optimal plan at the space's first bandwidth.

    Args:
        space: a graph of at most :data:`MOST_OPERATORS` operators.
        objective: what to minimise.
        prune: whether to leave hopeless branches; without it this is brute force.

    Raises:
        BadInput: the graph is too large.
    """
    located, model = space.located, space.model
    if len(located.operators) > MOST_OPERATORS:
        raise BadInput(f"{len(located.operators)} operators are too many to search exhaustively",
                       remedy=f"the limit is {MOST_OPERATORS}; use loss_beam")  # fmt: skip
    search = Search(space.score_row_splits(space.device_only))
    ranges: Dict[Side, Dict[int, Range]] = {side: {} for side in Side}
    best = _cost(objective, search.best)
    cheapest = [0.0]
    needed = located.needed_rows()
    for index in range(len(located.operators)):
        low, high = located.made_rows(index, needed)
        least = min(model.operator_s(side, index, 1) for side in Side) if low < high else 0.0
        cheapest.append(cheapest[-1] + least)

    def descend(index: int, need: Dict[Side, Dict[int, Range]], spent: Dict[Side, float]) -> None:
        nonlocal best
        if index < 0:
            search.simulated += 1
            scored = space.score_ranges(dict(ranges[Side.ROBOT]), dict(ranges[Side.SERVER]))
            if _cost(objective, scored) < best - 1e-15:
                best, search.best = _cost(objective, scored), scored
            return
        robot, server = located.made_rows(index, need[Side.ROBOT]), located.made_rows(index, need[Side.SERVER])
        free = located.operators[index].kind is Locality.FREE
        if free or (robot[0] >= robot[1] and server[0] >= server[1]):
            descend(index - 1, need, spent)
            return
        for pair in decisions(space, index, robot, server):
            added = {side: model.operator_s(side, index, rows[1] - rows[0]) for side, rows in zip(Side, pair)}
            now = {side: spent[side] + added[side] for side in Side}
            if prune and _bound(objective, space, now, cheapest[index]) >= best - 1e-15:
                search.pruned += 1
                continue
            needs = {side: dict(need[side]) for side in Side}
            for side, rows in zip(Side, pair):
                ranges[side].pop(index, None)
                if rows[0] < rows[1]:
                    ranges[side][index] = rows
                    for number, part in located.footprint(index, *rows).items():
                        needs[side][number] = unite_rows(needs[side].get(number, EMPTY), part)
            descend(index - 1, needs, now)
            for side in Side:
                ranges[side].pop(index, None)

    start: Dict[Side, Dict[int, Range]] = {side: {} for side in Side}
    for number in located.sequence.retained_ids():
        if number not in located.free:
            start[Side.ROBOT][number] = (0, located.count_rows(number))
    descend(len(located.operators) - 1, start, dict.fromkeys(Side, 0.0))
    return search


def _bound(objective: Objective, space: Space, spent: Dict[Side, float], rest: float) -> float:
    """No completion costs less: a side's work is sequential, and work left must fit on two sides."""
    robot, server = spent[Side.ROBOT], spent[Side.SERVER]
    makespan = max(robot, server, (robot + server + rest) / 2)
    power = space.model.power
    joules = makespan * power.standby + robot * (power.inference - power.standby)
    return objective.compute_cost(makespan, joules)


def _cost(objective: Objective, scored: ScoredPlan) -> float:
    return objective.compute_cost(float(scored.makespan_s[0]), float(scored.energy_j[0]))
