"""From ranges to a plan: given what each side computes of each operator, what must cross the link follows."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional, Tuple

from edge_offload.ir import sequence_hash
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.locality import LocalityMap, unite_rows
from edge_offload.split.model.plan import PlanStep, RowTransfer, Side, SplitPlan

Ranges = Mapping[int, Range]
ChooseCodec = Callable[[int, int, int], str]
"""(value, low, high) -> codec name."""


def needed_rows(located: LocalityMap, ranges: Ranges) -> Dict[int, List[Range]]:
    """Return rows of every value that one side's steps need, as separate stretches; empty ranges need none."""
    needed: Dict[int, List[Range]] = {}
    for index, (low, high) in ranges.items():
        for number, rows in located.footprint(index, low, high).items():
            stretches = needed.get(number)
            if stretches is None:
                needed[number] = [rows]
            elif rows not in stretches:
                needed[number] = _merge_stretches([*stretches, rows])
    return needed


def _merge_stretches(stretches: List[Range]) -> List[Range]:
    merged: List[Range] = []
    for low, high in sorted(stretches):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


DecideRows = Callable[[int, Range, Range], Tuple[Range, Range]]
"""(operator, rows that the robot's steps need, rows that the server's need) -> (robot's rows, server's rows).

Together the answer must cover both needs; a global operator goes to one side. What one side needs and does not compute
is sent to it by the other.
"""


def decide_backward(located: LocalityMap, decide: DecideRows) -> Tuple[Dict[int, Range], Dict[int, Range]]:
    """Decide ranges of both sides from the outputs to the inputs, so that no unused row is computed."""
    need: Dict[Side, Dict[int, Range]] = {Side.ROBOT: {}, Side.SERVER: {}}
    ranges: Dict[Side, Dict[int, Range]] = {Side.ROBOT: {}, Side.SERVER: {}}
    for number in located.sequence.retained_ids():
        if number not in located.free:
            need[Side.ROBOT][number] = (0, located.count_rows(number))
    for index in range(len(located.operators) - 1, -1, -1):
        robot, server = located.made_rows(index, need[Side.ROBOT]), located.made_rows(index, need[Side.SERVER])
        if (robot[0] >= robot[1] and server[0] >= server[1]) or located.operators[index].kind is Locality.FREE:
            continue
        for side, rows in zip(Side, decide(index, robot, server)):
            if rows[0] >= rows[1]:
                continue
            ranges[side][index] = rows
            side_need = need[side]
            for number, part in located.footprint(index, *rows).items():
                rows_so_far = side_need.get(number)
                side_need[number] = part if rows_so_far is None else unite_rows(rows_so_far, part)
    return ranges[Side.ROBOT], ranges[Side.SERVER]


def complete_plan(
    located: LocalityMap,
    robot: Ranges,
    server: Ranges,
    codec: Optional[ChooseCodec] = None,
    identity: Optional[str] = None,
) -> SplitPlan:
    """The plan in which each side computes its ranges in program order and is sent what it lacks.

    Args:
        located: the sequence and its axes.
        robot: operator -> rows that the robot computes; empty ranges may be left out.
        server: the same for the server.
        codec: names the codec of a transfer; ``raw`` without it.
        identity: the sequence's hash, if known.

    The result is as right as the ranges are: pass it through ``check``.
    """
    ranges = {Side.ROBOT: robot, Side.SERVER: server}
    producer = located.producer
    transfers: List[Tuple[int, RowTransfer]] = []
    for side in Side:
        needed = needed_rows(located, ranges[side])
        first_use = _first_uses(located, ranges[side])
        if side is Side.ROBOT:
            for number in located.sequence.retained_ids():
                if number not in located.free:
                    needed[number] = [(0, located.count_rows(number))]
                    first_use.setdefault(number, len(located.operators))
        for number, stretches in needed.items():
            if number in located.sequence.inputs:
                present: Range = (0, located.count_rows(number)) if side is Side.ROBOT else EMPTY
            else:
                present = _made_rows(located, producer[number], number, ranges[side])
            for low, high in (part for rows in stretches for part in subtract_rows(rows, present)):
                name = codec(number, low, high) if codec else "raw"
                transfers.append((first_use[number], RowTransfer(number, low, high, side.opposite, name)))
    transfers.sort(key=lambda item: (item[0], item[1].value, item[1].low))
    return SplitPlan(
        identity or sequence_hash(located.sequence),
        {number: located.axes[number] for number in located.sequence.inputs if number in located.axes},
        _order_steps(located, robot),
        _order_steps(located, server),
        tuple(transfer for _, transfer in transfers),
    )


def subtract_rows(rows: Range, other: Range) -> List[Range]:
    """Return the stretches of ``rows`` that are not in ``other``; at most two."""
    if rows[0] >= rows[1]:
        return []
    if other[0] >= other[1] or other[1] <= rows[0] or rows[1] <= other[0]:
        return [rows]
    before, after = (rows[0], other[0]), (other[1], rows[1])
    return [part for part in (before, after) if part[0] < part[1]]


def _made_rows(located: LocalityMap, index: int, number: int, ranges: Ranges) -> Range:
    low, high = ranges.get(index, EMPTY)
    return (low, high) if low < high and (number in located.axes or located.operators[index].local is None) else EMPTY


def _first_uses(located: LocalityMap, ranges: Ranges) -> Dict[int, int]:
    first: Dict[int, int] = {}
    for index in sorted(ranges):
        low, high = ranges[index]
        for number in located.footprint(index, low, high):
            first.setdefault(number, index)
    return first


def _order_steps(located: LocalityMap, ranges: Ranges) -> Tuple[PlanStep, ...]:
    return tuple(
        PlanStep(index, low, high) for index, (low, high) in sorted(ranges.items())
        if low < high and located.operators[index].kind is not Locality.FREE
    )  # fmt: skip
