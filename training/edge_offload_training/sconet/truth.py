"""The complete labels of a world in a voxel grid around the sensor."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import IGNORED
from edge_offload.models.scenes.lidar import Lidar, SensorPose, ground_height, local_solids, to_world
from edge_offload.models.scenes.solids import Solid
from edge_offload.models.scenes.world import World
from edge_offload.models.voxels import VoxelGrid


def true_labels(world: World, pose: SensorPose, lidar: Lidar, grid: VoxelGrid) -> Array:
    """Label of every voxel of ``grid`` (in the frame of the sensor), uint8 [x, y, z].

    The ground is one voxel thick, with empty voxels below. The inside of buildings and the space behind the walls of a
    room are :data:`~edge_offload.models.scenes.labels.IGNORED`.
    """
    result = np.zeros(grid.shape, dtype=np.uint8)
    x, y, z = grid.axes()
    positions = to_world(pose, *np.meshgrid(x, y, indexing="ij"))
    height, kind = world.ground.at(*positions)
    level = np.floor((height - ground_height(world, pose) - lidar.height - grid.origin[2]) / grid.voxel_size)
    within = (level >= 0) & (level < grid.shape[2])
    columns = np.nonzero(within)
    result[columns[0], columns[1], level[within].astype(np.int64)] = kind[within]
    for solid in local_solids(world, pose, lidar.height):
        _fill_solid(result, solid, grid, (x, y, z))
    west, south, east, north = world.bounds
    outside = (positions[0] < west) | (positions[0] > east) | (positions[1] < south) | (positions[1] > north)
    result[outside] = IGNORED
    if np.isfinite(world.bounds).all():
        ceiling = max(solid.centre[2] + solid.half[2] for solid in local_solids(world, pose, lidar.height))
        result[:, :, z > ceiling] = IGNORED
    return result


def _fill_solid(labels: Array, solid: Solid, grid: VoxelGrid, axes: Tuple[Array, Array, Array]) -> None:
    margin = 0.35 * grid.voxel_size  # a solid also fills voxels with centres this near to its surface
    reach = (solid.radius, solid.radius, solid.half[2])
    windows = []
    for axis, centre, half in zip(axes, solid.centre, reach):
        window = slice(*np.searchsorted(axis, (centre - half - margin, centre + half + margin)))
        if window.start >= window.stop:
            return
        windows.append(window)
    x, y, z = (axis[window] for axis, window in zip(axes, windows))
    depth = solid.depth(x[:, None, None], y[None, :, None], z[None, None, :], margin)
    part = labels[windows[0], windows[1], windows[2]]
    part[depth >= 0] = solid.label
    if solid.shell:
        part[depth > solid.shell + margin] = IGNORED
