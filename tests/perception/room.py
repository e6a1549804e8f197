"""A made-up room for tests of positions: what a camera and a LiDAR see of a cuboid before a wall, with the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

import numpy as np
from scipy.spatial.transform import Rotation

from edge_offload.perception.geometry import PinholeCamera, Transform

WIDTH, HEIGHT = 320, 240


@dataclass(frozen=True)
class Cuboid:
    """Stands at ``centre`` [3] in the world with sides ``size`` [3], turned by ``yaw`` about z."""

    centre: np.ndarray
    size: np.ndarray
    yaw: float = 0.0

    def local(self, points: np.ndarray) -> np.ndarray:
        """Points of the world in its own frame."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        return (points - self.centre) @ np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])

    def distance(self, point: np.ndarray) -> float:
        """Metres from a point of the world to the cuboid; 0 inside."""
        return float(np.linalg.norm(np.maximum(np.abs(self.local(point)) - self.size / 2, 0)))

    def corners(self) -> np.ndarray:
        """Its corners [8, 3] in the world."""
        signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
        return self.centre + (signs * self.size / 2) @ turn.T

    def ranges(self, origin: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Multiples of ``directions`` [n, 3] after which rays from ``origin`` meet it; infinity where they do not."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        start = self.local(origin)
        ways = directions @ np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
        with np.errstate(divide="ignore", invalid="ignore"):
            one, other = (-self.size / 2 - start) / ways, (self.size / 2 - start) / ways
        enters, leaves = np.minimum(one, other).max(axis=1), np.maximum(one, other).min(axis=1)
        return np.where((enters <= leaves) & (enters > 0), enters, np.inf)


def cast(solids: List[Cuboid], origin: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Multiples of ``directions`` after which rays meet the first solid, or the ground z = 0."""
    with np.errstate(divide="ignore"):
        ground = np.where(directions[:, 2] < 0, -origin[2] / directions[:, 2], np.inf)
    return np.minimum.reduce([ground, *(solid.ranges(origin, directions) for solid in solids)])


@dataclass(frozen=True)
class Room:
    """One object in view of a camera and a LiDAR on one robot, all at random, from a seed."""

    camera: PinholeCamera
    pose: Transform
    lidar: Transform  # maps its frame into the camera's
    target: Cuboid
    solids: List[Cuboid]
    box: np.ndarray
    random: np.random.Generator

    def depth(self) -> np.ndarray:
        """The depth image around the object, float32 [h, w] m, with noise and holes."""
        x0, top, right, bottom = np.clip(self.box + np.array([-9, -9, 9, 9]), 0, [WIDTH, HEIGHT] * 2).astype(int)
        across, down = np.meshgrid(np.arange(x0, right), np.arange(top, bottom))
        rays = self.camera.pixel_rays(np.stack([across.ravel(), down.ravel()], axis=1))
        depth = cast(self.solids, self.pose.translation, rays @ self.pose.rotation.T)
        depth += self.random.normal(0, 1, len(depth)) * (0.002 + 0.0015 * depth**2)
        depth[self.random.random(len(depth)) < 0.3] = np.nan
        image = np.full((HEIGHT, WIDTH), np.nan, np.float32)
        image[top:bottom, x0:right] = depth.reshape(across.shape)
        return image

    def sweep(self) -> np.ndarray:
        """Points [n, 3] in the LiDAR's own frame: 54 rings of 900 beams, with noise and beams lost."""
        turn, rise = np.meshgrid(np.linspace(-np.pi, np.pi, 900, False), np.linspace(-0.8, 0.4, 54))
        across = np.cos(rise)
        beams = np.stack([np.cos(turn) * across, np.sin(turn) * across, np.sin(rise)], axis=-1).reshape(-1, 3)
        rotation = self.pose.rotation @ self.lidar.rotation
        origin = self.pose.map_points(self.lidar.translation)
        ranges = cast(self.solids, origin, beams @ rotation.T) + self.random.normal(0, 0.02, len(beams))
        returned = np.isfinite(ranges) & (ranges < 60) & (self.random.random(len(beams)) > 0.1)
        return (beams[returned] * ranges[returned, None]).astype(np.float32)

    def cloud(self) -> np.ndarray:
        """The sweep in the camera's frame."""
        return self.lidar.map_points(self.sweep())


def looking(yaw: float, tilt: float, roll: float) -> np.ndarray:
    """Rotation of an optical frame that looks along x of the world turned by yaw, ``tilt`` below the horizon."""
    forward = Rotation.from_matrix([[0, 0, 1], [-1, 0, 0], [0, -1, 0]])  # optical axes in a frame x ahead, z up
    return (Rotation.from_euler("ZYX", [yaw, tilt, roll]) * forward).as_matrix()


def make_room(seed: int) -> Room:
    """A room in which the whole object is in view."""
    random = np.random.default_rng(seed)
    while True:
        yaw, tilt = random.uniform(-np.pi, np.pi), random.uniform(0.0, 0.4)
        eye = np.array([*random.uniform(-5, 5, 2), random.uniform(1.0, 2.2)])
        pose = Transform(looking(yaw, tilt, random.uniform(-0.03, 0.03)), eye)
        focal = random.uniform(200, 320)
        other = focal * random.uniform(0.95, 1.05)
        matrix = np.array([[focal, 0, random.uniform(140, 180)], [0, other, 120], [0, 0, 1]])
        distortion = [random.uniform(-0.2, 0.05), random.uniform(-0.02, 0.05), *random.uniform(-1e-3, 1e-3, 2), 0.0]
        camera = PinholeCamera(WIDTH, HEIGHT, matrix, np.array(distortion))
        distance, aside = random.uniform(2.5, 15.0), random.uniform(-0.35, 0.35)
        size = random.uniform([0.6, 0.6, 0.5], [1.2, 1.2, 1.8])
        way = yaw + aside
        foot = pose.translation[:2] + distance * np.array([np.cos(way), np.sin(way)])
        target = Cuboid(np.array([*foot, size[2] / 2]), size, random.uniform(-np.pi, np.pi))
        pixels = camera.project(pose.inverse().map_points(target.corners()))
        box = np.array([*pixels.min(axis=0), *pixels.max(axis=0)])
        inside = np.isfinite(box).all() and (box[:2] > 2).all() and (box[2:] < [WIDTH - 3, HEIGHT - 3]).all()
        if inside and min(box[2:] - box[:2]) > 20:
            break
    behind = foot + random.uniform(2.0, 5.0) * np.array([np.cos(way), np.sin(way)])
    wall = Cuboid(np.array([*behind, 1.5]), np.array([0.2, 30.0, 3.0]), way + random.uniform(-0.5, 0.5))
    solids = [target, wall]
    if random.random() < 0.5:
        # a thin post between the camera and the object
        place = pose.translation[:2] + 0.6 * distance * np.array([np.cos(way), np.sin(way)])
        solids.append(Cuboid(np.array([*place, 1.0]), np.array([0.03, 0.03, 2.0])))
    # any LiDAR on the robot: beside, above or below the camera, turned as it may be, tilted a little
    turned = Rotation.from_euler("ZYX", [random.uniform(-np.pi, np.pi), *random.normal(0, 0.05, 2)]).as_matrix()
    lidar = Transform(pose.rotation.T @ turned, random.uniform(-0.4, 0.4, 3))
    return Room(camera, pose, lidar, target, solids, box, random)


def on_target(room: Room, xyz_world: np.ndarray) -> Tuple[float, float]:
    """Metres from a position in the world to the object, and from the camera to the object's middle."""
    away = float(np.linalg.norm(room.target.centre - room.pose.translation))
    return room.target.distance(np.asarray(xyz_world)), away
