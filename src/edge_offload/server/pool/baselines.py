"""Planners to compare with, behind the interface of :func:`~edge_offload.server.pool.plan.plan_most` (4.7.1).

Each gets the same profiles, links and margin, and shares the cluster among networks in the same way.
"""

from __future__ import annotations

from typing import Sequence

from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.plan import PoolPlan, plan_most
from edge_offload.server.pool.profile import BlockProfile


def plan_undivided(demands: Sequence[Demand], cluster: Cluster, margin: float = 0.4, most_stages: int = 1) -> PoolPlan:
    """Plan each network undivided on whole GPUs (NP); ``most_stages`` is not used. Raises as :func:`plan_most`."""
    undivided = [
        Demand(
            BlockProfile(
                demand.network.name,
                {gpu: {1: shares[1]} for gpu, shares in demand.network.latency_s.items() if 1 in shares},
                demand.network.cut_bytes,
            ),
            demand.slo_s,
            demand.weight,
        )
        for demand in demands
    ]
    return plan_most(undivided, cluster, margin, 1)
