"""Converts sensor messages to arrays, transforms of tf to matrices, and back.

Checks every size and encoding before it reads the data.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Tuple

import cv2
import numpy as np
from geometry_msgs.msg import Quaternion, TransformStamped, Vector3
from scipy.spatial.transform import Rotation
from sensor_msgs.msg import CompressedImage, Image, PointCloud2, PointField
from std_msgs.msg import Header

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.perception.geometry import Transform
from edge_offload.perception.scene.returns import only_returns

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
MAX_SIDE = 16384
"""Pixels. No camera is larger; a larger figure is a corrupt message."""

# encoding -> (bytes per pixel, conversion to BGR or None)
_COLOUR: Dict[str, Tuple[int, Any]] = {
    "bgr8": (3, None),
    "8uc3": (3, None),
    "rgb8": (3, cv2.COLOR_RGB2BGR),
    "bgra8": (4, cv2.COLOR_BGRA2BGR),
    "8uc4": (4, cv2.COLOR_BGRA2BGR),
    "rgba8": (4, cv2.COLOR_RGBA2BGR),
    "mono8": (1, cv2.COLOR_GRAY2BGR),
    "8uc1": (1, cv2.COLOR_GRAY2BGR),
    "yuv422": (2, cv2.COLOR_YUV2BGR_UYVY),
    "uyvy": (2, cv2.COLOR_YUV2BGR_UYVY),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2BGR_YUY2),
    "yuyv": (2, cv2.COLOR_YUV2BGR_YUY2),
    # OpenCV names a Bayer pattern by the second row's second and third pixel
    "bayer_rggb8": (1, cv2.COLOR_BayerBG2BGR),
    "bayer_bggr8": (1, cv2.COLOR_BayerRG2BGR),
    "bayer_gbrg8": (1, cv2.COLOR_BayerGR2BGR),
    "bayer_grbg8": (1, cv2.COLOR_BayerGB2BGR),
}

_SIXTEEN = re.compile(r"(mono|rgba?|bgra?|bayer_[a-z]{4})16|16[us]c\d*")
# what ROS names an encoding; another word in CompressedImage.format, such as jpeg, names none
_ENCODING = re.compile(r"(mono|rgba?|bgra?|bayer_[a-z]{4})(8|16)|(8|16|32|64)[usf]c\d*|yuv.*|uyvy|yuyv|nv\d\d")

_POINT_TYPES = {
    PointField.INT8: "i1",
    PointField.UINT8: "u1",
    PointField.INT16: "i2",
    PointField.UINT16: "u2",
    PointField.INT32: "i4",
    PointField.UINT32: "u4",
    PointField.FLOAT32: "f4",
    PointField.FLOAT64: "f8",
}


def image_to_bgr(message: Any) -> Array:
    """Pixels of an ``Image`` or ``CompressedImage`` as uint8 [h, w, 3] BGR.

    Raises:
        BadInput: an encoding that is not known, an empty image, or data that does not fit the stated size.
    """
    if hasattr(message, "format"):
        return _decompress(message)
    encoding = _colour_key(message.encoding)
    bytes_per_pixel = _COLOUR[encoding][0]
    rows = _pixel_rows(message, bytes_per_pixel)
    if bytes_per_pixel > 1:
        rows = rows.reshape(message.height, message.width, bytes_per_pixel)
    return _convert_bgr(rows, encoding)


def _colour_key(named: str) -> str:
    encoding = named.strip().lower()
    if encoding in _COLOUR:
        return encoding
    if _SIXTEEN.fullmatch(encoding):
        raise BadInput(
            f"image encoding {named!r}: which of its 16 bits hold the picture is not stated",
            remedy="have the driver publish 8 bits (mono8 by its gain control, or rgb8)",
        )
    supported = ", ".join(sorted(_COLOUR))
    raise BadInput(f"image encoding {named!r} is not supported", remedy=f"publish one of: {supported}")


def _convert_bgr(pixels: Array, encoding: str) -> Array:
    """Samples uint8 [h, w] or [h, w, c] of a supported encoding as BGR."""
    conversion = _COLOUR[encoding][1]
    if conversion is None:
        return np.ascontiguousarray(pixels)
    try:
        converted: Array = cv2.cvtColor(np.ascontiguousarray(pixels), conversion)
    except cv2.error as error:
        height, width = pixels.shape[:2]
        raise BadInput(f"image {width}x{height} is no {encoding} image: {error.err}") from error
    return converted


def _pixel_rows(message: Any, bytes_per_pixel: int) -> Array:
    """The bytes of an ``Image`` as uint8 [h, w * bytes_per_pixel], row padding removed."""
    width, height, step = message.width, message.height, message.step
    if width < 1 or height < 1:
        raise BadInput(f"empty image ({width}x{height})")
    if width > MAX_SIDE or height > MAX_SIDE:
        raise BadInput(f"image of {width}x{height} pixels", remedy=f"no side may exceed {MAX_SIDE}")
    line = width * bytes_per_pixel
    if step < line:
        raise BadInput(
            f"image step is {step} bytes, a row of {width} {message.encoding} pixels takes {line}",
            remedy="have the driver state the bytes of a row, and the encoding that it publishes",
        )
    have, need = len(message.data), step * (height - 1) + line
    if have < need:
        raise BadInput(f"truncated image: {have} bytes, {width}x{height} {message.encoding} takes {need}")
    data = np.frombuffer(message.data, dtype=np.uint8)
    if have >= step * height:
        return data[: step * height].reshape(height, step)[:, :line]
    return np.lib.stride_tricks.as_strided(data, (height, line), (step, 1), writeable=False)


def _decompress(message: Any) -> Array:
    """Encoding of the raw topic: the part of ``format`` before ";", as image_transport has it.

    One word alone (jpeg) names none; the data says then whether the picture is grey.
    """
    what = f"compressed image of format {message.format!r}"
    named, _, coding = message.format.lower().partition(";")
    if "compresseddepth" in coding or "compresseddepth" in named:
        raise BadInput(f"{what} is a depth image", remedy="name the topic of the colour images")
    encoding = _colour_key(named) if _ENCODING.fullmatch(named.strip()) else ""
    if not message.data:
        raise BadInput(f"empty {what}")
    if message.data[:2] == JPEG_START and JPEG_END not in message.data:
        # OpenCV 4 would make the missing rows grey
        raise BadInput(f"{what} is a JPEG that was cut off", remedy="check the camera's cable and its bandwidth (USB)")
    data = np.frombuffer(message.data, dtype=np.uint8)
    try:
        pixels = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise BadInput(f"{what} cannot be decoded: {error.err}") from error
    if pixels is None:
        raise BadInput(f"{what} cannot be decoded ({len(data)} bytes)")
    if pixels.dtype != np.uint8:
        raise BadInput(
            f"{what} has samples of {8 * pixels.itemsize} bits, and which of them hold the picture is not stated",
            remedy="have the driver publish 8 bits (mono8 by its gain control, or rgb8)",
        )
    return _convert_bgr(pixels, _coded_encoding(encoding, coding, 1 if pixels.ndim == 2 else pixels.shape[2], what))


def _coded_encoding(encoding: str, coding: str, channels: int, what: str) -> str:
    """Encoding of the samples in the file of a compressed image, which are those of ``encoding`` or made of them."""
    picture = {1: "mono8", 3: "bgr8", 4: "bgra8"}.get(channels, "")
    mosaic = encoding.startswith("bayer")
    if not picture or (mosaic and channels > 1 and "bgr" not in coding and "rgb" not in coding):
        raise BadInput(f"{what} has {channels} channels", remedy="have the driver name the encoding of its samples")
    if channels > 1:
        # image_transport: without "compressed bgr" the file has red and blue of a colour image exchanged
        exchanged = encoding in ("rgb8", "bgr8", "rgba8", "bgra8") and coding and "compressed bgr" not in coding
        return picture.replace("bgr", "rgb") if exchanged else picture
    grey = encoding in ("", "mono8", "8uc1")
    if not grey and ("mono" in coding or _COLOUR[encoding][0] == 2):
        raise BadInput(
            f"{what} has lost the colour that the raw topic has",
            remedy="subscribe to the raw topic (transport:=raw), or have the driver publish rgb8",
        )
    return encoding if mosaic else picture


def depth_pixels(message: Any) -> Tuple[Array, str]:
    """A depth ``Image`` as it comes: uint16 or float32 [h, w], and its encoding (16UC1: millimetres, 32FC1: metres).

    Raises:
        BadInput: another encoding, or data that does not fit the stated size.
    """
    encoding = {"16uc1": "16UC1", "mono16": "16UC1", "32fc1": "32FC1"}.get(message.encoding.strip().lower())
    if encoding is None:
        raise BadInput(f"depth encoding {message.encoding!r} is not supported", remedy="publish 16UC1 or 32FC1")
    size, kind = (2, "u2") if encoding == "16UC1" else (4, "f4")
    rows = np.ascontiguousarray(_pixel_rows(message, size))
    pixels = rows.view((">" if message.is_bigendian else "<") + kind)
    return pixels.astype(np.dtype(kind)), encoding


def bgr_to_image(bgr: Array, header: Any) -> Image:
    """uint8 [h, w, 3] BGR as a ``bgr8`` message with ``header``."""
    height, width = bgr.shape[:2]
    return Image(_copy_header(header), height, width, "bgr8", 0, 3 * width, np.ascontiguousarray(bgr).tobytes())


def bgr_to_jpeg(bgr: Array, header: Any, quality: int) -> CompressedImage:
    """uint8 [h, w, 3] BGR as a JPEG message with ``header``; quality 1 to 100."""
    done, coded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise BadInput(f"image of shape {bgr.shape} cannot be coded as JPEG")
    return CompressedImage(_copy_header(header), "bgr8; jpeg compressed bgr8", coded.tobytes())


def cloud_to_points(message: Any) -> Array:
    """A ``PointCloud2`` as float32 [n, 4]: x, y, z in metres and intensity (0 where it has none).

    Points that are no returns are left out (see :mod:`edge_offload.perception.scene.returns`), as are those whose field
    ``range`` is 0 or not finite.

    Raises:
        BadInput: no x, y and z, a layout that contradicts itself, or truncated data.
    """
    layout = _point_layout(message)
    cloud = _cloud_rows(message, layout)
    points = np.zeros((len(cloud), 4), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for column, name in enumerate(("x", "y", "z", "intensity")):
            if name in layout.names:
                points[:, column] = cloud[name]
        if "range" in layout.names:
            distance = cloud["range"].astype(np.float64)
            points = points[(distance > 0) & np.isfinite(distance)]
    return only_returns(points)


def _point_layout(message: Any) -> Any:
    """The numpy type of a point, with those of its fields that are looked at."""
    order = ">" if message.is_bigendian else "<"
    fields: Dict[str, Tuple[int, str]] = {}
    for item in message.fields:
        if item.name not in ("x", "y", "z", "intensity", "range") or item.name in fields:
            continue
        if item.datatype not in _POINT_TYPES:
            raise BadInput(f"point cloud: field {item.name} has datatype {item.datatype}, which PointField has not")
        kind = order + _POINT_TYPES[item.datatype]
        if item.offset + np.dtype(kind).itemsize > message.point_step:
            raise BadInput(f"point cloud: field {item.name} lies beyond a point's {message.point_step} bytes")
        fields[item.name] = (item.offset, kind)
    missing = [name for name in "xyz" if name not in fields]
    if missing:
        raise BadInput(f"point cloud without {', '.join(missing)}")
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for _, kind in fields.values()],
            "offsets": [offset for offset, _ in fields.values()],
            "itemsize": message.point_step,
        }
    )


def _cloud_rows(message: Any, layout: Any) -> Array:
    """The points of a cloud, one after the other.

    Many drivers leave ``row_step`` at 0 or get it wrong: it counts only where the data has room for such rows.
    """
    width, height, stride = message.width, message.height, message.row_step
    line, have = width * message.point_step, len(message.data)
    if not width * height:
        if have:
            raise BadInput(
                f"point cloud of {width} x {height} points with {have} bytes of data",
                remedy="a driver states width and height; an unordered cloud has height 1",
            )
        return np.zeros(0, dtype=layout)
    if height > 1 and have == line * height:
        stride = line
    if height > 1 and stride < line and have > line * height:
        raise BadInput(
            f"point cloud: row step {stride} is less than {width} points of {message.point_step} bytes, and "
            f"{have} bytes are more than {height} such rows",
            remedy="the driver has to state row_step",
        )
    if have < max(stride, line) * (height - 1) + line:
        raise BadInput(
            f"truncated point cloud: {have} bytes, row step {message.row_step} for {height} rows of "
            f"{width} points of {message.point_step} bytes"
        )
    if height == 1 or stride == line:
        return np.frombuffer(message.data, dtype=layout, count=width * height)
    rows = [np.frombuffer(message.data, dtype=layout, count=width, offset=row * stride) for row in range(height)]
    return np.concatenate(rows)


def points_to_cloud(points: Array, header: Any) -> PointCloud2:
    """Finite points float32 [n, 4] (x, y, z in metres, intensity) as a ``PointCloud2`` with ``header``."""
    packed = np.ascontiguousarray(points, dtype="<f4")
    fields = [
        PointField(name, 4 * index, PointField.FLOAT32, 1) for index, name in enumerate(("x", "y", "z", "intensity"))
    ]
    return PointCloud2(
        _copy_header(header), 1, len(packed), fields, False, 16, 16 * len(packed), packed.tobytes(), True
    )


def _copy_header(header: Any) -> Header:
    """A header of its own: publishing writes a sequence number into the one it gets, which may be that of a frame."""
    return Header(stamp=header.stamp, frame_id=header.frame_id)


def transform_of(message: Any) -> Transform:
    """The transform in a ``TransformStamped``: maps its child frame into its parent.

    Raises:
        BadInput: it is no rotation and translation.
    """
    place, turn = message.transform.translation, message.transform.rotation
    return Transform.from_quaternion((place.x, place.y, place.z), (turn.x, turn.y, turn.z, turn.w))


def transform_message(transform: Transform, stamp: Any, parent: str, child: str) -> TransformStamped:
    """A ``TransformStamped`` that maps ``child`` into ``parent``."""
    message = TransformStamped(header=Header(stamp=stamp, frame_id=parent), child_frame_id=child)
    message.transform.translation = Vector3(*transform.translation.tolist())
    message.transform.rotation = Quaternion(*Rotation.from_matrix(transform.rotation).as_quat().tolist())
    return message
