"""Proof that a plan computes what the unsplit network computes, before anything runs.

The invariants of LOPInfer Sec. IV-B and IV-C4, on every row: *coverage* (every row that an output depends on is
computed), *footprint closure* (a step's whole footprint is on its side when it runs), *global completeness* and
*single placement* (a global operator runs once, in one piece, with all of its input), *contiguity* (a side's rows of
an operator are one stretch, none computed twice), and that the results end on the robot. Steps are replayed in
their order, so that a plan in which both sides wait for each other does not pass either.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from edge_offload.errors import BadInput
from edge_offload.ir import sequence_hash
from edge_offload.split.footprints.registry import Locality, Range
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import PlanStep, Side, SplitPlan

OwnedRows = Dict[int, List[Range]]


class BadPlan(BadInput):
    """A plan that would not compute what the network computes; the message names operator, side and rows."""


def check_plan(plan: SplitPlan, located: LocalityMap, expected_hash: Optional[str] = None) -> SplitPlan:
    """Return ``plan`` if it is exact for the sequence behind ``located``.

    Args:
        plan: any plan, from a planner or from the wire.
        located: the sequence's locality along the plan's axes.
        expected_hash: the sequence's hash, if the caller has it; it is computed otherwise.

    Raises:
        BadPlan: which invariant fails, where.
    """
    if plan.sequence != (expected_hash or sequence_hash(located.sequence)):
        raise BadPlan("the plan was made for another sequence", remedy="plan again for this model and its weights")
    _check_axes(plan, located)
    for side in Side:
        _check_steps(plan, located, side)
    _check_placement(plan, located)
    owned = _replay(plan, located)
    for number in located.sequence.retained_ids():
        if number not in located.free and not covers(
            owned[Side.ROBOT].get(number, []), (0, located.count_rows(number))
        ):
            raise BadPlan(f"not all rows of output {number} end on the robot")
    return plan


def _check_axes(plan: SplitPlan, located: LocalityMap) -> None:
    inputs = {number: located.axes[number] for number in located.sequence.inputs if number in located.axes}
    if dict(plan.axes) != inputs:
        raise BadPlan(f"the plan splits the inputs along {dict(plan.axes)}, the analysis along {inputs}")
    for transfer in plan.transfers:
        if transfer.value not in located.sequence.values:
            raise BadPlan(f"a transfer names value {transfer.value}, which does not exist")
        if transfer.value in located.free:
            raise BadPlan(f"a transfer sends value {transfer.value}, which both sides have")
        if not 0 <= transfer.low < transfer.high <= located.count_rows(transfer.value):
            raise BadPlan(f"a transfer sends rows [{transfer.low}, {transfer.high}) of value {transfer.value}, "
                          f"which has {located.count_rows(transfer.value)}")  # fmt: skip


def _check_steps(plan: SplitPlan, located: LocalityMap, side: Side) -> None:
    """Require existing steps, and for each operator disjoint steps on one side in one stretch."""
    ranges: Dict[int, List[Range]] = {}
    for step in plan.steps_of(side):
        if not 0 <= step.operator < len(located.operators):
            raise BadPlan(f"{side.value} computes operator {step.operator}, which does not exist")
        entry = located.operators[step.operator]
        if entry.kind is Locality.FREE or not 0 <= step.low < step.high <= entry.length:
            raise BadPlan(f"{_describe_operator(located, step.operator)} on the {side.value}: "
                          f"rows [{step.low}, {step.high}) of {entry.length}")  # fmt: skip
        ranges.setdefault(step.operator, []).append((step.low, step.high))
    for operator, stretches in ranges.items():
        stretches.sort()
        for (_, end), (start, _) in zip(stretches, stretches[1:]):
            if start != end:
                kind = "are computed twice" if start < end else "have a gap"
                raise BadPlan(
                    f"{_describe_operator(located, operator)} on the {side.value}: rows {kind} at {min(start, end)}"
                )


def _check_placement(plan: SplitPlan, located: LocalityMap) -> None:
    """Require coverage by both sides together, and a global operator on exactly one."""
    computed: Dict[int, List[Range]] = {}
    sides: Dict[int, List[Side]] = {}
    for side in Side:
        for step in plan.steps_of(side):
            computed.setdefault(step.operator, []).append((step.low, step.high))
            sides.setdefault(step.operator, []).append(side)
    needed = located.needed_rows()
    for index, entry in enumerate(located.operators):
        rows = located.made_rows(index, needed)
        if entry.kind is Locality.FREE or rows[0] >= rows[1]:
            continue
        if not covers(computed.get(index, []), rows):
            raise BadPlan(f"{_describe_operator(located, index)}: nobody computes all of rows [{rows[0]}, {rows[1]})")
        if entry.kind is Locality.GLOBAL and len(sides[index]) != 1:
            raise BadPlan(f"{_describe_operator(located, index)} is global and runs on both sides")


def _replay(plan: SplitPlan, located: LocalityMap) -> Dict[Side, OwnedRows]:
    """Run ownership forward: steps in order on each side, transfers in order in each direction.

    A transfer runs once its sender has the rows.
    """
    owned: Dict[Side, OwnedRows] = {Side.ROBOT: {}, Side.SERVER: {}}
    for number in located.sequence.inputs:
        owned[Side.ROBOT][number] = [(0, located.count_rows(number))]
    finished = dict.fromkeys(Side, 0)
    queues = {side: list(plan.transfers_from(side)) for side in Side}
    progress = True
    while progress:
        progress = False
        for side in Side:
            steps = plan.steps_of(side)
            while finished[side] < len(steps) and _missing_rows(located, owned[side], steps[finished[side]]) is None:
                step = steps[finished[side]]
                for number in located.sequence.operators[step.operator].output_ids():
                    if located.operators[step.operator].local is None or number in located.axes:
                        add_rows(owned[side], number, (step.low, step.high))
                finished[side] += 1
                progress = True
            queue = queues[side]
            while queue and covers(owned[side].get(queue[0].value, []), (queue[0].low, queue[0].high)):
                transfer = queue.pop(0)
                add_rows(owned[side.opposite], transfer.value, (transfer.low, transfer.high))
                progress = True
    for side in Side:
        if finished[side] < len(plan.steps_of(side)):
            step = plan.steps_of(side)[finished[side]]
            number, rows = _missing_rows(located, owned[side], step) or (-1, (0, 0))
            raise BadPlan(
                f"{_describe_operator(located, step.operator)} on the {side.value}, rows [{step.low}, {step.high}), "
                f"needs rows [{rows[0]}, {rows[1]}) of value {number}, and has {owned[side].get(number, [])}"
            )
    for side, queue in queues.items():
        if queue:
            raise BadPlan(f"the {side.value} never has rows [{queue[0].low}, {queue[0].high}) of value "
                          f"{queue[0].value}, which it is to send")  # fmt: skip
    return owned


def _missing_rows(located: LocalityMap, owned: OwnedRows, step: PlanStep) -> Optional[Tuple[int, Range]]:
    for number, rows in located.footprint(step.operator, step.low, step.high).items():
        if not covers(owned.get(number, []), rows):
            return number, rows
    return None


def add_rows(owned: OwnedRows, number: int, rows: Range) -> None:
    """Add ``rows`` of a value to a side; stretches that touch become one."""
    merged = rows
    separate: List[Range] = []
    for low, high in owned.get(number, []):
        if high < merged[0] or merged[1] < low:
            separate.append((low, high))
        else:
            merged = (min(low, merged[0]), max(high, merged[1]))
    owned[number] = sorted([*separate, merged])


def covers(ranges: Sequence[Range], rows: Range) -> bool:
    """True if ``ranges`` together cover all of ``rows``."""
    position = rows[0]
    for low, high in sorted(ranges):
        if low > position:
            break
        position = max(position, high)
    return position >= rows[1]


def _describe_operator(located: LocalityMap, index: int) -> str:
    operator = located.sequence.operators[index]
    scope = f" in {operator.scope}" if operator.scope else ""
    return f"operator {index} ({operator.name}{scope})"


def rows_computed(plan: SplitPlan) -> Mapping[Side, int]:
    """Return output rows that each side computes, summed over operators."""
    return {side: sum(step.high - step.low for step in plan.steps_of(side)) for side in Side}
