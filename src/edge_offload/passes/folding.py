"""Constant folding: finds the calls of a recorded inference that depend on no upload, such as a detector's grid."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Set, Tuple

from edge_offload.ir.trace.calls import ALLOC, DOWNLOAD
from edge_offload.ir.trace.segments import Segment


class Folded(NamedTuple):
    """Calls and storages that are the same in each inference.

    Attributes:
        storages: canonical numbers of the storages that only constant calls make and write to.
        calls: positions of the calls that need not run while these storages exist.
    """

    storages: Set[int]
    calls: Set[int]


def fold_constants(segment: Segment, made: Sequence[Tuple[int, ...]], live: Set[int]) -> Folded:
    """Finds the calls and storages that are the same in each inference.

    Marks storages as varying until a pass over the calls marks no more; the rest is constant.

    Args:
        segment: a recorded inference, which has run, so that its results are known.
        made: for each call, canonical numbers of the storages that it makes.
        live: canonical numbers of the storages that existed before; no call writes to these.
    """
    varying: Set[int] = set()
    while True:
        count = len(varying)
        constant = _mark_varying(segment, made, varying)
        storages = {number for numbers in made for number in numbers} - varying
        calls = {index for index in constant if _touched_storages(segment, made, index) <= storages}
        last_write: Dict[int, int] = {}
        for index in sorted(calls):
            for number in _touched_storages(segment, made, index):
                last_write[number] = index
        for index, (operator, references, _) in enumerate(segment.calls):
            if index in calls:
                continue
            varying |= _touched_storages(segment, made, index)
            # a constant storage holds its last contents from the start; this call needs earlier ones
            varying |= {number for number in references if last_write.get(number, -1) > index}
            if operator.name == DOWNLOAD:
                varying |= set(references) - live
        if len(varying) == count:
            return Folded(storages, calls)


def _mark_varying(segment: Segment, made: Sequence[Tuple[int, ...]], varying: Set[int]) -> List[int]:
    """Adds the storages to ``varying`` that depend on an upload or on a varying storage.

    Returns:
        Positions of the other calls, downloads excepted.
    """
    constant: List[int] = []
    for index, (operator, references, _) in enumerate(segment.calls):
        if operator.hosts or (operator.name != ALLOC and varying.intersection(references)):
            varying |= _touched_storages(segment, made, index)
        elif operator.name != DOWNLOAD:
            constant.append(index)
    return constant


def _touched_storages(segment: Segment, made: Sequence[Tuple[int, ...]], index: int) -> Set[int]:
    """Canonical numbers of the storages that a call makes or writes to."""
    operator, references, _ = segment.calls[index]
    return {*made[index], *(references[position] for position in operator.written)}
