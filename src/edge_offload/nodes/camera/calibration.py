"""Converts camera calibrations to ``CameraInfo`` and back."""

from __future__ import annotations

import copy
import pathlib
import re
from typing import Any, Tuple

import numpy as np
import yaml
from sensor_msgs.msg import CameraInfo

from edge_offload.errors import BadInput
from edge_offload.perception.geometry import PinholeCamera, load_camera

_IDENTITY = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def load_calibration(path: str) -> CameraInfo:
    """``CameraInfo`` from a YAML file of ROS's camera_calibration; the header is left empty.

    Raises:
        BadInput: the file cannot be read, or something in it is missing or makes no sense.
    """
    camera = load_camera(pathlib.Path(path).expanduser().absolute())
    # what a PinholeCamera has no use for: P
    document = yaml.safe_load(pathlib.Path(path).expanduser().read_text(encoding="utf-8"))
    k = camera.matrix
    projection = [k[0, 0], 0.0, k[0, 2], 0.0, 0.0, k[1, 1], k[1, 2], 0.0, 0.0, 0.0, 1.0, 0.0]
    return CameraInfo(
        width=camera.width,
        height=camera.height,
        distortion_model=camera.model,
        D=camera.distortion.tolist(),
        K=camera.matrix.ravel().tolist(),
        R=_parse_matrix(document, "rectification_matrix", _IDENTITY, path),
        P=_parse_matrix(document, "projection_matrix", projection, path),
    )


def _parse_matrix(document: Any, key: str, default: Any, path: str) -> Any:
    if key not in document:
        return list(default)
    try:
        values = np.asarray(document[key]["data"], dtype=np.float64).ravel()
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"calibration {path}: {key}: {error}") from None
    if len(values) != len(default) or not np.isfinite(values).all():
        raise BadInput(f"calibration {path}: {key} needs {len(default)} finite numbers")
    return values.tolist()


def fit_calibration(info: CameraInfo, width: int, height: int) -> CameraInfo:
    """The calibration of images of this size, whichever the driver publishes.

    They show the whole sensor, or the region ``info.roi`` of it, binned or not (image_geometry's rules), or either of
    these resized.

    Raises:
        BadInput: the size is that of none of them, or the region is not on the sensor.
    """
    x0, y0, across, down = _sensor_part(info, width, height)
    warp = np.diag([across, down, 1.0]) @ np.array([[1.0, 0.0, -x0], [0.0, 1.0, -y0], [0.0, 0.0, 1.0]])
    return CameraInfo(
        width=width,
        height=height,
        distortion_model=info.distortion_model,
        D=list(info.D),
        K=(warp @ np.reshape(info.K, (3, 3))).ravel().tolist(),
        R=list(info.R),
        P=(warp @ np.reshape(info.P, (3, 4))).ravel().tolist(),
    )


def _sensor_part(info: CameraInfo, width: int, height: int) -> Tuple[int, int, float, float]:
    """Origin of the images on the sensor, in its pixels, and image pixels per sensor pixel."""
    x0, y0, wide, high = _read_region(info)
    if (width, height) == (info.width, info.height):
        return 0, 0, 1.0, 1.0
    binned = max(1, info.binning_x), max(1, info.binning_y)
    # drivers round what binning leaves of an odd size up or down
    if width in (wide // binned[0], -(-wide // binned[0])) and height in (high // binned[1], -(-high // binned[1])):
        return x0, y0, 1 / binned[0], 1 / binned[1]
    across, down = width / wide, height / high
    if abs(across * binned[0] / (down * binned[1]) - 1) > 0.01:
        shown = "" if (wide, high) == (info.width, info.height) else f", of which roi is {wide}x{high}"
        shown += "" if binned == (1, 1) else f", binned by {binned[0]}x{binned[1]}"
        raise BadInput(
            f"the calibration is for {info.width}x{info.height}{shown}; the images are {width}x{height}",
            remedy="calibrate at the size that is published, or have the driver state roi and binning in camera_info",
        )
    return x0, y0, across, down


def _read_region(info: CameraInfo) -> Tuple[int, int, int, int]:
    """Left, top, width and height of what the driver reads of the sensor, px."""
    roi = info.roi
    if not (roi.x_offset or roi.y_offset) and (roi.width > info.width or roi.height > info.height):
        # some drivers give the size of the sensor here, and the calibration of what they publish
        return 0, 0, info.width, info.height
    x0, y0 = roi.x_offset, roi.y_offset
    wide, high = roi.width or info.width - x0, roi.height or info.height - y0
    if wide < 1 or high < 1 or x0 + wide > info.width or y0 + high > info.height:
        raise BadInput(
            f"camera_info: roi {roi.width}x{roi.height} at {x0},{y0} is not within {info.width}x{info.height}",
            remedy="width and height, like K, are those of the whole sensor, and roi is in its pixels",
        )
    return x0, y0, wide, high


def published_size(info: CameraInfo) -> Tuple[int, int]:
    """Width and height of the images, as ``info`` has it, px."""
    _, _, wide, high = _read_region(info)
    return wide // max(1, info.binning_x), high // max(1, info.binning_y)


def is_rectified(topic: str) -> bool:
    """Tell whether ``topic`` is rectified, by the names that image_proc and drivers use."""
    return re.search(r"image_rect|(?<!un)rectified", topic) is not None


def rectify_calibration(info: CameraInfo) -> CameraInfo:
    """The calibration of rectified images, to which P belongs, of the camera whose raw images ``info`` is of.

    Raises:
        BadInput: P is missing, and K cannot stand for it.
    """
    result = copy.copy(info)
    projection = np.reshape(info.P, (3, 4))[:, :3]
    if projection[0, 0] > 0:
        result.K = projection.ravel().tolist()
    elif np.any(info.D) or not np.allclose(info.R, np.any(info.R) * np.array(_IDENTITY)):
        raise BadInput(
            "the images are rectified, and P of camera_info is 0", remedy="calibrate the camera, or take its raw images"
        )
    result.distortion_model, result.D, result.R = "plumb_bob", [], list(_IDENTITY)
    return result


def camera_of(info: Any) -> PinholeCamera:
    """The camera that a ``CameraInfo`` describes; its optical frame is that of R, as for image_geometry.

    Raises:
        BadInput: it is not calibrated (K is zero), or makes no sense.
    """
    return PinholeCamera(
        width=info.width,
        height=info.height,
        matrix=np.reshape(info.K, (3, 3)),
        distortion=np.asarray(info.D, dtype=np.float64),
        model=info.distortion_model,
        rectification=np.reshape(info.R, (3, 3)),
    )
