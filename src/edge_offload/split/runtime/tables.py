"""Plans that both sides hold: compiled once, named in a message by their place in the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Mapping, Sequence, Set, Tuple

from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.check import check_plan
from edge_offload.split.model.cost import CostModel, OperatorCost, Payload
from edge_offload.split.model.locality import LocalityMap, unite_rows
from edge_offload.split.model.plan import Side, SplitPlan
from edge_offload.split.model.simulate import CompiledPlan, StepBlock, compile_plan

MAX_PLANS = 256

_EMPTY_PAYLOAD = Payload(0, 0.0, 0.0, 0.0, 1)


@dataclass(frozen=True)
class SidePlan:
    """What one side needs to know of a plan to carry it out.

    Attributes:
        blocks: stretches of steps without a wait, in order.
        sends: its transfers, in the order in which they leave.
        receives: the other side's transfers.
        dead: step -> values that nobody on this side needs behind it.
        gathered: values that come in several pieces -> their rows.
        reads: values that its steps read.
    """

    blocks: Tuple[StepBlock, ...]
    sends: Tuple[int, ...]
    receives: Tuple[int, ...]
    dead: Tuple[Tuple[int, ...], ...]
    gathered: Mapping[int, Range]
    reads: FrozenSet[int] = frozenset()


@dataclass(frozen=True)
class ReadyPlan:
    """A checked plan, compiled for both sides."""

    plan: SplitPlan
    compiled: CompiledPlan
    sides: Mapping[Side, SidePlan]


def compile_ready(plan: SplitPlan, located: LocalityMap, identity: str, pieces: bool = True) -> ReadyPlan:
    """Check and compile a plan.

    Args:
        plan: from a planner or from the wire.
        located: the sequence that it is for.
        identity: the sequence's hash.
        pieces: whether transfers will come in pieces.

    Raises:
        BadPlan: it would not compute what the network computes.
    """
    plan = check_plan(plan, located, identity)
    free = (OperatorCost(0.0, 0.0),) * len(located.operators)
    compiled = compile_plan(plan, CostModel(located, free, free), [_EMPTY_PAYLOAD] * len(plan.transfers))
    return ReadyPlan(plan, compiled, {side: _make_side(compiled, located, side, pieces) for side in Side})


def _make_side(compiled: CompiledPlan, located: LocalityMap, side: Side, pieces: bool) -> SidePlan:
    plan = compiled.plan
    steps, blocks = plan.steps_of(side), compiled.blocks[side]
    last_use: Dict[int, int] = {}
    produced: Dict[int, List[Range]] = {}
    reads: Set[int] = set()
    for place, step in enumerate(steps):
        for number in located.footprint(step.operator, step.low, step.high):
            last_use[number] = place
            reads.add(number)
        for number in located.made_by[step.operator]:
            last_use.setdefault(number, place)
            produced.setdefault(number, []).append((step.low, step.high))
    for transfer in plan.transfers:
        if transfer.sender is not side:
            produced.setdefault(transfer.value, []).append((transfer.low, transfer.high))
            if pieces and transfer.value in located.axes:
                produced[transfer.value].append((transfer.low, transfer.low))  # more than one piece may come
    needed_later: Set[int] = {transfer.value for transfer in plan.transfers if transfer.sender is side}
    if side is Side.ROBOT:
        needed_later.update(located.sequence.retained_ids())
        needed_later.update(located.sequence.inputs)
    dead: List[List[int]] = [[] for _ in steps]
    for number, place in last_use.items():
        if number not in needed_later:
            dead[place].append(number)
    gathered = {number: _find_hull(ranges) for number, ranges in produced.items()
                if len(ranges) > 1 and number in located.axes and number not in located.free}  # fmt: skip
    if side is Side.ROBOT:
        for number in located.sequence.inputs:
            gathered.pop(number, None)
    order = range(len(plan.transfers))
    return SidePlan(
        blocks,
        tuple(index for index in order if plan.transfers[index].sender is side),
        tuple(index for index in order if plan.transfers[index].sender is not side),
        tuple(map(tuple, dead)),
        gathered,
        frozenset(reads),
    )


def _find_hull(ranges: Sequence[Range]) -> Range:
    hull = ranges[0]
    for rows in ranges[1:]:
        hull = unite_rows(hull, rows) if rows[0] < rows[1] else hull
    return hull
