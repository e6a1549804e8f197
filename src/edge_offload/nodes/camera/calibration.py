"""Between camera calibrations and ``CameraInfo``."""

from __future__ import annotations

import pathlib
from typing import Any

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
    # what a PinholeCamera has no use for: rectification
    document = yaml.safe_load(pathlib.Path(path).expanduser().read_text(encoding="utf-8"))
    k = camera.matrix
    projection = [k[0, 0], 0.0, k[0, 2], 0.0, 0.0, k[1, 1], k[1, 2], 0.0, 0.0, 0.0, 1.0, 0.0]
    return CameraInfo(
        width=camera.width,
        height=camera.height,
        distortion_model=camera.model,
        D=camera.distortion.tolist(),
        K=camera.matrix.ravel().tolist(),
        R=_matrix(document, "rectification_matrix", _IDENTITY, path),
        P=_matrix(document, "projection_matrix", projection, path),
    )


def _matrix(document: Any, key: str, default: Any, path: str) -> Any:
    if key not in document:
        return list(default)
    try:
        values = np.asarray(document[key]["data"], dtype=np.float64).ravel()
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"calibration {path}: {key}: {error}") from None
    if len(values) != len(default) or not np.isfinite(values).all():
        raise BadInput(f"calibration {path}: {key} needs {len(default)} finite numbers")
    return values.tolist()


def fitted(info: CameraInfo, width: int, height: int) -> CameraInfo:
    """The calibration for images of another size but the same field of view (binned or resized by the driver).

    Raises:
        BadInput: the shape of the image differs by more than one percent: it was cropped.
    """
    across, down = width / info.width, height / info.height
    if abs(across / down - 1) > 0.01:
        raise BadInput(
            f"the calibration is for {info.width}x{info.height}, the images are {width}x{height}",
            remedy="calibrate at the size that is published",
        )
    scale = np.array([[across], [down], [1.0]])
    return CameraInfo(
        width=width,
        height=height,
        distortion_model=info.distortion_model,
        D=list(info.D),
        K=(np.reshape(info.K, (3, 3)) * scale).ravel().tolist(),
        R=list(info.R),
        P=(np.reshape(info.P, (3, 4)) * scale).ravel().tolist(),
    )


def camera_of(info: Any) -> PinholeCamera:
    """The camera that a ``CameraInfo`` describes.

    Raises:
        BadInput: it is not calibrated (K is zero), or makes no sense.
    """
    return PinholeCamera(
        width=info.width,
        height=info.height,
        matrix=np.reshape(info.K, (3, 3)),
        distortion=np.asarray(info.D, dtype=np.float64),
        model=info.distortion_model or "plumb_bob",
    )
