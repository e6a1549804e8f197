"""Choice between the best plan and an undivided one, which may answer more requests in time.

A plan's rate is the one that its GPUs compute. The share in time depends on the slack for waiting: for a full batch, at
each stage and link. A divided network has less slack, and waits more often. So if both plans have nearly the same rate,
both are simulated in virtual time, by the scheduler that serves robots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.server.pool import simulate
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.plan import PoolPlan, plan_most
from edge_offload.server.pool.profile import BlockProfile

#: Rate over the undivided plan's above which no simulation is needed: waiting has cost up to a tenth.
CLOSE = 1.15
#: Load of the simulation over the undivided plan's rate, and its number of requests of all networks.
LOAD, REQUESTS = 1.03, 3000
#: Random seed of their arrivals.
SEED = 230


def plan_steady(
    demands: Sequence[Demand], cluster: Cluster, margin: float = 0.4, most_stages: int = 3, seed: int = SEED
) -> PoolPlan:
    """Return the plan with the greatest rate, or an undivided one that answers more in time.

    Raises as :func:`plan_most`.
    """
    best = plan_most(demands, cluster, margin, most_stages)
    if all(len(demand.stages) == 1 and demand.stages[0].parts == 1 for demand in best.pipelines):
        return best
    try:
        undivided = plan_undivided(demands, cluster, margin)
    except BadInput:
        return best
    if best.objective >= CLOSE * undivided.objective:
        return best
    load = LOAD * undivided.objective
    seconds = REQUESTS / (load * sum(demand.weight for demand in demands))
    source = np.random.default_rng(seed)
    arrivals = {
        demand.network.name: simulate.poisson_arrivals(load * demand.weight, seconds, source) for demand in demands
    }
    networks = {demand.network.name: demand.network for demand in demands}
    slo_s = {demand.network.name: demand.slo_s for demand in demands}
    in_time = [
        min(simulate.simulate_load(plan, networks, cluster, slo_s, arrivals).attainment.values())
        for plan in (best, undivided)
    ]
    return best if in_time[0] >= in_time[1] else replace(undivided, passed_over=best.objective)


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
