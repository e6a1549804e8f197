"""What a plan is expected to take at any bandwidth, not only at those that it was planned for.

A plan serves from its own bandwidth up to the next one. What it takes there is between the two: with the value at the
lower end a frame would be forecast to take up to twice as long as it does at 1.9 MB/s, and at less than the lowest
bandwidth far too short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple

import numpy as np

from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.plan import SplitPlan
from edge_offload.split.model.simulate import CompiledPlan, compile_plan, sweep_bandwidths

#: Bytes per second at which plans are simulated.
BANDWIDTH_GRID = np.geomspace(1e3, 1e8, 101)


@dataclass(frozen=True)
class PlanTimes:
    """Makespans of plans over :data:`BANDWIDTH_GRID` (seconds), one row per plan."""

    rows: Tuple[Tuple[float, ...], ...]

    @staticmethod
    def simulate_plans(plans: Sequence[SplitPlan], model: CostModel) -> PlanTimes:
        """Simulate every plan."""
        return PlanTimes.simulate_compiled([compile_plan(plan, model) for plan in plans], model)

    @staticmethod
    def simulate_compiled(plans: Sequence[CompiledPlan], model: CostModel) -> PlanTimes:
        """Simulate every plan; each is compiled already."""
        makespans = []
        for plan in plans:
            seconds = np.broadcast_to(sweep_bandwidths(plan, model, BANDWIDTH_GRID)[0], BANDWIDTH_GRID.shape)
            makespans.append(tuple(float(item) for item in seconds))
        return PlanTimes(tuple(makespans))

    def predict_seconds(self, place: int, bandwidth: float) -> float:
        """Return the time of the plan at ``place`` at ``bandwidth`` (bytes per second, more than 0).

        Bytes over bandwidth are linear in 1/bandwidth, and so is the time between two points of the grid.
        """
        return float(np.interp(1 / bandwidth, 1 / BANDWIDTH_GRID[::-1], self.rows[place][::-1]))
