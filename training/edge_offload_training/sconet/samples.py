"""Pairs for training and evaluation, by number: a sweep's occupancy, and the complete labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import IGNORED
from edge_offload.models.scenes.lidar import HDL64, Lidar, SensorPose, simulate_sweep
from edge_offload.models.scenes.world import Street, World, make_room
from edge_offload.models.voxels import VoxelGrid, grid_around
from edge_offload_training.sconet import truth, visibility

ROOM_SHARE = 0.3


@dataclass(frozen=True, eq=False)
class Pair:
    """One sweep and its scene.

    Attributes:
        occupancy: uint8 [x, y, z], 0 or 1: voxels that the sweep hit.
        labels: uint8 [x, y, z]: label values, ``IGNORED`` where unknowable: inside houses, behind the walls of a room,
            and where no sensor on the robot's path could see.
        points: float32 [n, 4], the sweep.
        grid: the voxel grid.
    """

    occupancy: Array
    labels: Array
    points: Array
    grid: VoxelGrid


def make_pair(seed: int, validation: bool = False) -> Pair:
    """Make the pair of this number: a street or (three in ten) a room, with a random sensor.

    ``validation`` worlds have kinds and sizes of objects that occur in no other. Equal arguments give equal pairs.
    """
    random = np.random.default_rng((seed, 6, int(validation)))
    world, pose, lidar = _draw_situation(seed, validation, random)
    grid = grid_around(lidar.height, forward=bool(random.random() < 0.5))
    return make_scene_pair(world, pose, lidar, grid, seed)


def make_scene_pair(world: World, pose: SensorPose, lidar: Lidar, grid: VoxelGrid, seed: int) -> Pair:
    """Make one sweep from ``pose``, with noise from ``seed``, and the complete labels around it."""
    points, hits = simulate_sweep(world, pose, lidar, seed)
    occupancy = grid.occupancy(points)
    labels = truth.true_labels(world, pose, lidar, grid)
    voxels, inside = grid.voxel_indices(points)
    place = tuple(voxels.T)
    # hit voxels are full, even where noise moved the hit into the next one
    empty = labels[place] == 0
    labels[tuple(axis[empty] for axis in place)] = hits[inside][empty]
    # behind the walls of a room there are stray hits only
    occupancy[(labels == IGNORED)] = 0
    drive = visibility.along_the_street(pose, grid) if np.isinf(world.bounds).any() else None
    poses = visibility.across_a_room(world, pose) if drive is None else drive
    labels[~visibility.visible_voxels(world, poses, pose, lidar, grid) & (occupancy == 0)] = IGNORED
    return Pair(occupancy, labels, points, grid)


def _draw_situation(seed: int, validation: bool, random: np.random.Generator) -> Tuple[World, SensorPose, Lidar]:
    # worlds for training and held-out ones have no seed in common
    number = 2 * seed + int(validation)
    if random.random() < 0.3:
        yaw = float(random.uniform(-np.pi, np.pi))
        pose = SensorPose(float(random.uniform(-0.3, 0.3)), float(random.uniform(-0.3, 0.3)), yaw)
        return make_room(number, validation), pose, _robot_lidar(random)
    street = Street(number, validation)
    yaw = float(random.normal(0.0, 0.1)) if random.random() < 0.6 else float(random.uniform(-np.pi, np.pi))
    on_pavement = random.random() < 0.25
    across = street.road + 0.5 * street.pavement if on_pavement else random.uniform(-0.6, 0.6) * street.road
    pose = SensorPose(float(random.uniform(-500, 500)), float(across), yaw)
    lidar = _robot_lidar(random) if random.random() < 0.4 else _car_lidar(random)
    return street.world_around(pose.x), pose, lidar


def _car_lidar(random: np.random.Generator) -> Lidar:
    return Lidar(
        columns=int(random.integers(1500, 2100)),
        height=float(random.uniform(1.65, 1.85)),
        low=HDL64.low + float(random.normal(0, 0.005)),
        noise=float(random.uniform(0.01, 0.03)),
        dropout=float(random.uniform(0.0, 0.12)),
    )


def _robot_lidar(random: np.random.Generator) -> Lidar:
    half = float(random.uniform(0.26, 0.45))
    return Lidar(
        rings=int(random.choice((16, 32, 64))),
        low=-half,
        high=half * float(random.uniform(0.4, 1.0)),
        columns=int(random.integers(900, 1900)),
        height=float(random.uniform(0.4, 1.3)),
        reach=60.0,
        noise=float(random.uniform(0.01, 0.03)),
        dropout=float(random.uniform(0.0, 0.12)),
    )
