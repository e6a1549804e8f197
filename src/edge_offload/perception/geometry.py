"""Geometry of cameras: positions, transforms, lenses, the ground plane, depth images.

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
"""Distortion model → possible numbers of its coefficients."""

_SYNONYMS = {"": "plumb_bob", "radtan": "plumb_bob", "brown_conrady": "plumb_bob", "kannala_brandt4": "equidistant"}
"""Other names of these models in drivers and calibration programs."""


@dataclass(frozen=True, eq=False)
class Position:
    """A point in space and its uncertainty.

    Attributes:
        xyz: float64 [3], metres.
        covariance: float64 [3, 3], square metres.
        source: ``depth`` or ``lidar`` (a point of the visible surface), or ``ground`` (where it stands).
        frame: name of the frame; empty: that of the camera.
    """

    xyz: Array
    covariance: Array
    source: str
    frame: str = ""

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
        """Make it from a translation and a quaternion x y z w, as tf has them.

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

    def map_points(self, points: Array) -> Array:
        """Map points [..., 3]."""
        return np.asarray(points @ self.rotation.T + self.translation)

    def map_position(self, position: Position, frame: str = "") -> Position:
        """Map a position with its covariance; ``frame``: name of the frame that it is mapped into."""
        covariance = self.rotation @ position.covariance @ self.rotation.T
        return Position(self.map_points(position.xyz), covariance, position.source, frame)

    def compose_after(self, first: Transform) -> Transform:
        """Return the transform that applies ``first``, then this one."""
        return Transform(self.rotation @ first.rotation, self.map_points(first.translation))

    def inverse(self) -> Transform:
        """Return the inverse transform."""
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
            u, _, vt = np.linalg.svd(np.nan_to_num(self.rectification))
            rectification = u @ vt  # files have it rounded
            if not np.allclose(rectification, self.rectification, atol=1e-3) or np.linalg.det(rectification) < 0:
                raise BadInput(f"camera {self.name}: R is no rotation", remedy="calibrate it again")
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "distortion", distortion)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "rectification", rectification)

    def pixel_rays(self, pixels: Array) -> Array:
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

    def ground_points(self, pixels: Array, pose: Transform, max_range: float = 100.0) -> Array:
        """Intersect the rays through pixels [n, 2] with the ground z = 0 of the frame that ``pose`` maps into: [n, 3].

        NaN: at or above the horizon, behind the camera, or further than ``max_range`` metres.
        """
        directions = self.pixel_rays(pixels) @ pose.rotation.T
        height = pose.translation[2]
        down = np.where(directions[:, 2] < -1e-6, -directions[:, 2], np.nan)
        reach = directions * (height / down)[:, None]
        reach[~(np.linalg.norm(reach, axis=1) <= max_range) | (height <= 0)] = np.nan
        return np.asarray(pose.translation + reach)


def camera_from_calibration(document: Mapping[str, Any], where: str = "calibration") -> PinholeCamera:
    """Make a camera from a parsed YAML of ROS's camera_calibration; config/ describes the extra key ``pose``.

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
    """Convert a depth image to float32 metres, NaN: unknown (REP-118: 16UC1 in millimetres, 32FC1 in metres).

    Raises:
        BadInput: another encoding, or an array that does not fit it.
    """
    dtype = {"16UC1": np.uint16, "mono16": np.uint16, "32FC1": np.float32}.get(encoding)
    if dtype is None:
        raise BadInput(f"depth image: encoding {encoding!r}", remedy="publish 16UC1 (mm) or 32FC1 (m)")
    if depth.ndim != 2 or depth.dtype.newbyteorder("=") != dtype:
        raise BadInput(f"depth image: {depth.dtype} {depth.shape} is not {encoding}")
    metres = depth.astype(np.float32) * (np.float32(1e-3) if dtype is np.uint16 else np.float32(1.0))
    return np.where(np.isfinite(metres) & (metres > 0), metres, np.float32(np.nan))
