"""Voxels that are visible to a sensor on the robot's path; only these can be completed.

SemanticKITTI's scene-completion benchmark excludes voxels from scores that no scan of the drive observed (Behley et
al., 2019, section 5.3). Here the drive consists of some poses around the robot, with exact ray casting from each.
"""

from __future__ import annotations

import dataclasses
from typing import List, Tuple

import numpy as np
from scipy import ndimage

from edge_offload.arrays import Array
from edge_offload.models.scenes.lidar import Lidar, SensorPose, exact_ranges, ground_height, to_local
from edge_offload.models.scenes.world import World
from edge_offload.models.voxels import VoxelGrid

SPACING_M = 10.0
SIGHT_LIDAR = Lidar(rings=144, low=-1.3, high=1.3, columns=640, reach=45.0, noise=0.0, dropout=0.0, dropout_far=0.0)


def along_the_street(pose: SensorPose, grid: VoxelGrid) -> Tuple[SensorPose, ...]:
    """Return poses every :data:`SPACING_M` along the world's x axis, through ``pose``, within ``grid``."""
    far = float(np.hypot(*grid.extent[:2]))
    steps = np.arange(1, int(far / SPACING_M) + 1) * SPACING_M
    others = [dataclasses.replace(pose, x=pose.x + float(x)) for x in (*steps, *-steps)]
    return (pose, *(other for other in others if _lies_in_grid(other, pose, grid)))


def across_a_room(world: World, pose: SensorPose) -> Tuple[SensorPose, ...]:
    """Return ``pose`` and the free middles of a room's quarters."""
    west, south, east, north = world.bounds
    poses: List[SensorPose] = [pose]
    for x, y in ((west, south), (west, north), (east, south), (east, north)):
        midpoint = dataclasses.replace(pose, x=0.5 * x, y=0.5 * y)
        place = np.array([midpoint.x]), np.array([midpoint.y]), np.array([1.0])
        if all(float(solid.depth(*place, 0.2)[0]) < 0 for solid in world.solids):
            poses.append(midpoint)
    return tuple(poses)


def visible_voxels(
    world: World, poses: Tuple[SensorPose, ...], pose: SensorPose, lidar: Lidar, grid: VoxelGrid
) -> Array:
    """Return bool [x, y, z]: air that a sensor at one of ``poses`` sees, and the surfaces that border on it.

    Leaves and grilles hide nothing, because some ray passes them.

    Args:
        world: ground and solids.
        poses: of the sensors.
        pose: of the sensor in whose frame ``grid`` lies; ``lidar.height`` is the height of all of them.
        lidar: kind of the sensors.
        grid: voxels around ``pose``.
    """
    opaque = dataclasses.replace(world, solids=tuple(solid for solid in world.solids if not solid.porosity))
    sight = dataclasses.replace(SIGHT_LIDAR, height=lidar.height)
    air = np.zeros(grid.shape, dtype=bool)
    x, y, z = (axis.astype(np.float32) for axis in grid.axes())
    for other in poses:
        # one more ray up and down, because a voxel is larger than a ray
        ranges = ndimage.maximum_filter(exact_ranges(opaque, other, sight), size=(3, 1), mode="nearest")
        east, north = to_local(pose, np.array(other.x), np.array(other.y))
        up = ground_height(world, other) - ground_height(world, pose)
        across_x, across_y = x[:, None] - np.float32(east), y[None, :] - np.float32(north)
        flat = np.hypot(across_x, across_y)
        turn = np.arctan2(across_y, across_x) - np.float32(other.yaw - pose.yaw)
        column = np.rint((turn + np.pi) * (sight.columns / (2 * np.pi))).astype(np.int64) % sight.columns
        rise = z[None, None, :] - np.float32(up)
        row = (np.arctan2(rise, flat[:, :, None]) - sight.low) * ((sight.rings - 1) / (sight.high - sight.low))
        row = np.clip(np.rint(row), 0, sight.rings - 1).astype(np.int64)
        distance = np.sqrt(flat[:, :, None] ** 2 + rise**2)
        air |= (distance <= ranges[row, column[:, :, None]]) & (distance < sight.reach)
    result: Array = ndimage.binary_dilation(air, np.ones((3, 3, 3), dtype=bool))
    return result


def _lies_in_grid(other: SensorPose, pose: SensorPose, grid: VoxelGrid) -> bool:
    local = to_local(pose, np.array(other.x), np.array(other.y))
    return all(start <= float(value) < start + side for value, start, side in zip(local, grid.origin, grid.extent))
