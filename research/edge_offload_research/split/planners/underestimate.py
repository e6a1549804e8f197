"""What rows need at least, whichever they are: footprints in numbers of rows."""

from __future__ import annotations

from typing import Dict

import numpy as np

from edge_offload.arrays import Array
from edge_offload.split.footprints.registry import Locality
from edge_offload.split.model.locality import LocalityMap


def strictly_needed(located: LocalityMap) -> Dict[int, int]:
    """Operator -> how many of its rows some used row depends on; operators without any are left out."""
    marks = {number: np.zeros(located.count_rows(number), dtype=bool)
             for number in located.sequence.values if number not in located.free}  # fmt: skip
    for number in located.sequence.retained_ids():
        if number in marks:
            marks[number][:] = True
    needed: Dict[int, int] = {}
    for index in range(len(located.operators) - 1, -1, -1):
        entry = located.operators[index]
        made = [marks[number] for number in located.made_by[index] if number in marks]
        if entry.kind is Locality.FREE or not made:
            continue
        rows = np.zeros(entry.length, dtype=bool)
        for used in made:
            rows |= used if len(used) == entry.length else used.any()
        if not rows.any():
            continue
        needed[index] = int(rows.sum())
        for row in np.flatnonzero(rows):
            for number, (low, high) in located.footprint(index, int(row), int(row) + 1).items():
                if number in marks:
                    marks[number][low:high] = True
    return needed


def least_footprints(located: LocalityMap, index: int) -> Dict[int, Array]:
    """Return for every argument the fewest of its rows that any c rows of the operator need, c = 0 … all."""
    length = located.operators[index].length
    lows: Dict[int, Array] = {}
    highs: Dict[int, Array] = {}
    for row in range(length):
        for number, (low, high) in located.footprint(index, row, row + 1).items():
            lows.setdefault(number, np.full(length, -1))[row] = low
            highs.setdefault(number, np.full(length, -1))[row] = high
    footprints = {}
    for number, first in lows.items():
        end, least = highs[number], np.zeros(length + 1)
        steady = bool(np.all(first >= 0) and np.all(np.diff(first) >= 0) and np.all(np.diff(end) >= 0))
        for rows in range(1, length + 1):
            if steady:
                least[rows] = max((end[rows - 1 :] - first[: length - rows + 1]).min(), 0)
            else:  # rows in padding, or mirrored: one row's need is a bound for any stretch
                least[rows] = max((end - first).min(), 0)
        footprints[number] = np.maximum.accumulate(least)
    return footprints
