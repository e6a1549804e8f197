"""Opt-in lossy methods: ``fp16`` (half precision) and ``jpeg``. Nothing here is ever chosen by ``auto``."""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, ProtocolError
from edge_offload.link.codecs import compressors, image
from edge_offload.link.codecs.compressors import shuffle_bytes, unshuffle_bytes
from edge_offload.link.codecs.kernels.portable import NONE
from edge_offload.link.codecs.method import Coded, Method, NotApplicable
from edge_offload.link.codecs.payload import Header, array_from, one_part, take_int


def _encode_fp16(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    if not _suits_fp16(array.dtype, array.shape):
        raise NotApplicable(f"fp16 takes float32 and float64, not {array.dtype.name}")
    with np.errstate(over="ignore"):  # beyond 65504 becomes infinite: part of what fp16 means
        half = array.astype(np.float16)
    return {}, [compressors.compress(kind, shuffle_bytes(half))]


def _decode_fp16(header: Header, kind: str, parts: List[memoryview]) -> Array:
    data = unshuffle_bytes(compressors.expand(kind, one_part(header, parts), header.size * 2), 2)
    return np.frombuffer(data, np.float16).astype(header.dtype).reshape(header.shape)


def _suits_fp16(dtype: np.dtype[Any], shape: Tuple[int, ...]) -> bool:
    return dtype.name in ("float32", "float64") and 0 not in shape


def _encode_jpeg(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    import cv2

    frame = image.stack_frame(array.shape, NONE)
    if frame is None or not _suits_jpeg(array.dtype, array.shape):
        raise NotApplicable(f"jpeg takes one uint8 image of 1 or 3 channels, not {array.dtype.name} {array.shape}")
    quality = options.get("quality", 90)
    if type(quality) is not int or not 1 <= quality <= 100:
        raise BadInput(f"JPEG quality {quality!r}", remedy="give an integer in 1..100")
    if frame.interleaved:
        picture = array.reshape(frame.height, frame.width, frame.channels)
    else:
        picture = array.reshape(frame.channels, frame.height, frame.width).transpose(1, 2, 0)
    done, coded = cv2.imencode(".jpg", np.ascontiguousarray(picture), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise NotApplicable("OpenCV cannot write this image as JPEG")
    params = image.frame_params(frame)
    return {"layout": params["layout"], "interleaved": params["interleaved"], "quality": quality}, [coded.tobytes()]


def _decode_jpeg(header: Header, kind: str, parts: List[memoryview]) -> Array:
    import cv2

    if len(parts) != 1 or set(header.params) != {"layout", "interleaved", "quality"}:
        raise ProtocolError("jpeg: one part and three parameters expected")
    take_int(header.params, "quality", 1, 100)
    frame = image.take_frame({**header.params, "colour": 0}, NONE, header.size)
    claimed = jpeg_size(parts[0])
    if frame.images != 1 or claimed != (frame.height, frame.width, frame.channels):
        raise ProtocolError(f"jpeg: the picture claims {claimed}, not what its header says")
    flags = (cv2.IMREAD_GRAYSCALE if frame.channels == 1 else cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        picture = cv2.imdecode(np.frombuffer(parts[0], np.uint8), flags)
    except cv2.error as error:
        raise ProtocolError(f"damaged jpeg payload: {error}") from error
    if picture is None or picture.size != header.size or picture.shape[:2] != (frame.height, frame.width):
        raise ProtocolError("damaged jpeg payload")
    if not frame.interleaved and frame.channels == 3:
        picture = picture.transpose(2, 0, 1)
    return array_from(np.ascontiguousarray(picture), header)


def jpeg_size(coded: memoryview) -> Tuple[int, int, int]:
    """(height, width, components) that a baseline JPEG declares, read before any decoder allocates for it.

    Raises:
        ProtocolError: not a baseline JPEG.
    """
    at = 2
    if bytes(coded[:2]) == b"\xff\xd8":
        while at + 9 < len(coded) and coded[at] == 0xFF:
            marker, length = coded[at + 1], int.from_bytes(coded[at + 2 : at + 4], "big")
            if marker == 0xC0:
                return (
                    int.from_bytes(coded[at + 5 : at + 7], "big"),
                    int.from_bytes(coded[at + 7 : at + 9], "big"),
                    int(coded[at + 9]),
                )
            if marker in (0xD8, 0xD9, 0xDA) or (0xC1 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
                break
            at += 2 + length
    raise ProtocolError("damaged jpeg payload: no baseline frame header")


def _suits_jpeg(dtype: np.dtype[Any], shape: Tuple[int, ...]) -> bool:
    frame = image.stack_frame(shape, NONE)
    return dtype == np.uint8 and frame is not None and frame.images == 1 and frame.channels in (1, 3)


FP16 = Method("fp16", "lossy: half precision", ("", "zstd"), False, _encode_fp16, _decode_fp16, _suits_fp16)
JPEG = Method("jpeg", "lossy: JPEG, quality=1..100 (default 90)", ("",), False, _encode_jpeg, _decode_jpeg, _suits_jpeg)
