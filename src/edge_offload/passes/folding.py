"""Constant folding: calls of a recorded inference that depend on no upload, such as a detector's grid."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Set, Tuple

from edge_offload.ir.trace.calls import ALLOC, DOWNLOAD
from edge_offload.ir.trace.segments import Segment


class Folded(NamedTuple):
    """Calls whose results are the same in each inference.

    Attributes:
        storages: that they make and nothing else writes to, by number in the segment.

        calls: positions of the calls that need not run once these exist.
    """

    storages: Set[int]
    calls: Set[int]


def fold_constants(segment: Segment, made: Sequence[Tuple[int, ...]], live: Set[int]) -> Folded:
    """Finds the calls and storages that are the same in every inference.

    Args:
        segment: a recorded inference; it has run, so that results are known.
        made: for each call, numbers of the storages that it makes.
        live: numbers of what lived before; nothing writes to these.
    """
    varying: Set[int] = set()
    while True:
        count = len(varying)
        constant = _mark_varying(segment, made, varying)
        storages = {number for numbers in made for number in numbers} - varying
        calls = {index for index in constant if _touched_storages(segment, made, index) <= storages}
        last: Dict[int, int] = {}
        for index in sorted(calls):
            for number in _touched_storages(segment, made, index):
                last[number] = index
        for index, (operator, references, _) in enumerate(segment.calls):
            if index in calls:
                continue
            varying |= _touched_storages(segment, made, index)
            varying |= {number for number in references if last.get(number, -1) > index}  # it would find what is later
            if operator.name == DOWNLOAD:
                varying |= set(references) - live
        if len(varying) == count:
            return Folded(storages, calls)


def _mark_varying(segment: Segment, made: Sequence[Tuple[int, ...]], varying: Set[int]) -> List[int]:
    """Adds to ``varying`` what depends on an upload or on it; returns the calls that use none of it."""
    constant: List[int] = []
    for index, (operator, references, _) in enumerate(segment.calls):
        if operator.hosts or (operator.name != ALLOC and varying.intersection(references)):
            varying |= _touched_storages(segment, made, index)
        elif operator.name != DOWNLOAD:
            constant.append(index)
    return constant


def _touched_storages(segment: Segment, made: Sequence[Tuple[int, ...]], index: int) -> Set[int]:
    """Storages that a call makes or writes to."""
    operator, references, _ = segment.calls[index]
    return {*made[index], *(references[position] for position in operator.written)}
