"""Camera calibration in the YAML form of ROS's camera_calibration, as a ``CameraInfo``."""

from __future__ import annotations

import math
import pathlib
from typing import Any, Dict, List

import yaml
from sensor_msgs.msg import CameraInfo

from edge_offload.errors import BadInput

_MATRICES = {"camera_matrix": ("K", 9), "rectification_matrix": ("R", 9), "projection_matrix": ("P", 12)}


def load_calibration(path: str) -> CameraInfo:
    """Read a calibration file (``image_width``, ``camera_matrix``, …); the header is left empty.

    Raises:
        BadInput: the file cannot be read, or something in it is missing or has the wrong size.
    """
    try:
        text = pathlib.Path(path).expanduser().read_text(encoding="utf-8")
        loaded = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"calibration {path}: {error}", remedy="give a YAML file of camera_calibration") from error
    if not isinstance(loaded, dict):
        raise BadInput(f"calibration {path} is no YAML mapping")
    info = CameraInfo()
    info.width = _count(loaded, "image_width", path)
    info.height = _count(loaded, "image_height", path)
    info.distortion_model = str(loaded.get("distortion_model", "plumb_bob"))
    info.D = _numbers(loaded, "distortion_coefficients", path)
    for key, (attribute, size) in _MATRICES.items():
        values = _numbers(loaded, key, path)
        if len(values) != size:
            raise BadInput(f"calibration {path}: {key} has {len(values)} numbers, expected {size}")
        setattr(info, attribute, values)
    if info.K[0] <= 0 or info.K[4] <= 0:
        raise BadInput(
            f"calibration {path}: focal length {info.K[0]:g} or {info.K[4]:g}", remedy="calibrate the camera"
        )
    return info


def fitted(info: CameraInfo, width: int, height: int) -> CameraInfo:
    """The calibration for images of another size but the same field of view (binned or resized by the driver).

    Raises:
        BadInput: the shape of the image differs by more than one percent: it was cropped.
    """
    if (info.width, info.height) == (width, height):
        return info
    across, down = width / info.width, height / info.height
    if abs(across / down - 1) > 0.01:
        raise BadInput(
            f"the calibration is for {info.width}x{info.height}, the images are {width}x{height}",
            remedy="calibrate at the size that is published",
        )
    scaled = CameraInfo(width=width, height=height, distortion_model=info.distortion_model, D=list(info.D))
    scaled.R = list(info.R)
    row = [across] * 3 + [down] * 3 + [1.0] * 3
    scaled.K = [value * factor for value, factor in zip(info.K, row)]
    row = [across] * 4 + [down] * 4 + [1.0] * 4
    scaled.P = [value * factor for value, factor in zip(info.P, row)]
    return scaled


def _count(loaded: Dict[str, Any], key: str, path: str) -> int:
    value = loaded.get(key)
    if type(value) is not int or value < 1:
        raise BadInput(f"calibration {path}: {key} is {value!r}", remedy="give a number of pixels")
    return value


def _numbers(loaded: Dict[str, Any], key: str, path: str) -> List[float]:
    node = loaded.get(key)
    data = node.get("data") if isinstance(node, dict) else None
    if not isinstance(data, list):
        raise BadInput(f"calibration {path} has no {key}")
    try:
        values = [float(value) for value in data]
    except (TypeError, ValueError):
        values = [math.nan]
    if not all(math.isfinite(value) for value in values):
        raise BadInput(f"calibration {path}: {key} holds something that is not a finite number")
    return values
