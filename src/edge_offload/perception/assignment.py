"""Overlap of boxes, and assignment of least cost."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from edge_offload.arrays import Array

Pairs = List[Tuple[int, int]]


def iou_matrix(first: Array, second: Array) -> Array:
    """Intersection over union of boxes [n, 4] and [m, 4] (x1 y1 x2 y2), float64 [n, m]; 0 for boxes without area."""
    a = np.asarray(first, dtype=np.float64).reshape(-1, 4)
    b = np.asarray(second, dtype=np.float64).reshape(-1, 4)
    corner_low = np.maximum(a[:, None, :2], b[None, :, :2])
    corner_high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.clip(corner_high - corner_low, 0.0, None)
    shared = sides[..., 0] * sides[..., 1]
    union = box_areas(a)[:, None] + box_areas(b)[None, :] - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1.0), 0.0)


def box_areas(boxes: Array) -> Array:
    """Areas [n] of boxes [n, 4]; 0 for boxes of negative width or height."""
    sides = np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None)
    return np.asarray(sides[:, 0] * sides[:, 1])


def assign_pairs(cost: Array, limit: float) -> Tuple[Pairs, List[int], List[int]]:
    """Pair rows with columns at the least total cost, where leaving a row and a column unpaired costs ``limit``.

    Costs at or above ``limit`` (infinity too) are never paired, and never bend the pairs that are.

    Returns:
        the pairs in order of their rows, the unpaired rows, the unpaired columns.
    """
    rows, columns = cost.shape
    pairs: Pairs = []
    if rows and columns:
        capped = np.minimum(cost, limit)
        pairs = [(int(i), int(j)) for i, j in zip(*linear_sum_assignment(capped)) if cost[i, j] < limit]
    taken_rows, taken_columns = {i for i, _ in pairs}, {j for _, j in pairs}
    return (
        pairs,
        [i for i in range(rows) if i not in taken_rows],
        [j for j in range(columns) if j not in taken_columns],
    )
