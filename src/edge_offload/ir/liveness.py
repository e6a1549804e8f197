"""Lifetimes of values: when the bytes of each may be freed."""

from __future__ import annotations

from typing import Dict, List

from edge_offload.ir.sequence import OperatorSequence


def last_use(sequence: OperatorSequence) -> Dict[int, int]:
    """Number of each value -> index of the last operator that takes it.

    -1 for a value that nothing takes, ``len(sequence)`` for a value that is kept after the end.
    """
    last = dict.fromkeys(sequence.values, -1)
    for index, operator in enumerate(sequence.operators):
        for number in operator.input_ids():
            last[number] = index
    for number in sequence.retained_ids():
        last[number] = len(sequence)
    return last


def free_after(sequence: OperatorSequence) -> List[List[int]]:
    """Lists for each operator the intermediate values whose handle can be dropped once it has run."""
    last = last_use(sequence)
    schedule: List[List[int]] = [[] for _ in sequence.operators]
    for index, operator in enumerate(sequence.operators):
        for number in operator.output_ids():
            end = max(last[number], index)
            if end < len(sequence):
                schedule[end].append(number)
    return schedule
