"""The optimal layer partition as a minimum cut (DSCCS): every operator whole on one side, costs added up.

Source side of the cut is the robot, sink side the server. Running operator v on the server cuts source→v, on the robot
v→sink; a tensor that crosses is paid once, through a vertex of its own. Data may flow back: both directions have a
price. In this model nothing overlaps, as in layer-partitioned systems.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.space import ScoredPlan, Space, choose_best
from edge_offload.split.planners.table import Choice, Effort, cut_layers

_RESOLUTION = 2_000_000
"""Integer capacity of the dearest baseline: scipy's flow counts in 32-bit integers."""


def plan(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Find the optimal layer partition, re-scored by the event simulation; never worse than the best single cut."""
    del effort
    cuts = cut_layers(space)
    chosen = []
    for index in range(len(space.bandwidths)):
        cuts.append(layer_partition(space, index, objective))
        chosen.append(choose_best(cuts, objective, index))
    return chosen


def layer_partition(space: Space, bandwidth_index: int, objective: Objective) -> ScoredPlan:
    """Cheapest placement of whole operators at one bandwidth, scored at all of them.

    Sums are minimised: for ``latency`` seconds of compute and transfer, for the other objectives the robot's joules
    in the same states (with the weight for ``weighted``). The deadline is not part of a cut; see ``spso_ga``.
    """
    return space.score_ranges(*_cut_network(space, bandwidth_index, objective))


def _cut_network(space: Space, bandwidth_index: int, objective: Objective) -> Tuple[Dict[int, Range], Dict[int, Range]]:
    model, located = space.model, space.located
    bandwidth = float(space.bandwidths[bandwidth_index])
    power = model.power

    def weigh_seconds(seconds: float, watts: float) -> float:
        return objective.compute_cost(seconds, seconds * watts) if objective.kind != "deadline" else seconds * watts

    needed = located.needed_rows()
    placed = [index for index, entry in enumerate(located.operators)
              if entry.kind is not Locality.FREE and _is_nonempty(located.made_rows(index, needed))]  # fmt: skip
    vertex = {index: 2 + k for k, index in enumerate(placed)}
    edges: List[Tuple[int, int, float]] = []
    for index in placed:
        rows = located.operators[index].length
        edges.append((0, vertex[index], weigh_seconds(model.operator_s(Side.SERVER, index, rows), power.standby)))
        edges.append((vertex[index], 1, weigh_seconds(model.operator_s(Side.ROBOT, index, rows), power.inference)))
    producer, consumers = located.sequence.producer_indices(), located.sequence.consumer_indices()
    outputs = set(located.sequence.retained_ids())
    count = 2 + len(placed)
    infinite = 1e18
    for number in located.sequence.values:
        users = [vertex[user] for user in consumers[number] if user in vertex]
        if number in located.free or not (users or number in outputs):
            continue
        source = vertex[producer[number]] if number in producer else 0
        rows = located.count_rows(number)
        fixed_s = model.link.latency_s + model.link.message_s
        up, down = (
            fixed_s + _transfer_seconds(space, number, rows, side, bandwidth) for side in (Side.ROBOT, Side.SERVER)
        )
        if users:
            edges.append((source, count, weigh_seconds(up, power.communication)))
            edges += [(count, user, infinite) for user in users]
            count += 1
        if source != 0:  # the other way: made on the server, used on the robot, or read there
            readers = [*users, 0] if number in outputs else users
            edges.append((count, source, weigh_seconds(down, power.communication)))
            edges += [(user, count, infinite) for user in readers]
            count += 1
    return _solve_cut(space, edges, count, vertex)


def _solve_cut(
    space: Space, edges: List[Tuple[int, int, float]], count: int, vertex: Dict[int, int]
) -> Tuple[Dict[int, Range], Dict[int, Range]]:
    finite = sum(cost for tail, _, cost in edges if tail == 0 and cost < 1e17)
    scale = _RESOLUTION / max(finite, 1e-12)
    capacity: Dict[Tuple[int, int], int] = {}
    for tail, head, cost in edges:
        units = 2**30 if cost > 1e17 else min(round(cost * scale), 2**30)
        capacity[(tail, head)] = min(capacity.get((tail, head), 0) + units, 2**30)
    rows, columns = np.array(list(capacity)).T
    matrix = csr_matrix((np.array(list(capacity.values()), dtype=np.int32), (rows, columns)), shape=(count, count))
    flow = maximum_flow(matrix, 0, 1)
    residual = csr_matrix(matrix - flow.flow)
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    on_robot = set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
    robot: Dict[int, Range] = {}
    server: Dict[int, Range] = {}
    for index, node in vertex.items():
        all_rows = (0, space.located.operators[index].length)
        (robot if node in on_robot else server)[index] = all_rows
    return robot, server


def _transfer_seconds(space: Space, number: int, rows: int, sender: Side, bandwidth: float) -> float:
    model = space.model
    rate = bandwidth * (1.0 if sender is Side.ROBOT else model.link.down_factor)
    name = model.best_codec(number, rows, sender, bandwidth) if space.codecs else "raw"
    return float(model.make_payload(number, rows, sender, name).idle_link_s(rate))


def _is_nonempty(rows: Range) -> bool:
    return rows != EMPTY and rows[0] < rows[1]
