"""From ranges to a plan: given what each side computes of each operator, what must cross the link follows."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional, Tuple

from edge_offload.ir import sequence_hash
from edge_offload.split.footprints.registry import EMPTY, Locality, Range
from edge_offload.split.model.locality import LocalityMap, union
from edge_offload.split.model.plan import Plan, Side, Step, Transfer

Ranges = Mapping[int, Range]
ChooseCodec = Callable[[int, int, int], str]
"""(value, low, high) -> codec name."""


def needed_rows(located: LocalityMap, ranges: Ranges) -> Dict[int, List[Range]]:
    """Return rows of every value that one side's steps need, as separate stretches; empty ranges need none."""
    needed: Dict[int, List[Range]] = {}
    for index, (low, high) in ranges.items():
        for number, rows in located.footprint(index, low, high).items():
            known = needed.get(number)
            if known is None:
                needed[number] = [rows]
            elif rows not in known:
                needed[number] = _merged([*known, rows])
    return needed


def _merged(stretches: List[Range]) -> List[Range]:
    merged: List[Range] = []
    for low, high in sorted(stretches):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


Decide = Callable[[int, Range, Range], Tuple[Range, Range]]
"""(operator, rows that the robot's steps need, rows that the server's need) -> (robot's rows, server's rows).

Together the answer must cover both needs; a global operator goes to one side. What one side needs and does not compute
is sent to it by the other.
"""


def backward(located: LocalityMap, decide: Decide) -> Tuple[Dict[int, Range], Dict[int, Range]]:
    """Decide ranges of both sides from the outputs to the inputs, so that no unused row is computed."""
    need: Dict[Side, Dict[int, Range]] = {Side.ROBOT: {}, Side.SERVER: {}}
    ranges: Dict[Side, Dict[int, Range]] = {Side.ROBOT: {}, Side.SERVER: {}}
    for number in located.sequence.retained_ids():
        if number not in located.free:
            need[Side.ROBOT][number] = (0, located.length(number))
    for index in range(len(located.operators) - 1, -1, -1):
        robot, server = located.made(index, need[Side.ROBOT]), located.made(index, need[Side.SERVER])
        if (robot[0] >= robot[1] and server[0] >= server[1]) or located.operators[index].kind is Locality.FREE:
            continue
        for side, rows in zip(Side, decide(index, robot, server)):
            if rows[0] >= rows[1]:
                continue
            ranges[side][index] = rows
            wanted = need[side]
            for number, part in located.footprint(index, *rows).items():
                known = wanted.get(number)
                wanted[number] = part if known is None else union(known, part)
    return ranges[Side.ROBOT], ranges[Side.SERVER]


def complete(
    located: LocalityMap,
    robot: Ranges,
    server: Ranges,
    codec: Optional[ChooseCodec] = None,
    identity: Optional[str] = None,
) -> Plan:
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
    transfers: List[Tuple[int, Transfer]] = []
    for side in Side:
        wanted = needed_rows(located, ranges[side])
        first_use = _first_use(located, ranges[side])
        if side is Side.ROBOT:
            for number in located.sequence.retained_ids():
                if number not in located.free:
                    wanted[number] = [(0, located.length(number))]
                    first_use.setdefault(number, len(located.operators))
        for number, stretches in wanted.items():
            if number in located.sequence.inputs:
                own: Range = (0, located.length(number)) if side is Side.ROBOT else EMPTY
            else:
                own = _made(located, producer[number], number, ranges[side])
            for low, high in (part for rows in stretches for part in minus(rows, own)):
                name = codec(number, low, high) if codec else "raw"
                transfers.append((first_use[number], Transfer(number, low, high, side.other, name)))
    transfers.sort(key=lambda item: (item[0], item[1].value, item[1].low))
    return Plan(
        identity or sequence_hash(located.sequence),
        {number: located.axes[number] for number in located.sequence.inputs if number in located.axes},
        _in_order(located, robot),
        _in_order(located, server),
        tuple(transfer for _, transfer in transfers),
    )


def minus(rows: Range, own: Range) -> List[Range]:
    """Return the stretches of ``rows`` that are not in ``own``; at most two."""
    if rows[0] >= rows[1]:
        return []
    if own[0] >= own[1] or own[1] <= rows[0] or rows[1] <= own[0]:
        return [rows]
    left, right = (rows[0], own[0]), (own[1], rows[1])
    return [part for part in (left, right) if part[0] < part[1]]


def _made(located: LocalityMap, index: int, number: int, ranges: Ranges) -> Range:
    low, high = ranges.get(index, EMPTY)
    return (low, high) if low < high and (number in located.axes or located.operators[index].local is None) else EMPTY


def _first_use(located: LocalityMap, ranges: Ranges) -> Dict[int, int]:
    first: Dict[int, int] = {}
    for index in sorted(ranges):
        low, high = ranges[index]
        for number in located.footprint(index, low, high):
            first.setdefault(number, index)
    return first


def _in_order(located: LocalityMap, ranges: Ranges) -> Tuple[Step, ...]:
    return tuple(
        Step(index, low, high) for index, (low, high) in sorted(ranges.items())
        if low < high and located.operators[index].kind is not Locality.FREE
    )  # fmt: skip
