"""Plans with fewest GPUs for a given load, from the tables of the pool's planner."""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.links import NEAR
from edge_offload.server.pool.plan import PoolPlan, make_plan, make_tables, merge_alike, share_cluster


def plan_fewest(
    demands: Sequence[Demand], load: float, cluster: Cluster, margin: float = 0.4, most_stages: int = 3
) -> PoolPlan:
    """The plan with fewest GPUs that serves ``load * weight`` frames per second of each network.

    Raises:
        BadInput: as :func:`~edge_offload.server.pool.plan.plan_most`, or the cluster is too small for that; the message
            says what it serves.
    """
    tables = make_tables(demands, cluster, margin, most_stages)
    full = tuple(cluster.gpus.values())
    # (GPUs of each class, and how they are shared out), none of which another is within
    partial: List[Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]] = [(tuple(0 for _ in full), ())]
    for demand, table in zip(demands, tables):
        needed = load * demand.weight * (1 - NEAR)
        options = _least_options([(index, ()) for index in zip(*np.nonzero(table.total >= needed))])
        sums = (
            (tuple(int(a + b) for a, b in zip(used, more)), (*shared, tuple(int(b) for b in more)))
            for used, shared in partial
            for more, _ in options
        )
        partial = _least_options([(used, shared) for used, shared in sums if all(a <= b for a, b in zip(used, full))])
        if not partial:
            served = share_cluster(demands, tables, cluster).objective
            raise BadInput(
                f"{load:g} frames per second do not fit: this cluster serves {served:.1f}",
                remedy="add GPUs, allow more time, or serve less",
            )
    used, shared = min(partial, key=lambda one: sum(one[0]))
    return merge_alike(make_plan(float(sum(used)), demands, tables, shared))


def _least_options(
    options: Sequence[Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]],
) -> List[Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]]:
    """Select the options whose counts no other's are within."""
    undominated: List[Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]]] = []
    for option in sorted(options, key=lambda one: (sum(one[0]), one[0])):
        if not any(all(a <= b for a, b in zip(other[0], option[0])) for other in undominated):
            undominated.append(option)
    return undominated
