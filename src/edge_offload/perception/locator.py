"""Where what was detected in an image is in space: by a depth image, by points of a LiDAR, or by the ground plane.

The distance of a surface is estimated from samples inside a region of the detection's box, as in the frustums of
Frustum PointNets (Qi et al., CVPR 2018). In place of their network stands the criterion of DBSCAN (Ester et al., KDD
1996) in one dimension: the nearest interval of depth that holds enough of the samples is the object, whatever is behind
it or, in few samples, before it. One step of mean shift (Comaniciu and Meer, PAMI 2002) centres the interval.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.perception.geometry import PinholeCamera, Position, Transform

DEPTH, LIDAR, GROUND = "depth", "lidar", "ground"
SOURCES = (DEPTH, LIDAR, GROUND)
"""What a position may come from, the most trusted first."""

_TORSO = (5, 6, 11, 12)  # shoulders, hips
_ANKLES = (15, 16)

_INNER, _TORSO_SHARE, _BOX_SHARE = 0.5, 0.5, 0.4
"""Side of a box's middle, of its whole; share of the samples that a surface has to have, in a torso and in a box."""

_THINNEST_M, _DEEPEST_M = 0.3, 2.0
"""Bounds on how far the visible surface of one object extends in depth."""

_LEAST_DEPTHS, _LEAST_POINTS = 5, 3
"""Samples below which nothing is concluded: pixels with a depth, points of a cloud."""

_ERRORS = {DEPTH: (0.01, 0.0025), LIDAR: (0.03, 0.0)}
"""Error of a depth (one sigma): m, and 1/m with the square of the depth."""

_SIDEWAYS = 0.15
"""Error of the middle of a region (one sigma), as a share of the width of what it is the middle of."""

_SPEED = 1.0
"""What an object may move at between a cloud and the image, m/s (one sigma)."""


class Region(NamedTuple):
    """A rectangle in the image that shows an object, px.

    ``share``: of its samples, the object's surface has at least. ``sideways``: error of its middle (one sigma), px.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    share: float
    sideways: float

    @property
    def middle(self) -> Tuple[float, float]:
        """Its middle, x y in px."""
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2


class Extent(NamedTuple):
    """The rectangle of a detection in space, facing the camera; how deep the object is, is not known.

    ``centre``: [3], m. ``rotation``: [3, 3], its axes as columns: along the width, along the height, away from the
    camera. ``width`` and ``height``: m.
    """

    centre: Array
    rotation: Array
    width: float
    height: float


class Surface(NamedTuple):
    """Depth of a surface along the optical axis and its error (one sigma), metres."""

    depth: float
    error: float


@dataclass(frozen=True, eq=False)
class Locator:
    """Finds positions of what was detected in one image.

    A depth image is trusted more than a LiDAR, and a LiDAR more than the ground plane. By the first two a position is
    the point of the visible surface in the middle of the detection, by the ground plane it is where the detection
    stands. The ground plane is wrong for what stands on something else.

    Attributes:
        camera: of the image.
        pose: maps the optical frame into a frame whose ground is z = 0; None: no ground plane is used.
        optical: name of the optical frame.
        world: name of the frame that ``pose`` maps into.
        depth: float32 [h, w], metres, aligned with the image pixel by pixel, NaN where unknown; None: no depth image.
        cloud: float [n, 3], points of a LiDAR in the optical frame at the time of the image, metres; None: no LiDAR.
        cloud_age_s: time between the cloud and the image.
        keypoint_score: keypoints below this are not relied on.
        depth_range: nearest and furthest believable depth of a depth image, metres.
        max_range: furthest point of a LiDAR or on the ground, metres.
        tilt_error: how well the camera's tilt is known, radians (one sigma).

    Raises:
        BadInput: depth image or cloud have another shape.
    """

    camera: PinholeCamera
    pose: Optional[Transform] = None
    optical: str = ""
    world: str = ""
    depth: Optional[Array] = None
    cloud: Optional[Array] = None
    cloud_age_s: float = 0.0
    keypoint_score: float = 0.3
    depth_range: Tuple[float, float] = (0.2, 20.0)
    max_range: float = 100.0
    tilt_error: float = 0.005

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth.shape != (self.camera.height, self.camera.width):
            raise BadInput(
                f"depth image is {self.depth.shape[1]}x{self.depth.shape[0]}, the camera {self.camera.width}x"
                f"{self.camera.height}",
                remedy="align depth to colour (registered depth)",
            )
        if self.cloud is not None and (self.cloud.ndim != 2 or self.cloud.shape[1] != 3):
            raise BadInput(f"cloud has shape {self.cloud.shape}, not [n, 3]")

    def locate(
        self,
        boxes: Union[Array, Sequence[Array]],
        keypoints: Optional[Sequence[Array]] = None,
        measured: Optional[Sequence[bool]] = None,
    ) -> List[Optional[Position]]:
        """Positions of detections in the optical frame, each by the most trusted source that has one; None: none has.

        Args:
            boxes: [n, 4], x1 y1 x2 y2, px.
            keypoints: [n, 17, 3] of people, x y in px and score; None: the detections are no people.
            measured: whether depth image and LiDAR show the detection itself; False where its box is a prediction.
        """
        boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        by_ground = self._by_ground(boxes, keypoints)
        found = []
        for index, box in enumerate(boxes):
            position = by_ground[index]
            if measured is None or measured[index]:
                parts = list(self._regions(box, None if keypoints is None else keypoints[index]))
                scale = min((box[2:] - box[:2]) / np.diag(self.camera.matrix)[:2])
                position = self._by_depth(parts[0], scale) or self._by_lidar(box, parts, scale) or position
            found.append(position)
        return found

    def placed(self, position: Position) -> Position:
        """A position of :meth:`locate` in the world where the pose is given, else in the optical frame, as it says."""
        if self.pose is None:
            return replace(position, frame=self.optical)
        return self.pose.position(position, self.world)

    def extent(self, box: Array, position: Position) -> Extent:
        """The box of a detection at its depth, in the frame of :meth:`placed`.

        Args:
            box: [4], px.
            position: of :meth:`locate`.
        """
        depth, (x1, y1, x2, y2) = float(position.xyz[2]), (float(value) for value in box)
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        pixels = np.array([(x, y), (x1, y), (x2, y), (x, y1), (x, y2)])
        centre, left, right, top, bottom = depth * self.camera.rays(pixels)
        sides = np.array([np.linalg.norm(right - left), np.linalg.norm(bottom - top)])
        if not np.isfinite([*centre, *sides]).all():
            # an edge of the box is beyond what the calibration covers
            centre, sides = position.xyz, np.array([x2 - x1, y2 - y1]) * depth / np.diag(self.camera.matrix)[:2]
        pose = self.pose or Transform(np.eye(3), np.zeros(3))
        return Extent(pose.points(centre), pose.rotation, float(sides[0]), float(sides[1]))

    def _regions(self, box: Array, keypoints: Optional[Array]) -> Iterator[Region]:
        """Parts of a detection, the one that shows the object most surely first."""
        x1, y1, x2, y2 = (float(value) for value in box)
        width, height = x2 - x1, y2 - y1
        if keypoints is not None:
            torso = torso_region(box, keypoints, self.keypoint_score)
            yield Region(*torso, _TORSO_SHARE, _SIDEWAYS * (torso[2] - torso[0]))
        across, down = (1 - _INNER) / 2 * width, (1 - _INNER) / 2 * height
        yield Region(x1 + across, y1 + down, x2 - across, y2 - down, _BOX_SHARE, _SIDEWAYS * width)

    def _by_depth(self, region: Region, scale: float) -> Optional[Position]:
        """From the depth image; None where too little of the surface is seen."""
        if self.depth is None:
            return None
        left, top = max(0, int(np.floor(region.x1))), max(0, int(np.floor(region.y1)))
        patch = self.depth[top : max(top, int(np.ceil(region.y2))), left : max(left, int(np.ceil(region.x2)))]
        step = max(1, int(np.sqrt(patch.size / 4096)))
        sampled = patch[::step, ::step]
        low, high = self.depth_range
        values = sampled[(sampled >= low) & (sampled <= high)]
        least = max(_LEAST_DEPTHS, math.ceil(0.1 * sampled.size))
        return self._on_surface(region, values, scale, least, DEPTH)

    def _by_lidar(self, box: Array, parts: Sequence[Region], scale: float) -> Optional[Position]:
        """From the points in the middle of the box; None where there are too few.

        What is nearer to its edges is often behind the object, all the more since a LiDAR looks from another place.
        """
        if self.cloud is None:
            return None
        points = self._points_in(box)
        pixels = self.camera.project(points)
        for region in parts:
            inside = ((pixels >= region[:2]) & (pixels <= region[2:4])).all(axis=1)
            position = self._on_surface(region, points[inside, 2], scale, _LEAST_POINTS, LIDAR)
            if position is not None:
                return position
        return None

    def _points_in(self, box: Array) -> Array:
        """Points [m, 3] of the cloud, float64, of which some are in a box and none far outside of it."""
        across, down, points = self._view
        x1, y1, x2, y2 = box
        edge = np.stack(np.meshgrid([x1, (x1 + x2) / 2, x2], [y1, (y1 + y2) / 2, y2]), axis=-1).reshape(-1, 2)
        rays = self.camera.rays(edge)[:, :2]
        low, high = rays.min(axis=0), rays.max(axis=0)
        if not np.isfinite(rays).all():
            # an edge of the box is beyond what the calibration covers
            low, high = np.full(2, -widest_view(self.camera)), np.full(2, widest_view(self.camera))
        low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
        columns = slice(*np.searchsorted(across, [low[0], high[0]]))
        near: Array = points[columns][(down[columns] >= low[1]) & (down[columns] <= high[1])]
        return near.astype(np.float64)

    @functools.cached_property
    def _view(self) -> Tuple[Array, Array, Array]:
        """Points within the camera's view, by x / z: x / z [m], y / z [m] and x y z [m, 3]."""
        assert self.cloud is not None
        ahead = self.cloud[(self.cloud[:, 2] > self.depth_range[0]) & (self.cloud[:, 2] < self.max_range)]
        across, down = ahead[:, 0] / ahead[:, 2], ahead[:, 1] / ahead[:, 2]
        # far outside of the view the polynomial of a lens folds back into the image
        viewed = np.flatnonzero(across * across + down * down <= widest_view(self.camera) ** 2)
        order = viewed[np.argsort(across[viewed])]
        return across[order], down[order], ahead[order]

    def _on_surface(self, region: Region, depths: Array, scale: float, least: int, source: str) -> Optional[Position]:
        """Where the ray through the middle of a region meets the nearest surface there.

        Args:
            region: it.
            depths: samples in it, metres.
            scale: breadth of the object, of its distance.
            least: number of samples below which nothing is concluded.
            source: of the depths.
        """
        if len(depths) < least:
            return None
        surface = nearest_surface(depths, region.share, scale, _ERRORS[source])
        ray = self.camera.rays(np.asarray([region.middle]))[0]
        if surface is None or not np.isfinite(ray).all():
            return None
        moved_m = _SPEED * self.cloud_age_s if source == LIDAR else 0.0
        sideways = region.sideways * surface.depth / self.camera.matrix[0, 0]
        covariance = surface.error**2 * np.outer(ray, ray) + np.diag([sideways**2, sideways**2, 0.0])
        return Position(ray * surface.depth, covariance + moved_m**2 * np.eye(3), source)

    def _by_ground(self, boxes: Array, keypoints: Optional[Sequence[Array]]) -> List[Optional[Position]]:
        """Where detections stand; None without a pose, with the foot out of the image, or above the horizon."""
        if self.pose is None or not len(boxes):
            return [None] * len(boxes)
        feet = np.stack([(boxes[:, 0] + boxes[:, 2]) / 2, boxes[:, 3]], axis=1)
        if keypoints is not None:
            ankles = np.asarray(keypoints, dtype=np.float64)[:, list(_ANKLES)]
            sure = (ankles[:, :, 2] >= self.keypoint_score).all(axis=1)
            feet[sure, 0] = ankles[sure, :, 0].mean(axis=1)
        # below the foot the ray always meets the ground, above it may not
        pixels = feet[:, None] + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        points = self.camera.ground_points(pixels.reshape(-1, 2), self.pose, self.max_range).reshape(-1, 3, 3)
        meets = np.isfinite(points).all(axis=(1, 2)) & (boxes[:, 3] < self.camera.height - 1)
        return [
            self._standing(points[index], float(box[3] - box[1])) if meets[index] else None
            for index, box in enumerate(boxes)
        ]

    def _standing(self, points: Array, height: float) -> Position:
        """The position of what is ``height`` px high; ``points``: of its foot, a pixel right and below (world)."""
        assert self.pose is not None
        point, right, below = points
        sideways = max(1.5, 0.03 * height)
        upright = float(np.hypot(max(1.5, 0.04 * height), self.tilt_error * self.camera.matrix[1, 1]))
        jacobian = np.stack([(right - point) * sideways, (below - point) * upright], axis=1)
        covariance = jacobian @ jacobian.T + np.diag([0.0, 0.0, 0.03**2])
        rotation = self.pose.rotation  # used the other way round: from the world back into the optical frame
        return Position(rotation.T @ (point - self.pose.translation), rotation.T @ covariance @ rotation, GROUND)


def nearest_surface(depths: Array, share: float, scale: float, errors: Tuple[float, float]) -> Optional[Surface]:
    """The nearest surface among samples of depth; None where none is dense enough.

    Args:
        depths: [n], metres.
        share: of the samples that it has to have.
        scale: how far one object may extend in depth, of its distance.
        errors: of a sample, as in the sensor's row of ``_ERRORS``.
    """
    ordered = np.sort(np.asarray(depths, dtype=np.float64))
    noise = errors[0] + errors[1] * ordered**2
    reach = np.clip(scale * ordered, _THINNEST_M, _DEEPEST_M) + 4 * noise
    after = np.searchsorted(ordered, ordered + reach, side="right")
    dense = np.flatnonzero(after - np.arange(len(ordered)) >= max(_LEAST_POINTS, share * len(ordered)))
    if not len(dense):
        return None
    first = dense[0]
    middle = np.median(ordered[first : after[first]])
    near = ordered[np.abs(ordered - middle) <= reach[first] / 2]
    depth = float(np.median(near))
    spread = 1.4826 * float(np.median(np.abs(near - depth)))
    return Surface(depth, float(np.hypot(spread, errors[0] + errors[1] * depth**2)))


@functools.lru_cache(maxsize=8)
def widest_view(camera: PinholeCamera) -> float:
    """Tangent of the widest angle to the optical axis at which a pixel of the image looks."""
    across, down = np.meshgrid(np.linspace(0, camera.width - 1, 17), np.linspace(0, camera.height - 1, 17))
    rays = camera.rays(np.stack([across.ravel(), down.ravel()], axis=1))
    return float(np.nanmax(np.hypot(rays[:, 0], rays[:, 1]), initial=0.0))


def torso_region(box: Array, keypoints: Array, min_score: float) -> Tuple[float, float, float, float]:
    """Rectangle x1 y1 x2 y2 well inside the torso: by shoulders and hips where seen, else by the box's proportions."""
    points = keypoints[list(_TORSO)]
    x1, y1, x2, y2 = (float(value) for value in box)
    if (points[:, 2] >= min_score).sum() >= 3:
        sure = points[points[:, 2] >= min_score]
        left, right = float(sure[:, 0].min()), float(sure[:, 0].max())
        top, bottom = float(sure[:, 1].min()), float(sure[:, 1].max())
        least = 0.1 * (x2 - x1)  # seen from the side, both shoulders fall on one line
        middle, half = (left + right) / 2, max((right - left) * 0.4, least)
        return middle - half, top + 0.1 * (bottom - top), middle + half, bottom - 0.1 * (bottom - top)
    width, height = x2 - x1, y2 - y1
    return x1 + 0.35 * width, y1 + 0.2 * height, x2 - 0.35 * width, y1 + 0.5 * height
