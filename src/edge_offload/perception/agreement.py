"""How far two results for the same frame agree, as the drop in accuracy of one against the other: 0 (the same) to 1.

What was carried along from an older frame is judged so by the network's own result (:mod:`edge_offload.manager.drop`).
"""

from __future__ import annotations

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.perception.assignment import assign, iou_matrix


def boxes_drop(before: Array, after: Array) -> float:
    """One less the soft F1 of boxes: of those that are assigned to each other, their overlap counts.

    Args:
        before: float [n, 4], x1 y1 x2 y2 in pixels.
        after: float [m, 4], likewise.

    Returns:
        ``1 - 2 * sum of overlaps / (n + m)``; 0 where nobody is in either.
    """
    total = len(before) + len(after)
    if not total:
        return 0.0
    if not len(before) or not len(after):
        return 1.0
    overlaps = iou_matrix(before, after)
    pairs, _, _ = assign(1.0 - overlaps, 1.0)
    # rounding may say a little less than nothing
    return max(0.0, float(1.0 - 2.0 * sum(overlaps[i, j] for i, j in pairs) / total))


def scene_drop(before: Array, after: Array) -> float:
    """One less the overlap (IoU) of the full voxels of two grids of labels; 0 is an empty voxel.

    Raises:
        BadInput: grids of different sizes.
    """
    if before.shape != after.shape:
        raise BadInput(f"grids of {before.shape} and {after.shape} voxels cannot be compared")
    first, second = before != 0, after != 0
    either = int(np.count_nonzero(first | second))
    return 1.0 - int(np.count_nonzero(first & second)) / either if either else 0.0
