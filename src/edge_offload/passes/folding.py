"""What a recorded inference computes from nothing that was uploaded, such as a detector's grid: constants of it."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Set, Tuple

from edge_offload.ir.trace.calls import ALLOC, DOWNLOAD
from edge_offload.ir.trace.segments import Segment


class Folded(NamedTuple):
    """Calls whose results are the same in each inference.

    Attributes:
        storages: that they make and nothing else writes to, by number in the segment.
        calls: which need not be made when these are there.
    """

    storages: Set[int]
    calls: Set[int]


def fold(segment: Segment, made: Sequence[Tuple[int, ...]], live: Set[int]) -> Folded:
    """Find them.

    Args:
        segment: a recorded inference; it has run, so that results are known.
        made: for each call, numbers of the storages that it makes.
        live: numbers of what lived before; nothing writes to these.
    """
    varying: Set[int] = set()
    while True:
        count = len(varying)
        constant = _spread(segment, made, varying)
        storages = {number for numbers in made for number in numbers} - varying
        calls = {index for index in constant if _touched(segment, made, index) <= storages}
        last: Dict[int, int] = {}
        for index in sorted(calls):
            for number in _touched(segment, made, index):
                last[number] = index
        for index, (operator, references, _) in enumerate(segment.calls):
            if index in calls:
                continue
            varying |= _touched(segment, made, index)
            varying |= {number for number in references if last.get(number, -1) > index}  # it would find what is later
            if operator.name == DOWNLOAD:
                varying |= set(references) - live
        if len(varying) == count:
            return Folded(storages, calls)


def _spread(segment: Segment, made: Sequence[Tuple[int, ...]], varying: Set[int]) -> List[int]:
    """Add to ``varying`` whatever is computed from it, or from an upload; returns the calls that use nothing of it."""
    constant: List[int] = []
    for index, (operator, references, _) in enumerate(segment.calls):
        if operator.hosts or (operator.name != ALLOC and varying.intersection(references)):
            varying |= _touched(segment, made, index)
        elif operator.name != DOWNLOAD:
            constant.append(index)
    return constant


def _touched(segment: Segment, made: Sequence[Tuple[int, ...]], index: int) -> Set[int]:
    """Storages that a call makes or writes to."""
    operator, references, _ = segment.calls[index]
    return {*made[index], *(references[position] for position in operator.written)}
