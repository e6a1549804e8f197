"""Baselines of scene completion without a network: none, closing gaps, or filling columns down to the ground.

Every baseline maps uint8 occupancy [x, y, z] to uint8 labels, by the height above the ground.
"""

from __future__ import annotations

from typing import Callable, Dict

import numpy as np
from scipy import ndimage

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.scenes.labels import VALUE

_ONE = np.uint64(1)


def ground_level(occupancy: Array) -> Array:
    """Index of the ground in every column, int [x, y]: its lowest hit; without one, that of the nearest column.

    Hits more than 0.4 m (2 voxels) above the lowest within 5 m are not ground.
    """
    return _find_ground(_pack_columns(occupancy), occupancy.shape[2])


def _find_ground(hits: Array, high: int) -> Array:
    hit = hits != 0
    lowest = np.where(hit, _highest_bit(hits & (~hits + _ONE)), high)
    near = ndimage.minimum_filter(lowest, size=51)
    ground = hit & (lowest <= near + 2)
    if not ground.any():
        return np.zeros(hit.shape, dtype=np.int64)
    nearest = ndimage.distance_transform_edt(~ground, return_distances=False, return_indices=True)
    level: Array = lowest[tuple(nearest)]
    return level


def _pack_columns(occupancy: Array) -> Array:
    """Pack columns into uint64 [x, y]: bit z is set where ``occupancy`` [x, y, z] is above 0.

    Raises:
        BadInput: the columns are too high.
    """
    high = occupancy.shape[2]
    highest = 46  # most voxels of a column, so that 16 above any ground fit into 64 bits, and doubles are exact
    if high > highest:
        raise BadInput(f"a grid of {high} voxels upwards", remedy=f"at most {highest}")
    packed = np.packbits(occupancy > 0, axis=2, bitorder="little")
    columns = np.zeros((*occupancy.shape[:2], 8), dtype=np.uint8)
    columns[:, :, : packed.shape[2]] = packed
    bits: Array = columns.view("<u8")[:, :, 0]
    return bits


def _unpack_columns(bits: Array, high: int) -> Array:
    """Unpack columns to uint8 [x, y, z], 1 where their bits are set."""
    packed = np.ascontiguousarray(bits).astype("<u8").view(np.uint8).reshape(*bits.shape, 8)
    return np.unpackbits(packed[:, :, : -(-high // 8)], axis=2, count=high, bitorder="little")


def _lowest_bits(index: Array) -> Array:
    """Return columns whose lowest ``index`` [x, y] (0 to 63) voxels are full."""
    return (_ONE << index.astype(np.uint64)) - _ONE


def _highest_bit(bits: Array) -> Array:
    """Index of every column's highest bit, int64 [x, y]; -1: none. Exact up to 52 bits."""
    return np.frexp(bits.astype(np.float64))[1].astype(np.int64) - 1


def _label_columns(full: Array, level: Array, high: int) -> Array:
    """Label full voxels: road up to one voxel above the ground, building above 2 m, else vegetation."""
    road, low = full & _lowest_bits(level + 2), full & _lowest_bits(level + 10)
    labels = _unpack_columns(road, high) * np.uint8(VALUE["road"])
    labels += _unpack_columns(low ^ road, high) * np.uint8(VALUE["vegetation"])
    labels += _unpack_columns(full ^ low, high) * np.uint8(VALUE["building"])
    return labels


def label_sweep(occupancy: Array) -> Array:
    """Label the hit voxels, without completion."""
    hits, high = _pack_columns(occupancy), occupancy.shape[2]
    return _label_columns(hits, _find_ground(hits, high), high)


def retain_hits(labels: Array, occupancy: Array) -> Array:
    """Fill the hit voxels in ``labels``: a seen obstacle must not vanish, whatever the network returns."""
    missed = (occupancy > 0) & (labels == 0)
    return np.where(missed, label_sweep(occupancy), labels) if missed.any() else labels


def close_gaps(occupancy: Array) -> Array:
    """Close gaps morphologically with a box of 7 x 7 x 3 voxels, and label."""
    hits, high = _pack_columns(occupancy), occupancy.shape[2]
    return _label_columns(_close_columns(hits, high), _find_ground(hits, high), high)


def _close_columns(hits: Array, high: int) -> Array:
    """Dilate and erode columns with the box; bits are shifted up by one meanwhile, to have one below the lowest."""
    wide = _merge_seven(np.pad(hits << _ONE, 6), np.bitwise_or)
    wide |= (wide << _ONE) | (wide >> _ONE)
    narrow = _merge_seven(wide, np.bitwise_and)
    closed: Array = ((narrow & (narrow << _ONE) & (narrow >> _ONE)) >> _ONE) & _lowest_bits(np.array(high))
    return closed


def _merge_seven(bits: Array, merge: Callable[[Array, Array], Array]) -> Array:
    """Merge columns with those up to three away along x and y; the result is smaller by three at each side."""
    for _ in range(2):
        two = merge(bits[:-1], bits[1:])
        four = merge(two[:-2], two[2:])
        bits = merge(four[:-3], four[3:]).T
    return bits


def fill_columns(occupancy: Array) -> Array:
    """Close gaps, add the ground, and fill each column from its highest hit within 3 m down to it."""
    hits, high = _pack_columns(occupancy), occupancy.shape[2]
    level, full = _find_ground(hits, high), _close_columns(hits, high)
    top = np.maximum(_highest_bit(full & _lowest_bits(level + 16)), level)
    full |= _lowest_bits(top + 1) & ~_lowest_bits(level)
    return _label_columns(full, level, high)


BASELINES: Dict[str, Callable[[Array], Array]] = {
    "no completion": label_sweep,
    "closing": close_gaps,
    "column fill": fill_columns,
}
"""Baselines by name."""
