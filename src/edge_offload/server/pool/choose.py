"""Whether a plan holds what it promises: the best one is not taken where an undivided one holds more.

A plan promises what its GPUs compute. How much of it is in time depends on the time that is left for waiting: for a
full batch, at each stage and link. Divided, a network leaves less of it, and waits more often. So where both promise
nearly the same, both are tried, in virtual time, by the scheduler that serves robots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.server.pool import simulate
from edge_offload.server.pool.baselines import whole
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.plan import Plan, most

#: A plan that promises so many times as much as an undivided one is not tried: waiting has cost up to a tenth.
CLOSE = 1.15
#: Both are tried at so many times the load that the undivided one promises, with so many requests of all networks.
LOAD, REQUESTS = 1.03, 3000
#: Of their arrivals.
SEED = 230


def steady(
    demands: Sequence[Demand], cluster: Cluster, margin: float = 0.4, most_stages: int = 3, seed: int = SEED
) -> Plan:
    """The plan with the greatest rate, or an undivided one that answers more in time. Raises as :func:`most`."""
    best = most(demands, cluster, margin, most_stages)
    if all(len(one.stages) == 1 and one.stages[0].parts == 1 for one in best.pipelines):
        return best
    try:
        undivided = whole(demands, cluster, margin)
    except BadInput:
        return best
    if best.objective >= CLOSE * undivided.objective:
        return best
    load = LOAD * undivided.objective
    seconds = REQUESTS / (load * sum(demand.weight for demand in demands))
    source = np.random.default_rng(seed)
    arrivals = {one.network.name: simulate.poisson(load * one.weight, seconds, source) for one in demands}
    networks = {one.network.name: one.network for one in demands}
    slo_s = {one.network.name: one.slo_s for one in demands}
    in_time = [
        min(simulate.run(plan, networks, cluster, slo_s, arrivals).attainment.values()) for plan in (best, undivided)
    ]
    return best if in_time[0] >= in_time[1] else replace(undivided, passed_over=best.objective)
