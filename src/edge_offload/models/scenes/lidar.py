"""A spinning LiDAR in a world: ray casting with range noise, dropouts and occlusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.scenes.solids import Solid
from edge_offload.models.scenes.world import World


@dataclass(frozen=True)
class Lidar:
    """Rays and errors of a sensor.

    Attributes:
        rings: number of elevations.
        low, high: rad, elevation of the lowest and highest.
        columns: rays per turn.
        height: m above the ground.
        reach: m.
        noise: m, standard deviation of the range.
        dropout: share of the returns that are lost at distance 0; at ``reach`` it is ``dropout_far``.
    """

    rings: int = 64
    low: float = -0.43
    high: float = 0.035
    columns: int = 1800
    height: float = 1.73
    reach: float = 80.0
    noise: float = 0.02
    dropout: float = 0.03
    dropout_far: float = 0.5

    def elevations(self) -> Array:
        """rad, of the rings, lowest first."""
        return np.linspace(self.low, self.high, self.rings)


HDL64 = Lidar()
VLP16 = Lidar(16, -0.262, 0.262, 1800, 0.6, 60.0)


@dataclass(frozen=True)
class SensorPose:
    """Pose of an upright sensor: x, y (m) and yaw (rad) in the world, at ``time_s``."""

    x: float = 0.0
    y: float = 0.0
    yaw: float = 0.0
    time_s: float = 0.0


def local_solids(world: World, pose: SensorPose, height: float) -> List[Solid]:
    """Return the world's solids in the frame of a sensor ``height`` (m) above the ground."""
    down = -height - ground_height(world, pose)
    return [solid.seen_from(pose.x, pose.y, pose.yaw, pose.time_s).raised_by(down) for solid in world.solids]


def ground_height(world: World, pose: SensorPose) -> float:
    """Height in m of the ground under the sensor."""
    return float(world.ground.at(np.array(pose.x), np.array(pose.y))[0])


def to_world(pose: SensorPose, x: Array, y: Array) -> Tuple[Array, Array]:
    """Map positions (m) from the sensor's frame to the world."""
    cos, sin = np.cos(pose.yaw), np.sin(pose.yaw)
    return pose.x + cos * x - sin * y, pose.y + sin * x + cos * y


def to_local(pose: SensorPose, x: Array, y: Array) -> Tuple[Array, Array]:
    """Map positions (m) from the world to the sensor's frame."""
    cos, sin = np.cos(pose.yaw), np.sin(pose.yaw)
    east, north = x - pose.x, y - pose.y
    return cos * east + sin * north, cos * north - sin * east


def exact_ranges(world: World, pose: SensorPose, lidar: Lidar) -> Array:
    """Range of every ray without noise and dropouts, float32 [rings, columns] metres; inf: no hit."""
    return _cast_rays(world, pose, lidar, _ray_directions(lidar), np.random.default_rng(0))[0]


def simulate_sweep(world: World, pose: SensorPose, lidar: Lidar, seed: int) -> Tuple[Array, Array]:
    """Simulate one turn of the sensor.

    Returns:
        float32 [n, 4] x, y, z (m, frame of the sensor: x forward, y left, z up) and intensity (0 to 1, by kind of
        object), and uint8 [n], the label of the hit object.
    """
    random = np.random.default_rng((seed, 5))
    directions = _ray_directions(lidar)
    ranges, labels = _cast_rays(world, pose, lidar, directions, random)
    ranges += random.normal(0.0, lidar.noise, ranges.shape).astype(np.float32)
    lost = lidar.dropout + (lidar.dropout_far - lidar.dropout) * np.clip(ranges / lidar.reach, 0, 1) ** 2
    valid = np.isfinite(ranges) & (ranges < lidar.reach) & (ranges > 0.3) & (random.random(ranges.shape) > lost)
    points = np.empty((int(valid.sum()), 4), dtype=np.float32)
    points[:, :3] = directions[valid] * ranges[valid][:, None]
    points[:, 3] = 0.1 + 0.04 * labels[valid]
    return points, labels[valid]


def _ray_directions(lidar: Lidar) -> Array:
    """Unit vectors of the rays, float32 [rings, columns, 3]."""
    elevations = lidar.elevations()[:, None]
    azimuths = (np.arange(lidar.columns) * (2 * np.pi / lidar.columns) - np.pi)[None, :]
    parts = np.broadcast_arrays(
        np.cos(elevations) * np.cos(azimuths), np.cos(elevations) * np.sin(azimuths), np.sin(elevations)
    )
    directions: Array = np.stack(parts, axis=2).astype(np.float32)
    return directions


def _cast_rays(
    world: World, pose: SensorPose, lidar: Lidar, directions: Array, random: np.random.Generator
) -> Tuple[Array, Array]:
    """Range (inf: none) and label of the first hit of every ray."""
    ranges, labels = _ground_hits(world, pose, lidar, directions)
    for solid in local_solids(world, pose, lidar.height):
        _apply_solid(solid, directions, lidar, ranges, labels, random)
    return ranges, labels


def _ground_hits(world: World, pose: SensorPose, lidar: Lidar, directions: Array) -> Tuple[Array, Array]:
    """Range (inf: none) and label of every ray's hit of the ground, by fixed-point iteration from a flat one."""
    down = np.minimum(directions[..., 2], -1e-3)
    base = ground_height(world, pose)
    ranges = (-lidar.height / down).astype(np.float32)
    for _ in range(4):
        ranges = np.minimum(ranges, 2 * lidar.reach)
        x, y = to_world(pose, directions[..., 0] * ranges, directions[..., 1] * ranges)
        # without kerbs, which are too steep for the iteration
        ranges = np.maximum((world.ground.swell(x, y) - base - lidar.height) / down, 0.3).astype(np.float32)
    x, y = to_world(pose, directions[..., 0] * ranges, directions[..., 1] * ranges)
    height, labels = world.ground.at(x, y)
    ranges = np.maximum((height - base - lidar.height) / down, 0.3).astype(np.float32)
    ranges[(directions[..., 2] > -1e-3) | (ranges > 1.5 * lidar.reach)] = np.inf
    return ranges, labels


def _apply_solid(
    solid: Solid,
    directions: Array,
    lidar: Lidar,
    ranges: Array,
    labels: Array,
    random: np.random.Generator,
) -> None:
    """Update ranges and labels of the rays that hit ``solid`` first."""
    rows, columns = _ray_window(solid, lidar)
    if rows[0] >= rows[1]:
        return
    for start, stop in columns:
        window = (slice(*rows), slice(start, stop))
        entry = solid.entry_distance(directions[window])
        # where the ground is nearer, the solid lies below it
        closer = entry < ranges[window]
        if solid.porosity:
            closer &= random.random(entry.shape) > solid.porosity
            entry = entry + random.exponential(0.25 * min(solid.half), entry.shape)
        ranges[window] = np.where(closer, entry, ranges[window])
        labels[window] = np.where(closer, solid.label, labels[window])


def _ray_window(solid: Solid, lidar: Lidar) -> Tuple[Tuple[int, int], List[Tuple[int, int]]]:
    """Return rows and ranges of columns of the rays that may hit ``solid``; none beyond the sensor's reach."""
    distance = float(np.hypot(solid.centre[0], solid.centre[1]))
    radius = solid.radius
    if distance - radius > lidar.reach:
        return (0, 0), []
    if distance <= radius * 1.01:
        return (0, lidar.rings), [(0, lidar.columns)]
    near, far = distance - radius, distance + radius
    top, bottom = solid.centre[2] + solid.half[2], solid.centre[2] - solid.half[2]
    high = np.arctan2(top, near if top > 0 else far)
    low = np.arctan2(bottom, near if bottom < 0 else far)
    elevations = lidar.elevations()
    rows = (int(np.searchsorted(elevations, low)), int(np.searchsorted(elevations, high, side="right")))
    middle, half = float(np.arctan2(solid.centre[1], solid.centre[0])), float(np.arcsin(radius / distance))
    per_rad = lidar.columns / (2 * np.pi)
    start = int(np.floor((middle - half + np.pi) * per_rad))
    stop = int(np.ceil((middle + half + np.pi) * per_rad)) + 1
    if stop - start >= lidar.columns:
        return rows, [(0, lidar.columns)]
    pieces = [(start, stop), (start + lidar.columns, lidar.columns), (0, stop - lidar.columns)]
    return rows, [(max(a, 0), min(b, lidar.columns)) for a, b in pieces if max(a, 0) < min(b, lidar.columns)]
