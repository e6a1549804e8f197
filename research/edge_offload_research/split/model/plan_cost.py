"""What a plan costs at one bandwidth, with its timeline: for pictures, and beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Sequence, Tuple

import numpy as np

from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.plan import PlanStep, RowTransfer, Side, SplitPlan
from edge_offload.split.model.simulate import CompiledPlan, StepBlock, compile_plan, robot_energy, run_schedule

TIMELINE_ROWS = ("robot", "uplink", "server", "downlink")


@dataclass(frozen=True)
class TimelineSpan:
    """Something that takes time, for drawing: lane of :data:`TIMELINE_ROWS`, start and end in seconds, what."""

    row: str
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True)
class PlanCost:
    """What a plan costs at one bandwidth.

    Attributes:
        makespan_s: from the input to the last output on the robot.
        robot_s, server_s: compute time of each side.
        bytes_up, bytes_down: coded bytes.
        communication_s: time in which the link is busy, in either direction.
        energy_j: the robot's, over the makespan.
        spans: the timeline.
    """

    makespan_s: float
    robot_s: float
    server_s: float
    bytes_up: float
    bytes_down: float
    communication_s: float
    energy_j: float
    spans: Tuple[TimelineSpan, ...]


def simulate_plan(plan: SplitPlan, model: CostModel, bandwidth: float) -> PlanCost:
    """Return the plan's cost at one bandwidth (bytes per second, uplink)."""
    compiled = compile_plan(plan, model)
    makespan, side_spans, link_spans = run_schedule(compiled, model, np.asarray([bandwidth], dtype=float))
    spans: List[TimelineSpan] = []
    busy: List[Tuple[float, float]] = []
    for side, times in side_spans.items():
        for block, (start, end) in zip(compiled.blocks[side], times):
            spans.append(
                TimelineSpan(side.value, float(start[0]), float(end[0]), _block_label(compiled, model, side, block))
            )
    for transfer, (start, end) in zip(plan.transfers, link_spans):
        row = "uplink" if transfer.sender is Side.ROBOT else "downlink"
        spans.append(TimelineSpan(row, float(start[0]), float(end[0]), _transfer_label(transfer)))
        busy.append((float(start[0]), float(end[0])))
    robot_s = sum(block.seconds for block in compiled.blocks[Side.ROBOT])
    communication = union_seconds(busy)
    total = float(makespan[0])
    return PlanCost(
        makespan_s=total,
        robot_s=robot_s,
        server_s=sum(block.seconds for block in compiled.blocks[Side.SERVER]),
        bytes_up=_count_bytes(compiled, Side.ROBOT),
        bytes_down=_count_bytes(compiled, Side.SERVER),
        communication_s=communication,
        energy_j=float(robot_energy(model, total, robot_s, communication)),
        spans=tuple(sorted(spans, key=lambda span: (TIMELINE_ROWS.index(span.row), span.start_s))),
    )


def _count_bytes(compiled: CompiledPlan, sender: Side) -> float:
    pairs = zip(compiled.plan.transfers, compiled.payloads)
    return float(sum(payload.coded_bytes for transfer, payload in pairs if transfer.sender is sender))


def _merge_spans(spans: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    merged: List[Tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def union_seconds(spans: Sequence[Tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    return sum(end - start for start, end in _merge_spans(spans))


def _block_label(compiled: CompiledPlan, model: CostModel, side: Side, block: StepBlock) -> str:
    steps = compiled.plan.steps_of(side)[block.first : block.last + 1]
    operators = model.located.sequence.operators
    name = operators[steps[0].operator].scope or operators[steps[0].operator].base_name.split(".")[-1]
    return name if len(steps) == 1 else f"{name} … {len(steps)} operators"


def _transfer_label(transfer: RowTransfer) -> str:
    return f"%{transfer.value}[{transfer.low}:{transfer.high}] {transfer.codec}"


def merge_steps(steps: Iterable[PlanStep]) -> Dict[int, Tuple[int, int]]:
    """Return operator -> hull of the rows that the steps compute."""
    hull: Dict[int, Tuple[int, int]] = {}
    for step in steps:
        low, high = hull.get(step.operator, (step.low, step.high))
        hull[step.operator] = (min(low, step.low), max(high, step.high))
    return hull
