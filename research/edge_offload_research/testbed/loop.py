"""A robot that infers again and again while the bandwidth follows a trace, with plans looked up in a table.

The planner sees the bandwidth only through past transfers: what the last inference's uplink showed. When the plan in
force does not use the link, small probes go out one after the other, and their time on the radio is charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.simulate import CompiledPlan, compile_plan, robot_energy
from edge_offload.split.planners.table import PlanTable
from edge_offload_research.emulate.trace import Trace
from edge_offload_research.testbed.replay import Inference, replay_plan

PROBE_BYTES = 16 * 1024
FIRST_GUESS = 5e6
"""Bytes per second taken for granted before anything was sent."""


@dataclass(frozen=True)
class Loop:
    """A closed-loop run.

    Attributes:
        latencies_s: one per inference.
        energy_j: mean joules of the robot per inference.
        bytes_per_inference: mean coded bytes, both ways, without probes.
        local_share: share of inferences that did not use the link.
        compute_s, wire_s: mean time in which the robot computed, and in which its radio was busy.
    """

    latencies_s: Array
    energy_j: float
    bytes_per_inference: float
    local_share: float
    compute_s: float
    wire_s: float


def run_loop(table: PlanTable, model: CostModel, trace: Trace, gap_s: float, oracle: bool = False,
             length_s: Optional[float] = None, probes: bool = True) -> Loop:  # fmt: skip
    """One pass over the trace; the next inference begins ``gap_s`` after the last one ended.

    Args:
        table: plans by bandwidth.
        model: costs, with the runtime's overhead.
        trace: bandwidth of either direction.
        gap_s: what the robot does between inferences.
        oracle: look plans up by the true bandwidth at the start of each inference.
        length_s: stop there; the whole trace without it.
        probes: whether the bandwidth is probed while no plan uses the link (a fixed placement needs none).

    Raises:
        BadInput: no inference fits.
    """
    compiled: Dict[int, CompiledPlan] = {}
    distinct: Dict[int, int] = {}
    for index, plan in enumerate(table.plans):
        same = next((i for i in distinct if (table.plans[i].robot, table.plans[i].server, table.plans[i].transfers)
                     == (plan.robot, plan.server, plan.transfers)), index)  # fmt: skip
        distinct[index] = same
        if same == index:
            compiled[index] = compile_plan(plan, model)
    seen, now = FIRST_GUESS, 0.0
    probe: Optional[Tuple[float, float]] = None  # when the one under way began, and when it will have arrived
    until = trace.period_s if length_s is None else length_s
    inferences: List[Tuple[Inference, float]] = []
    while now < until:
        bandwidth = trace.rate_at(now) if oracle else seen
        chosen = compiled[distinct[table.find_index(bandwidth)]]
        inference = replay_plan(chosen, model, trace, now)
        wire_s = inference.wire_s
        following = now + inference.latency_s + gap_s
        if inference.seen_bytes_per_s > 0:
            seen, probe = inference.seen_bytes_per_s, None
        elif probes and not oracle:
            probe = probe or (now, trace.finish_time(now, PROBE_BYTES))
            wire_s += min(probe[1], following) - max(probe[0], now)
            if probe[1] <= following:
                seen, probe = PROBE_BYTES / (probe[1] - probe[0]), None
            else:  # still under way: the link is at most as fast as that
                seen = min(seen, PROBE_BYTES / (following - probe[0]))
        inferences.append((inference, wire_s))
        now = following
    if not inferences:
        raise BadInput("no inference fits into the trace", remedy="give a longer one")
    return _summarise(inferences, model)


def _summarise(inferences: Sequence[Tuple[Inference, float]], model: CostModel) -> Loop:
    compute = float(np.mean([min(item.robot_s, item.latency_s) for item, _ in inferences]))
    wire = float(np.mean([wire_s for _, wire_s in inferences]))
    latencies = np.array([item.latency_s for item, _ in inferences])
    return Loop(
        latencies,
        float(robot_energy(model, float(latencies.mean()), compute, wire)),
        float(np.mean([item.bytes_up + item.bytes_down for item, _ in inferences])),
        float(np.mean([item.bytes_up == 0 for item, _ in inferences])),
        compute,
        wire,
    )
