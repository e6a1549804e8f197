"""Planners to compare with, behind the interface of :func:`~edge_offload.server.pool.plan.most` (4.7.1)."""

from __future__ import annotations

from typing import Callable, Dict, Sequence

from edge_offload.server.pool.baselines import whole
from edge_offload.server.pool.choose import steady
from edge_offload.server.pool.columns import Cluster, Demand, pipelines
from edge_offload.server.pool.plan import Plan, Table, check, most, share_out


def paired(demands: Sequence[Demand], cluster: Cluster, margin: float = 0.4, most_stages: int = 2) -> Plan:
    """DART-r: pairs of one GPU each of two classes, the rest whole networks; ``most_stages`` is not used.

    Raises as :func:`most`.
    """
    check(cluster)
    tables = [
        Table(
            [one for one in pipelines(demand, cluster, margin, 2) if len(set(one.classes)) == len(one.classes)],
            cluster,
            most_gpus=1,
        )
        for demand in demands
    ]
    return share_out(demands, tables, cluster)


#: By the names that the command line takes; a server's is steady.
PLANNERS: Dict[str, Callable[..., Plan]] = {"pooled": most, "steady": steady, "whole": whole, "paired": paired}
