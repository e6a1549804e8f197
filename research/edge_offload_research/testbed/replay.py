"""One inference of a plan on a bandwidth trace.

The event simulation of :mod:`edge_offload.split.model.simulate` with a link whose bandwidth changes under way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_offload.arrays import Array
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.plan import Side
from edge_offload.split.model.simulate import CompiledPlan, schedule_plan
from edge_offload_research.emulate.trace import Trace
from edge_offload_research.split.model.plan_cost import union_seconds


@dataclass(frozen=True)
class Inference:
    """Outcome of one inference.

    Attributes:
        latency_s: from the input to the last result on the robot.
        robot_s: time in which the robot computed, coding included.
        wire_s: time in which the robot's radio was busy.
        bytes_up, bytes_down: coded bytes.
        seen_bytes_per_s: bandwidth that the uplink transfers showed; 0 if there were none.
    """

    latency_s: float
    robot_s: float
    wire_s: float
    bytes_up: float
    bytes_down: float
    seen_bytes_per_s: float


def replay_plan(compiled: CompiledPlan, model: CostModel, trace: Trace, start_s: float) -> Inference:
    """Run a compiled plan from ``start_s`` on the trace; both directions of the link have its bandwidth.

    Raises:
        BadInput: the plan's two sides wait for each other.
    """
    sizes, seconds = dict.fromkeys(Side, 0.0), dict.fromkeys(Side, 0.0)

    def wire_s(side: Side, start: Array, size: float) -> Array:
        spent = trace.finish_time(float(start[0]), size) - float(start[0])
        sizes[side] += size
        seconds[side] += spent
        return np.array([spent])

    finish, _, wire = schedule_plan(compiled, model, wire_s, np.array([start_s]))
    pairs = list(zip(compiled.plan.transfers, compiled.payloads))
    coding_s = sum(payload.encode_s if one.sender is Side.ROBOT else payload.decode_s for one, payload in pairs)
    return Inference(
        float(finish[0]) - start_s,
        sum(block.seconds for block in compiled.blocks[Side.ROBOT]) + coding_s,
        union_seconds([(float(begin[0]), float(end[0])) for begin, end in wire]),
        sizes[Side.ROBOT],
        sizes[Side.SERVER],
        sizes[Side.ROBOT] / seconds[Side.ROBOT] if seconds[Side.ROBOT] > 0 else 0.0,
    )
