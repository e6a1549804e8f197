"""Voxel grids: their geometry, points to occupancy, occupancy to points. Numpy only, vectorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput

MAX_VOXELS = 1 << 27
"""Largest grid: 512 x 512 x 512."""


@dataclass(frozen=True)
class VoxelGrid:
    """A box of cubes. Voxel (i, j, k) spans ``origin + voxel_size * [(i, j, k), (i + 1, j + 1, k + 1)]``.

    Attributes:
        origin: m, the corner with the smallest coordinates, in the frame of the points.
        voxel_size: m, edge of a voxel.
        shape: voxels along x, y and z.

    Raises:
        BadInput: a size that is not positive, or too many voxels.
    """

    origin: Tuple[float, float, float] = (0.0, -25.6, -2.0)
    voxel_size: float = 0.2
    shape: Tuple[int, int, int] = (256, 256, 32)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.origin).all() and np.isfinite(self.voxel_size) and self.voxel_size > 0):
            raise BadInput(f"voxel grid at {self.origin} with voxels of {self.voxel_size} m")
        if min(self.shape) < 1 or int(np.prod(self.shape, dtype=np.int64)) > MAX_VOXELS:
            raise BadInput(f"voxel grid of {'x'.join(map(str, self.shape))}", remedy=f"at most {MAX_VOXELS} voxels")

    @property
    def extent(self) -> Tuple[float, float, float]:
        """Metres along x, y and z."""
        x, y, z = (side * self.voxel_size for side in self.shape)
        return x, y, z

    def voxel_indices(self, points: Array) -> Tuple[Array, Array]:
        """Return the voxels int64 [m, 3] of the points inside the grid, and bool [n] which points those are.

        Args:
            points: float [n, 3 or more]: x, y, z in metres.

        Raises:
            BadInput: not an array of points.
        """
        points = _check_points(points)
        # in float64: at 50 m a float32's error is 2 micrometres, which moves points on a face
        place = (points[:, :3].astype(np.float64) - self.origin) / self.voxel_size
        # compared before the cast: values that are not finite, or exceed int64, have no index
        inside = ((place >= 0) & (place < self.shape)).all(axis=1)
        return np.floor(place[inside]).astype(np.int64), inside

    def occupancy(self, points: Array) -> Array:
        """Return uint8 [x, y, z]: 1 for voxels with at least one of ``points`` (float [n, 3 or more], metres), else 0.

        Raises:
            BadInput: not an array of points.
        """
        points = _check_points(points)
        grid = np.zeros(self.shape, dtype=np.uint8)
        flat = np.zeros(len(points), dtype=np.int64)
        # as voxel_indices() does, but axis by axis: points outside along one are dropped before the next
        for axis, side in enumerate(self.shape):
            place = (points[:, axis].astype(np.float64) - self.origin[axis]) / self.voxel_size
            inside = np.flatnonzero((place >= 0) & (place < side))
            flat = flat[inside] * side + place[inside].astype(np.int64)
            points = points[inside]
        grid.reshape(-1)[flat] = 1
        return grid

    def cell(self, x: float, y: float) -> Tuple[int, int]:
        """Return the column of a position (m), or the nearest border column for a position outside."""
        i, j = (
            int(np.clip(np.floor((value - start) / self.voxel_size), 0, side - 1))
            for value, start, side in zip((x, y), self.origin, self.shape)
        )
        return i, j

    def centres(self, voxels: Array) -> Array:
        """Centres of the voxels int [n, 3], float32 [n, 3] metres."""
        centres: Array = np.asarray(self.origin) + (np.asarray(voxels) + 0.5) * self.voxel_size
        return centres.astype(np.float32)

    def axes(self) -> Tuple[Array, Array, Array]:
        """Coordinates of the centres along x, y and z, float64 metres."""
        x, y, z = (start + (np.arange(n) + 0.5) * self.voxel_size for start, n in zip(self.origin, self.shape))
        return x, y, z


FORWARD = VoxelGrid()
"""In front of a LiDAR 1.73 m above the ground: the volume of the SemanticKITTI benchmark."""


def grid_around(sensor_height_m: float, voxel_size: float = 0.2, forward: bool = False, cells: int = 256) -> VoxelGrid:
    """Make the grid of ``cells`` x ``cells`` x 32 voxels around a LiDAR at this height above the ground.

    The ground lies 0.27 m above the lower face, as in :data:`FORWARD` and in the networks' training.

    Args:
        sensor_height_m: metres above the ground.
        voxel_size: side of a voxel, metres.
        forward: the LiDAR is in the middle of one face and looks inward; else it is in the middle of the grid.
        cells: voxels along each side of the ground.
    """
    half = 0.5 * cells * voxel_size
    return VoxelGrid((0.0 if forward else -half, -half, -sensor_height_m - 0.27), voxel_size, (cells, cells, 32))


def _check_points(points: Array) -> Array:
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] < 3:
        raise BadInput(f"points of shape {points.shape}", remedy="give float [n, 3 or more]")
    return points
