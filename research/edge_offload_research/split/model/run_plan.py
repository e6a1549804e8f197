"""Both halves of a plan in one process, exactly as the plan says: what a side neither made nor received is poison.

This executor is the yardstick, not the runtime. It does not consult ``check``: rows that a side does not have read as
NaN (or as the dtype's extreme), so that a plan with a missing halo gives a wrong result and not the right one by luck.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import PlanStep, RowTransfer, Side, SplitPlan
from edge_offload.split.model.reference import SideValues, shared_values


@torch.no_grad()
def run_plan(
    plan: SplitPlan,
    located: LocalityMap,
    constants: Mapping[str, torch.Tensor],
    inputs: Sequence[torch.Tensor],
    shared: Optional[Mapping[int, torch.Tensor]] = None,
) -> Tuple[torch.Tensor, ...]:
    """Outputs of one inference under ``plan``.

    Each side takes its steps in order, and waits for the transfers that the plan promises it; when nobody can go on,
    whoever is next computes with what it has. The robot's outputs are returned.

    Raises:
        BadInput: wrong number of inputs.
    """
    sequence = located.sequence
    if len(inputs) != len(sequence.inputs):
        raise BadInput(f"{len(inputs)} inputs given, the sequence takes {len(sequence.inputs)}")
    shared = shared_values(located, constants) if shared is None else shared
    halves = {side: SideValues(located, shared) for side in Side}
    for number, tensor in zip(sequence.inputs, inputs):
        halves[Side.ROBOT].store_rows(number, 0, tensor)
    waiting: List[RowTransfer] = list(plan.transfers)
    done = dict.fromkeys(Side, 0)
    while True:
        progress = False
        for side in Side:
            steps = plan.steps_of(side)
            while done[side] < len(steps) and _is_ready(located, halves[side], steps[done[side]]):
                halves[side].run_operator(*steps[done[side]])
                done[side] += 1
                progress = True
        late = [transfer for transfer in waiting if not _send_rows(located, halves, transfer)]
        progress = progress or len(late) < len(waiting)
        waiting = late
        if progress:
            continue
        behind = [side for side in Side if done[side] < len(plan.steps_of(side))]
        if not behind:
            break
        side = min(behind, key=lambda item: plan.steps_of(item)[done[item]].operator)
        halves[side].run_operator(*plan.steps_of(side)[done[side]])
        done[side] += 1
    return tuple(halves[Side.ROBOT].whole(number) for number in sequence.outputs)


def _is_ready(located: LocalityMap, half: SideValues, step: PlanStep) -> bool:
    needs = located.footprint(step.operator, step.low, step.high)
    return all(half.has_rows(number, low, high) for number, (low, high) in needs.items())


def _send_rows(located: LocalityMap, halves: Mapping[Side, SideValues], transfer: RowTransfer) -> bool:
    source, target = halves[transfer.sender], halves[transfer.sender.opposite]
    if not source.has_rows(transfer.value, transfer.low, transfer.high):
        return False
    if transfer.value in located.axes:
        rows = source.rows(transfer.value, transfer.low, transfer.high)
        target.store_rows(transfer.value, transfer.low, rows.clone())
    else:
        target.store_rows(transfer.value, 0, source.whole(transfer.value).clone())
    return True
