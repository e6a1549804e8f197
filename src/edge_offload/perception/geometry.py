"""Where people are in space: pinhole cameras, depth images and the ground plane.

Frames follow REP-103 and REP-105: an optical frame has x right, y down, z forward; a world frame has z up and the
ground at z = 0. Metres and pixels.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

import cv2
import numpy as np
import yaml

from edge_offload.arrays import Array
from edge_offload.errors import BadInput

MODELS: Mapping[str, Tuple[int, ...]] = {
    # one polynomial in OpenCV and image_geometry, however many of its coefficients are given
    "plumb_bob": (0, 4, 5, 8, 12, 14),
    "rational_polynomial": (0, 4, 5, 8, 12, 14),
    "equidistant": (4,),
    "fisheye": (4,),
}
"""Distortion model → how many coefficients it may have."""

_SYNONYMS = {"": "plumb_bob", "radtan": "plumb_bob", "brown_conrady": "plumb_bob", "kannala_brandt4": "equidistant"}
"""Names that drivers and calibration programs give to some of them."""

_TORSO = (5, 6, 11, 12)  # shoulders, hips
_ANKLES = (15, 16)


@dataclass(frozen=True, eq=False)
class Position:
    """A point in space and how sure it is.

    Attributes:
        xyz: float64 [3], metres.
        covariance: float64 [3, 3], square metres.
        source: ``depth`` (a point of the torso's surface) or ``ground`` (where the feet stand).
    """

    xyz: Array
    covariance: Array
    source: str

    @property
    def distance(self) -> float:
        """Metres from the origin of its frame."""
        return float(np.linalg.norm(self.xyz))


@dataclass(frozen=True, eq=False)
class Transform:
    """Maps points of one frame into another: ``rotation @ point + translation``.

    Raises:
        BadInput: not a rotation, or not finite.
    """

    rotation: Array
    translation: Array

    def __post_init__(self) -> None:
        rotation = np.asarray(self.rotation, dtype=np.float64)
        translation = np.asarray(self.translation, dtype=np.float64)
        if rotation.shape != (3, 3) or translation.shape != (3,) or not np.isfinite(translation).all():
            raise BadInput("transform: needs a 3x3 rotation and a finite translation of 3")
        if not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-6) or np.linalg.det(rotation) < 0:
            raise BadInput("transform: the matrix is not a rotation")
        object.__setattr__(self, "rotation", rotation)
        object.__setattr__(self, "translation", translation)

    @classmethod
    def from_quaternion(cls, xyz: Sequence[float], xyzw: Sequence[float]) -> Transform:
        """From a translation and a quaternion x y z w, as tf has them.

        Raises:
            BadInput: the quaternion is not of 4 finite numbers, or is zero.
        """
        q = np.asarray(xyzw, dtype=np.float64)
        norm = float(np.linalg.norm(q)) if q.shape == (4,) else 0.0
        if not (np.isfinite(norm) and norm > 1e-9):
            raise BadInput(f"transform: {list(xyzw)} is not a quaternion x y z w")
        x, y, z, w = q / norm
        rotation = np.array([
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ])  # fmt: skip
        return cls(rotation, np.asarray(xyz, dtype=np.float64))

    def points(self, points: Array) -> Array:
        """Map points [..., 3]."""
        return np.asarray(points @ self.rotation.T + self.translation)

    def position(self, position: Position) -> Position:
        """Map a position with its covariance."""
        covariance = self.rotation @ position.covariance @ self.rotation.T
        return Position(self.points(position.xyz), covariance, position.source)

    def inverse(self) -> Transform:
        """The way back."""
        return Transform(self.rotation.T, -self.rotation.T @ self.translation)


@dataclass(frozen=True, eq=False)
class PinholeCamera:
    """Intrinsics as in sensor_msgs/CameraInfo.

    Attributes:
        width, height: of the image, px.
        matrix: K, float64 [3, 3].
        distortion: D, float64 [k].
        model: distortion model, one of :data:`MODELS`.
        rectification: R, maps the frame of the lens into the optical frame; None: they are one.
        name: of the camera.
        pose: maps the optical frame into :attr:`pose_frame`, when the calibration says so.

    Raises:
        BadInput: sizes, focal lengths or coefficients that make no sense.
    """

    width: int
    height: int
    matrix: Array
    distortion: Array = field(default_factory=lambda: np.zeros(0))
    model: str = "plumb_bob"
    rectification: Optional[Array] = None
    name: str = "camera"
    pose: Optional[Transform] = None
    pose_frame: str = ""

    def __post_init__(self) -> None:
        matrix = np.asarray(self.matrix, dtype=np.float64)
        distortion = np.asarray(self.distortion, dtype=np.float64).ravel()
        if self.width < 1 or self.height < 1:
            raise BadInput(f"camera {self.name}: image is {self.width}x{self.height}")
        if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or matrix[0, 0] <= 0 or matrix[1, 1] <= 0:
            raise BadInput(
                f"camera {self.name}: K is no camera matrix", remedy="calibrate it: focal lengths must be positive"
            )
        model = self.model.strip().lower().replace(" ", "_").replace("-", "_")
        model = "plumb_bob" if model == "none" and not distortion.any() else _SYNONYMS.get(model, model)
        if model not in MODELS:
            raise BadInput(
                f"camera {self.name}: unknown distortion model {self.model!r}", remedy=f"use one of {', '.join(MODELS)}"
            )
        longest = max(MODELS[model])
        if not distortion[longest:].any():
            # some drivers have room for five coefficients, whatever the model
            distortion = distortion[:longest]
        if len(distortion) not in MODELS[model] or not np.isfinite(distortion).all():
            raise BadInput(f"camera {self.name}: {len(distortion)} coefficients do not fit model {self.model}")
        rectification = None
        if self.rectification is not None and np.any(self.rectification):  # 0 where nobody calibrated
            left, _, right = np.linalg.svd(np.nan_to_num(self.rectification))
            rectification = left @ right  # files have it rounded
            if not np.allclose(rectification, self.rectification, atol=1e-3) or np.linalg.det(rectification) < 0:
                raise BadInput(f"camera {self.name}: R is no rotation", remedy="calibrate it again")
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "distortion", distortion)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "rectification", rectification)

    def rays(self, pixels: Array) -> Array:
        """Undistort pixels [n, 2]: directions [n, 3] in the optical frame, with z = 1; NaN where that fails."""
        points = np.asarray(pixels, dtype=np.float64).reshape(-1, 1, 2)
        if self.model in ("equidistant", "fisheye"):
            normal = cv2.fisheye.undistortPoints(points, self.matrix, self.distortion)
        else:
            stop = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 50, 1e-9)
            # OpenCV 5 has one function; that of OpenCV 4 under this name takes no criteria
            undistort: Any = getattr(cv2, "undistortPointsIter", cv2.undistortPoints)
            normal = undistort(points, self.matrix, self.distortion, R=np.eye(3), P=np.eye(3), criteria=stop)
        rays = np.concatenate([normal.reshape(-1, 2), np.ones((len(points), 1))], axis=1)
        if self.rectification is not None:
            rays = rays @ self.rectification.T
            rays /= np.where(rays[:, 2:] > 0, rays[:, 2:], np.nan)
        # outside the range of the lens polynomial the iteration ends anywhere: keep only what projects back
        error = np.linalg.norm(self.project(rays) - points.reshape(-1, 2), axis=1)
        rays[~(error < 0.5)] = np.nan
        return np.asarray(rays)

    def project(self, points: Array) -> Array:
        """Pixels [n, 2] of points [n, 3] in the optical frame; NaN for points that are not in front of the camera."""
        points = np.asarray(points, dtype=np.float64).reshape(-1, 3)
        if self.rectification is not None:
            points = points @ self.rectification
        front = points[:, 2] > 1e-9
        pixels = np.full((len(points), 2), np.nan)
        if front.any():
            zero = np.zeros(3)
            seen = points[front].reshape(-1, 1, 3)
            if self.model in ("equidistant", "fisheye"):
                projected, _ = cv2.fisheye.projectPoints(seen, zero, zero, self.matrix, self.distortion)
            else:
                projected, _ = cv2.projectPoints(seen, zero, zero, self.matrix, self.distortion)
            pixels[front] = projected.reshape(-1, 2)
        return pixels

    def on_ground(
        self, pixel: Union[Array, Sequence[float]], pose: Transform, max_range: float = 100.0
    ) -> Optional[Array]:
        """Where the ray through ``pixel`` meets the ground z = 0 of the frame that ``pose`` maps into, [3].

        None when it does not: at or above the horizon, behind the camera, or further than ``max_range`` metres.
        """
        point = self.ground_points(np.asarray([pixel]), pose, max_range)[0]
        return point if np.isfinite(point).all() else None

    def ground_points(self, pixels: Array, pose: Transform, max_range: float = 100.0) -> Array:
        """Like :meth:`on_ground` for pixels [n, 2]: points [n, 3], NaN where there is none."""
        directions = self.rays(pixels) @ pose.rotation.T
        height = pose.translation[2]
        down = np.where(directions[:, 2] < -1e-6, -directions[:, 2], np.nan)
        reach = directions * (height / down)[:, None]
        reach[~(np.linalg.norm(reach, axis=1) <= max_range) | (height <= 0)] = np.nan
        return np.asarray(pose.translation + reach)


def camera_from_calibration(document: Mapping[str, Any], where: str = "calibration") -> PinholeCamera:
    """A camera from a parsed YAML of ROS's camera_calibration; an extra key ``pose`` is described in config/.

    Raises:
        BadInput: a key is missing or does not fit; the message names it.
    """
    try:
        pose = document.get("pose")
        rows = document["camera_matrix"]["data"]
        rectification = document.get("rectification_matrix")
        if rectification is not None:
            rectification = np.asarray(rectification["data"], dtype=np.float64).reshape(3, 3)
        return PinholeCamera(
            width=int(document["image_width"]),
            height=int(document["image_height"]),
            matrix=np.asarray(rows, dtype=np.float64).reshape(3, 3),
            distortion=np.asarray(document.get("distortion_coefficients", {}).get("data", []), dtype=np.float64),
            model=str(document.get("distortion_model", "plumb_bob")),
            rectification=rectification,
            name=str(document.get("camera_name", "camera")),
            pose=None if pose is None else Transform.from_quaternion(pose["xyz"], pose["quaternion_xyzw"]),
            pose_frame="" if pose is None else str(pose["parent_frame"]),
        )
    except BadInput as error:
        raise BadInput(f"{where}: {error.cause}", remedy=error.remedy) from None
    except KeyError as error:
        raise BadInput(f"{where}: no key {error}", remedy="write it with ROS's camera_calibration") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{where}: {error}", remedy="write it with ROS's camera_calibration") from None


def load_camera(path: Union[str, pathlib.Path]) -> PinholeCamera:
    """Read a calibration YAML.

    Raises:
        BadInput: no such file, not YAML, or not a calibration.
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except OSError as error:
        raise BadInput(f"calibration {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"calibration {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise BadInput(f"calibration {path} holds no mapping", remedy="write it with ROS's camera_calibration")
    return camera_from_calibration(document, str(path))


def depth_in_metres(depth: Array, encoding: str) -> Array:
    """A depth image as float32 metres, NaN where there is none (REP-118: 16UC1 in millimetres, 32FC1 in metres).

    Raises:
        BadInput: another encoding, or an array that does not fit it.
    """
    wanted = {"16UC1": np.uint16, "mono16": np.uint16, "32FC1": np.float32}.get(encoding)
    if wanted is None:
        raise BadInput(f"depth image: encoding {encoding!r}", remedy="publish 16UC1 (mm) or 32FC1 (m)")
    if depth.ndim != 2 or depth.dtype.newbyteorder("=") != wanted:
        raise BadInput(f"depth image: {depth.dtype} {depth.shape} is not {encoding}")
    metres = depth.astype(np.float32) * (np.float32(1e-3) if wanted is np.uint16 else np.float32(1.0))
    return np.where(np.isfinite(metres) & (metres > 0), metres, np.float32(np.nan))


@dataclass(frozen=True)
class Locator:
    """Finds the position of a person, in the camera's optical frame.

    Attributes:
        camera: of the image in which the person was seen.
        pose: maps the optical frame into a frame whose ground is z = 0; None: no ground plane is used.
        keypoint_score: keypoints below this are not relied on.
        depth_range: nearest and furthest believable depth, metres.
        max_range: furthest point on the ground, metres.
        tilt_error: how well the camera's tilt is known, radians (one sigma).
    """

    camera: PinholeCamera
    pose: Optional[Transform] = None
    keypoint_score: float = 0.3
    depth_range: Tuple[float, float] = (0.2, 20.0)
    max_range: float = 100.0
    tilt_error: float = 0.005

    def locate(
        self, box: Array, keypoints: Array, depth: Optional[Array] = None, encoding: str = "32FC1"
    ) -> Optional[Position]:
        """Position by depth where there is a usable depth image, else by the ground plane, else None.

        Args:
            box: [4], px.
            keypoints: [17, 3]: x y, px, and score.
            depth: an image aligned with the camera's, pixel by pixel.
            encoding: of the depth image, as ROS names it.

        Raises:
            BadInput: the depth image has another size or encoding.
        """
        if depth is not None:
            metres = depth_in_metres(depth, encoding)
            if metres.shape != (self.camera.height, self.camera.width):
                raise BadInput(
                    f"depth image is {depth.shape[1]}x{depth.shape[0]}, the camera {self.camera.width}x"
                    f"{self.camera.height}",
                    remedy="align depth to colour (registered depth)",
                )
            position = self.by_depth(box, keypoints, metres)
            if position is not None:
                return position
        return self.by_ground(box, keypoints)

    def by_depth(self, box: Array, keypoints: Array, metres: Array) -> Optional[Position]:
        """Median depth of the torso, from a depth image in metres; None where too little of it is seen."""
        x1, y1, x2, y2 = torso_region(box, keypoints, self.keypoint_score)
        left, top = max(0, int(np.floor(x1))), max(0, int(np.floor(y1)))
        patch = metres[top : max(top, int(np.ceil(y2))), left : max(left, int(np.ceil(x2)))]
        step = max(1, int(np.sqrt(patch.size / 4096)))
        sampled = patch[::step, ::step]
        low, high = self.depth_range
        values = sampled[(sampled >= low) & (sampled <= high)]
        if len(values) < max(5, 0.1 * sampled.size):
            return None
        depth = float(np.median(values))
        near = values[np.abs(values - depth) < 0.5]  # what is behind or before the person is another surface
        depth = float(np.median(near))
        spread = 1.4826 * float(np.median(np.abs(near - depth)))
        sigma = float(np.hypot(spread, 0.01 + 0.0025 * depth * depth))
        centre = ((x1 + x2) / 2, (y1 + y2) / 2)
        ray = self.camera.rays(np.asarray([centre]))[0]
        if not np.isfinite(ray).all():
            return None
        wide = 0.15 * (x2 - x1) * depth / self.camera.matrix[0, 0]
        covariance = sigma**2 * np.outer(ray, ray) + np.diag([wide**2, wide**2, 0.0])
        return Position(ray * depth, covariance, "depth")

    def by_ground(self, box: Array, keypoints: Array) -> Optional[Position]:
        """Where the feet stand; None without a pose, with the feet out of the image, or above the horizon."""
        if self.pose is None or box[3] >= self.camera.height - 1:
            return None
        ankles = keypoints[list(_ANKLES)]
        sure = (ankles[:, 2] >= self.keypoint_score).all()
        foot = np.array([ankles[:, 0].mean() if sure else (box[0] + box[2]) / 2, box[3]], dtype=np.float64)
        # below the foot the ray always meets the ground, above it may not
        pixels = foot + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        point, right, below = self.camera.ground_points(pixels, self.pose, self.max_range)
        if not np.isfinite([point, right, below]).all():
            return None
        height = float(box[3] - box[1])
        sideways = max(1.5, 0.03 * height)
        upright = float(np.hypot(max(1.5, 0.04 * height), self.tilt_error * self.camera.matrix[1, 1]))
        jacobian = np.stack([(right - point) * sideways, (below - point) * upright], axis=1)
        covariance = jacobian @ jacobian.T + np.diag([0.0, 0.0, 0.03**2])
        rotation = self.pose.rotation  # used the other way round: from the world back into the optical frame
        return Position(rotation.T @ (point - self.pose.translation), rotation.T @ covariance @ rotation, "ground")


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
