"""From where to where a value is needed: when its bytes may be freed, and how many are held at most."""

from __future__ import annotations

from typing import Dict, List

from edge_offload.ir.sequence import OperatorSequence
from edge_offload.ir.values import ITEM_BYTES


def alias_class(sequence: OperatorSequence) -> Dict[int, int]:
    """Number of each value -> number of a value that stands for all that share its bytes."""
    parent = {number: number for number in sequence.values}

    def find(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    by_storage: Dict[int, int] = {}
    for number, value in sequence.values.items():
        if value.storage is not None:
            first = by_storage.setdefault(value.storage, number)
            parent[find(number)] = find(first)
    for operator in sequence.operators:
        for position, number in operator.aliases:
            made = operator.outputs[position]
            if made is not None:
                parent[find(made)] = find(number)
    return {number: find(number) for number in sequence.values}


def last_use(sequence: OperatorSequence) -> Dict[int, int]:
    """Number of each value -> index of the last operator that takes it.

    -1 for a value that nothing takes, ``len(sequence)`` for a value that is kept after the end.
    """
    last = dict.fromkeys(sequence.values, -1)
    for index, operator in enumerate(sequence.operators):
        for number in operator.reads():
            last[number] = index
    for number in sequence.kept():
        last[number] = len(sequence)
    return last


def free_after(sequence: OperatorSequence) -> List[List[int]]:
    """For each operator, the intermediate values whose handle can be dropped once it has run."""
    last = last_use(sequence)
    schedule: List[List[int]] = [[] for _ in sequence.operators]
    for index, operator in enumerate(sequence.operators):
        for number in operator.makes():
            end = max(last[number], index)
            if end < len(sequence):
                schedule[end].append(number)
    return schedule


def peak_bytes(sequence: OperatorSequence) -> int:
    """Largest sum of intermediate bytes held at once; a storage counts once, dynamic values count as nothing."""
    classes = alias_class(sequence)
    last = last_use(sequence)
    size: Dict[int, int] = {}
    end: Dict[int, int] = {}
    for number, value in sequence.values.items():
        group = classes[number]
        nbytes = value.elements * ITEM_BYTES[value.dtype] if value.is_static else 0
        size[group] = max(size.get(group, 0), nbytes)
        end[group] = max(end.get(group, -1), last[number])
    outside = {classes[number] for number in (*sequence.inputs, *sequence.constants)}
    held = peak = 0
    open_groups: Dict[int, int] = {}
    for index, operator in enumerate(sequence.operators):
        for number in operator.makes():
            group = classes[number]
            if group not in outside and group not in open_groups:
                open_groups[group] = size[group]
                held += size[group]
        peak = max(peak, held)
        for group in [group for group in open_groups if end[group] <= index]:
            held -= open_groups.pop(group)
    return peak
