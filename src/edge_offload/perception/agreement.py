"""Agreement of two results for the same frame, as the drop in accuracy of one against the other: 0 (equal) to 1.

:mod:`edge_offload.manager.drop` compares results carried from an older frame with the network's own.
"""

from __future__ import annotations

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.perception.assignment import assign_pairs, iou_matrix


def boxes_drop(before: Array, after: Array) -> float:
    """Return 1 minus the soft F1 of boxes, where each assigned pair counts by its overlap.

    Args:
        before: float [n, 4], x1 y1 x2 y2 in pixels.
        after: float [m, 4], in the same format.

    Returns:
        ``1 - 2 * sum of overlaps / (n + m)``; 0 where both are empty.
    """
    total = len(before) + len(after)
    if not total:
        return 0.0
    if not len(before) or not len(after):
        return 1.0
    overlaps = iou_matrix(before, after)
    pairs, _, _ = assign_pairs(1.0 - overlaps, 1.0)
    # rounding may give a value slightly below 0
    return max(0.0, float(1.0 - 2.0 * sum(overlaps[i, j] for i, j in pairs) / total))


def scene_drop(before: Array, after: Array) -> float:
    """Return 1 minus the overlap (IoU) of the full voxels of two label grids, where label 0 is empty.

    Raises:
        BadInput: grids of different sizes.
    """
    if before.shape != after.shape:
        raise BadInput(f"grids of {before.shape} and {after.shape} voxels cannot be compared")
    first, second = before != 0, after != 0
    either = int(np.count_nonzero(first | second))
    return 1.0 - int(np.count_nonzero(first & second)) / either if either else 0.0
