"""Planners to compare with, behind the interface of :func:`~edge_offload.server.pool.plan.plan_most` (4.7.1)."""

from __future__ import annotations

from typing import Callable, Dict, Sequence

from edge_offload.server.pool.choose import plan_steady, plan_undivided
from edge_offload.server.pool.columns import Cluster, Demand, list_pipelines
from edge_offload.server.pool.plan import PoolPlan, RateTable, check_cluster, plan_most, share_cluster


def plan_pairs(demands: Sequence[Demand], cluster: Cluster, margin: float = 0.4, most_stages: int = 2) -> PoolPlan:
    """DART-r: pairs of one GPU each of two classes, the rest whole networks; ``most_stages`` is not used.

    Raises as :func:`~edge_offload.server.pool.plan.plan_most`.
    """
    check_cluster(cluster)
    tables = [
        RateTable(
            [one for one in list_pipelines(demand, cluster, margin, 2) if len(set(one.classes)) == len(one.classes)],
            cluster,
            most_gpus=1,
        )
        for demand in demands
    ]
    return share_cluster(demands, tables, cluster)


#: By the names that the command line takes; a server's is steady.
PLANNERS: Dict[str, Callable[..., PoolPlan]] = {
    "pooled": plan_most,
    "steady": plan_steady,
    "whole": plan_undivided,
    "paired": plan_pairs,
}
