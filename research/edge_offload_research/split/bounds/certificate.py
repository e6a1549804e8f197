"""Certificates: how far a plan is at most from the best replicated split.

Plans outside that family are not bounded: those that exchange halos in between, that send intermediate results back, or
that cut between waists. Planners may find such plans; their gap is then that of a plan better than the best split.
"""

from __future__ import annotations

from typing import List, Optional

import numpy as np

from edge_offload.split.model.objective import Objective
from edge_offload.split.planners.space import Space
from edge_offload.split.planners.table import PlanTable
from edge_offload_research.split.planners.replicated import ReplicatedSearch

TOLERANCE = 0.01
"""Splits that cannot be better by more than this are not simulated, so no certificate says less."""


def certify_table(space: Space, table: PlanTable, objective: Objective) -> List[Optional[float]]:
    """Upper bound on cost / (cost of the best replicated split) - 1 for every plan of a table, at least the tolerance.

    ``None`` for all if the network has several inputs. ``space`` must be over the table's bandwidths.
    """
    consumers = space.located.sequence.consumer_indices()
    if sum(bool(consumers[number]) for number in space.located.sequence.inputs) != 1:
        return [None] * len(table.plans)
    costs = np.array([objective.compute_cost(s, j) for s, j in zip(table.predicted_s, table.predicted_j)])
    search = ReplicatedSearch(space, objective, costs * (1.0 - TOLERANCE))
    search.run_search()
    return [float(max(gap, TOLERANCE)) for gap in costs / search.best - 1.0]
