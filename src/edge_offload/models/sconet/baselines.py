"""What a planner could do without a network: nothing, closing gaps, or filling columns down to a spread-out ground.

Every baseline maps uint8 occupancy [x, y, z] to uint8 labels; labels come from the height above the ground alone.
"""

from __future__ import annotations

from typing import Callable, Dict

import numpy as np
from scipy import ndimage

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import VALUE


def ground_level(occupancy: Array) -> Array:
    """Index of the ground in every column, int [x, y]: the lowest hit near by, spread to where there is none.

    Hits more than 0.4 m (2 voxels) above the lowest within 5 m are not ground.
    """
    hit = occupancy.any(axis=2)
    lowest = np.where(hit, occupancy.argmax(axis=2), occupancy.shape[2])
    near = ndimage.minimum_filter(lowest, size=51)
    ground = hit & (lowest <= near + 2)
    if not ground.any():
        return np.zeros(hit.shape, dtype=np.int64)
    nearest = ndimage.distance_transform_edt(~ground, return_distances=False, return_indices=True)
    level: Array = lowest[tuple(nearest)]
    return level


def by_height(full: Array, level: Array) -> Array:
    """Labels of what is full: road up to one voxel above the ground, building above 2 m, else vegetation."""
    above = np.arange(full.shape[2])[None, None, :] - level[:, :, None]
    kinds = np.where(above <= 1, VALUE["road"], np.where(above >= 10, VALUE["building"], VALUE["vegetation"]))
    labels: Array = np.where(full, kinds, 0).astype(np.uint8)
    return labels


def nothing(occupancy: Array) -> Array:
    """No completion: full is what the sweep hit."""
    return by_height(occupancy > 0, ground_level(occupancy))


def closing(occupancy: Array) -> Array:
    """Morphological closing with a box of 7 x 7 x 3 voxels."""
    padded = np.pad(occupancy > 0, 4)
    closed = ndimage.binary_closing(padded, np.ones((7, 7, 3), dtype=bool))[4:-4, 4:-4, 4:-4]
    return by_height(closed, ground_level(occupancy))


def columns(occupancy: Array) -> Array:
    """Closing; then the ground everywhere, and every column full from its highest hit within 3 m down to it."""
    level = ground_level(occupancy)
    full = closing(occupancy) > 0
    heights = np.arange(occupancy.shape[2])[None, None, :]
    low = full & (heights <= level[:, :, None] + 15)
    top = np.where(low.any(axis=2), occupancy.shape[2] - 1 - low[:, :, ::-1].argmax(axis=2), -1)
    full |= (heights <= top[:, :, None]) & (heights >= level[:, :, None])
    full |= heights == level[:, :, None]
    return by_height(full, level)


BASELINES: Dict[str, Callable[[Array], Array]] = {
    "no completion": nothing,
    "closing": closing,
    "column fill": columns,
}
"""By name."""
