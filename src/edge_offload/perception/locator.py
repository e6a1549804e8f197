"""Positions in space of detections in an image: from a depth image, points of a LiDAR, or the ground plane.

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
"""Sources of positions, the most trusted first."""

_TORSO = (5, 6, 11, 12)  # shoulders, hips
_ANKLES = (15, 16)

_EXTENT_RANGE_M = (0.3, 2.0)
"""Bounds on the extent in depth of one object's visible surface, metres."""

_LEAST_POINTS = 3
"""Least points of a cloud on a surface."""

_ERRORS = {DEPTH: (0.01, 0.0025), LIDAR: (0.03, 0.0)}
"""Error of a depth (one sigma) by source: a constant in m, and a factor of the squared depth in 1/m."""


class ImageRegion(NamedTuple):
    """A rectangle in the image that shows an object, px.

    ``share``: least share of its samples on the object's surface. ``sideways``: error of its middle (one sigma), px.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    share: float
    sideways: float

    @property
    def middle(self) -> Tuple[float, float]:
        """Middle of the rectangle, x y in px."""
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2


class Extent(NamedTuple):
    """The rectangle of a detection in space, facing the camera; the object's depth is unknown.

    ``centre``: [3], m. ``rotation``: [3, 3], its axes as columns: along the width, along the height, away from the
    camera. ``width`` and ``height``: m.
    """

    centre: Array
    rotation: Array
    width: float
    height: float


class DepthSurface(NamedTuple):
    """Depth of a surface along the optical axis and its error (one sigma), metres."""

    depth: float
    error: float


@dataclass(frozen=True, eq=False)
class Locator:
    """Locates the detections of one image.

    A depth image is preferred to a LiDAR, and a LiDAR to the ground plane. The first two give the point of the visible
    surface in the middle of the detection. The ground plane gives the detection's foot, which is wrong for objects
    that stand on others.

    Attributes:
        camera: of the image.
        pose: maps the optical frame into a frame whose ground is z = 0; None: no ground plane is used.
        optical: name of the optical frame.
        world: name of the frame that ``pose`` maps into.
        depth: float32 [h, w], metres, aligned with the image pixel by pixel, NaN: unknown; None: no depth image.
        cloud: float [n, 3], points of a LiDAR in the optical frame at the time of the image, metres; None: no LiDAR.
        cloud_age_s: seconds between the cloud and the image.
        keypoint_score: keypoints below this are ignored.
        depth_range: nearest and furthest valid depth of a depth image, metres; the first also bounds the cloud.
        max_range: furthest point of a LiDAR or on the ground, metres.
        tilt_error: error of the camera's tilt, radians (one sigma).

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
        """Locate detections in the optical frame, each by the most trusted source that covers it; None: no source.

        Args:
            boxes: [n, 4], x1 y1 x2 y2, px.
            keypoints: [n, 17, 3] of people, x y in px and score; None: the detections are no people.
            measured: [n], false where a box is a prediction: depth image and LiDAR may then show something else.
        """
        boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        by_ground = self._by_ground(boxes, keypoints)
        positions = []
        for index, box in enumerate(boxes):
            position = by_ground[index]
            if measured is None or measured[index]:
                parts = list(self._object_regions(box, None if keypoints is None else keypoints[index]))
                scale = min((box[2:] - box[:2]) / np.diag(self.camera.matrix)[:2])
                position = self._by_depth(parts[0], scale) or self._by_lidar(box, parts, scale) or position
            positions.append(position)
        return positions

    def to_world(self, position: Position) -> Position:
        """Map a position of :meth:`locate` to the world; without a pose it stays in the optical frame."""
        if self.pose is None:
            return replace(position, frame=self.optical)
        return self.pose.map_position(position, self.world)

    def box_extent(self, box: Array, position: Position) -> Extent:
        """Return the box of a detection at its depth, in the frame of :meth:`to_world`.

        Args:
            box: [4], px.
            position: of :meth:`locate`.
        """
        depth, (x1, y1, x2, y2) = float(position.xyz[2]), (float(value) for value in box)
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        pixels = np.array([(x, y), (x1, y), (x2, y), (x, y1), (x, y2)])
        centre, left_edge, right_edge, top, bottom = depth * self.camera.pixel_rays(pixels)
        sides = np.array([np.linalg.norm(right_edge - left_edge), np.linalg.norm(bottom - top)])
        if not np.isfinite([*centre, *sides]).all():
            # an edge of the box is beyond what the calibration covers
            centre, sides = position.xyz, np.array([x2 - x1, y2 - y1]) * depth / np.diag(self.camera.matrix)[:2]
        pose = self.pose or Transform(np.eye(3), np.zeros(3))
        return Extent(pose.map_points(centre), pose.rotation, float(sides[0]), float(sides[1]))

    def _object_regions(self, box: Array, keypoints: Optional[Array]) -> Iterator[ImageRegion]:
        """Yield parts of a detection: the torso of a person, then the middle half of the box."""
        x1, y1, x2, y2 = (float(value) for value in box)
        width, height = x2 - x1, y2 - y1
        sideways = 0.15  # error of the middle of a region (one sigma), as a share of its width
        if keypoints is not None:
            torso = torso_region(box, keypoints, self.keypoint_score)
            yield ImageRegion(*torso, 0.5, sideways * (torso[2] - torso[0]))
        across, down = width / 4, height / 4
        yield ImageRegion(x1 + across, y1 + down, x2 - across, y2 - down, 0.4, sideways * width)

    def _by_depth(self, region: ImageRegion, scale: float) -> Optional[Position]:
        """Locate by the depth image; None: too few samples of a surface."""
        if self.depth is None:
            return None
        column, row = max(0, int(np.floor(region.x1))), max(0, int(np.floor(region.y1)))
        patch = self.depth[row : max(row, int(np.ceil(region.y2))), column : max(column, int(np.ceil(region.x2)))]
        step = max(1, int(np.sqrt(patch.size / 4096)))
        sampled = patch[::step, ::step]
        low, high = self.depth_range
        values = sampled[(sampled >= low) & (sampled <= high)]
        least = max(5, math.ceil(0.1 * sampled.size))
        return self._on_surface(region, values, scale, least, DEPTH)

    def _by_lidar(self, box: Array, parts: Sequence[ImageRegion], scale: float) -> Optional[Position]:
        """Locate by the points in the middle of the box; None: too few.

        Points near its edges are often behind the object, because the LiDAR has another viewpoint.
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
        """Return the points of the cloud in or near a box, float64 [k, 3], metres."""
        across, down, points = self._points_in_view
        x1, y1, x2, y2 = box
        edge = np.stack(np.meshgrid([x1, (x1 + x2) / 2, x2], [y1, (y1 + y2) / 2, y2]), axis=-1).reshape(-1, 2)
        rays = self.camera.pixel_rays(edge)[:, :2]
        low, high = rays.min(axis=0), rays.max(axis=0)
        if not np.isfinite(rays).all():
            # an edge of the box is beyond what the calibration covers
            low, high = np.full(2, -widest_view(self.camera)), np.full(2, widest_view(self.camera))
        low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
        columns = slice(*np.searchsorted(across, [low[0], high[0]]))
        near: Array = points[columns][(down[columns] >= low[1]) & (down[columns] <= high[1])]
        return near.astype(np.float64)

    @functools.cached_property
    def _points_in_view(self) -> Tuple[Array, Array, Array]:
        """Points within the camera's view, sorted by x / z: arrays x / z [k], y / z [k] and x y z [k, 3] in metres."""
        assert self.cloud is not None
        ahead = self.cloud[(self.cloud[:, 2] > self.depth_range[0]) & (self.cloud[:, 2] < self.max_range)]
        across, down = ahead[:, 0] / ahead[:, 2], ahead[:, 1] / ahead[:, 2]
        # far outside of the view the polynomial of a lens folds back into the image
        viewed = np.flatnonzero(across * across + down * down <= widest_view(self.camera) ** 2)
        order = viewed[np.argsort(across[viewed])]
        return across[order], down[order], ahead[order]

    def _on_surface(
        self, region: ImageRegion, depths: Array, scale: float, least: int, source: str
    ) -> Optional[Position]:
        """Intersect the ray through the middle of a region with the nearest surface there.

        Args:
            region: part of a detection.
            depths: samples in it, metres.
            scale: width of the object as a share of its distance.
            least: least number of samples.
            source: of the depths.
        """
        if len(depths) < least:
            return None
        surface = nearest_surface(depths, region.share, scale, _ERRORS[source])
        ray = self.camera.pixel_rays(np.asarray([region.middle]))[0]
        if surface is None or not np.isfinite(ray).all():
            return None
        moved_m = 1.0 * self.cloud_age_s if source == LIDAR else 0.0  # objects move at up to 1 m/s (one sigma)
        sideways = region.sideways * surface.depth / self.camera.matrix[0, 0]
        covariance = surface.error**2 * np.outer(ray, ray) + np.diag([sideways**2, sideways**2, 0.0])
        return Position(ray * surface.depth, covariance + moved_m**2 * np.eye(3), source)

    def _by_ground(self, boxes: Array, keypoints: Optional[Sequence[Array]]) -> List[Optional[Position]]:
        """Locate feet on the ground; None: without a pose, with the foot outside the image, or above the horizon."""
        if self.pose is None or not len(boxes):
            return [None] * len(boxes)
        feet = np.stack([(boxes[:, 0] + boxes[:, 2]) / 2, boxes[:, 3]], axis=1)
        if keypoints is not None:
            ankles = np.asarray(keypoints, dtype=np.float64)[:, list(_ANKLES)]
            sure = (ankles[:, :, 2] >= self.keypoint_score).all(axis=1)
            feet[sure, 0] = ankles[sure, :, 0].mean(axis=1)
        # a ray below the foot always meets the ground, one above it may not
        pixels = feet[:, None] + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        points = self.camera.ground_points(pixels.reshape(-1, 2), self.pose, self.max_range).reshape(-1, 3, 3)
        meets = np.isfinite(points).all(axis=(1, 2)) & (boxes[:, 3] < self.camera.height - 1)
        return [
            self._ground_position(points[index], float(box[3] - box[1])) if meets[index] else None
            for index, box in enumerate(boxes)
        ]

    def _ground_position(self, points: Array, height: float) -> Position:
        """Position of an object ``height`` px high; ``points``: ground at its foot, a pixel right and below (world)."""
        assert self.pose is not None
        point, right, below = points
        sideways = max(1.5, 0.03 * height)
        upright = float(np.hypot(max(1.5, 0.04 * height), self.tilt_error * self.camera.matrix[1, 1]))
        jacobian = np.stack([(right - point) * sideways, (below - point) * upright], axis=1)
        covariance = jacobian @ jacobian.T + np.diag([0.0, 0.0, 0.03**2])
        rotation = self.pose.rotation  # inverted: from the world into the optical frame
        return Position(rotation.T @ (point - self.pose.translation), rotation.T @ covariance @ rotation, GROUND)


def nearest_surface(depths: Array, share: float, scale: float, errors: Tuple[float, float]) -> Optional[DepthSurface]:
    """Find the nearest surface among samples of depth; None: none is dense enough.

    Args:
        depths: [n], metres.
        share: least share of the samples that lie on the surface.
        scale: largest extent in depth of one object, as a share of its distance.
        errors: of a sample (one sigma): a constant in m, and a factor of the squared depth in 1/m.
    """
    ordered = np.sort(np.asarray(depths, dtype=np.float64))
    noise = errors[0] + errors[1] * ordered**2
    reach = np.clip(scale * ordered, *_EXTENT_RANGE_M) + 4 * noise
    after = np.searchsorted(ordered, ordered + reach, side="right")
    dense = np.flatnonzero(after - np.arange(len(ordered)) >= max(_LEAST_POINTS, share * len(ordered)))
    if not len(dense):
        return None
    first = dense[0]
    middle = np.median(ordered[first : after[first]])
    near = ordered[np.abs(ordered - middle) <= reach[first] / 2]
    depth = float(np.median(near))
    spread = 1.4826 * float(np.median(np.abs(near - depth)))
    return DepthSurface(depth, float(np.hypot(spread, errors[0] + errors[1] * depth**2)))


@functools.lru_cache(maxsize=8)
def widest_view(camera: PinholeCamera) -> float:
    """Return the tangent of the largest angle between the optical axis and a pixel's ray."""
    across, down = np.meshgrid(np.linspace(0, camera.width - 1, 17), np.linspace(0, camera.height - 1, 17))
    rays = camera.pixel_rays(np.stack([across.ravel(), down.ravel()], axis=1))
    return float(np.nanmax(np.hypot(rays[:, 0], rays[:, 1]), initial=0.0))


def torso_region(box: Array, keypoints: Array, min_score: float) -> Tuple[float, float, float, float]:
    """Return a rectangle x1 y1 x2 y2, px, inside the torso: by shoulders and hips, else by the box's proportions."""
    points = keypoints[list(_TORSO)]
    x1, y1, x2, y2 = (float(value) for value in box)
    if (points[:, 2] >= min_score).sum() >= 3:
        sure = points[points[:, 2] >= min_score]
        x_min, x_max = float(sure[:, 0].min()), float(sure[:, 0].max())
        y_min, y_max = float(sure[:, 1].min()), float(sure[:, 1].max())
        least = 0.1 * (x2 - x1)  # seen from the side, both shoulders fall on one line
        middle, half = (x_min + x_max) / 2, max((x_max - x_min) * 0.4, least)
        return middle - half, y_min + 0.1 * (y_max - y_min), middle + half, y_max - 0.1 * (y_max - y_min)
    width, height = x2 - x1, y2 - y1
    return x1 + 0.35 * width, y1 + 0.2 * height, x2 - 0.35 * width, y1 + 0.5 * height
