"""Tensor parallelism between robot and server, as a plan: the papers' counter-example to dividing operators well.

In a data centre each device computes a part of every layer, and all have the whole of it before the next one begins (an
all-reduce, or all-gather, a layer). Over a radio link that sends every intermediate value. Here the parts are rows in
place of channels: the bytes and the waits are the same, and the plan runs as any other plan does. A side may go on with
rows that it has while the rest comes, which an all-reduce does not allow: what is measured is a lower bound.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.check import check_plan
from edge_offload.split.model.complete import complete_plan, decide_backward
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import RowTransfer, Side, SplitPlan

#: Operators with weights: what is a layer.
LAYERS = ("conv", "addmm", "linear", "matmul", "bmm", "mm.")


def tensor_parallel(located: LocalityMap, share: float) -> SplitPlan:
    """Every operator that can be is divided, the robot's part being ``share`` of its rows; both get all of each layer.

    Raises:
        BadPlan: a rule of locality is wrong.
    """

    def decide(index: int, robot: Range, server: Range) -> Tuple[Range, Range]:
        entry = located.operators[index]
        if entry.kind is Locality.GLOBAL:
            return EMPTY, (0, entry.length)
        cut = round(share * entry.length)
        return (0, cut), (cut, entry.length)

    robot, server = decide_backward(located, decide)
    plan = complete_plan(located, robot, server)
    complete: Dict[Tuple[int, Side], RowTransfer] = {}
    for index, operator in enumerate(located.sequence.operators):
        mine, other = robot.get(index, EMPTY), server.get(index, EMPTY)
        if mine[0] < mine[1] and other[0] < other[1] and operator.name.split(".", 1)[-1].startswith(LAYERS):
            for value in located.made_by[index]:
                if value in located.axes:
                    complete[value, Side.ROBOT] = RowTransfer(value, *mine, Side.ROBOT)
                    complete[value, Side.SERVER] = RowTransfer(value, *other, Side.SERVER)
    retained = [transfer for transfer in plan.transfers if (transfer.value, transfer.sender) not in complete]
    transfers: List[RowTransfer] = [*retained, *complete.values()]
    # a side has values in the order of the program, and sends in the order of the list
    transfers.sort(key=lambda transfer: (located.producer.get(transfer.value, -1), transfer.value, transfer.low))
    return check_plan(SplitPlan(plan.sequence, plan.axes, plan.robot, plan.server, tuple(transfers)), located)
