"""Predictors for 8-bit images: code what the neighbours do not foretell (``left``, ``gradient``, ``paeth``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import ProtocolError
from edge_offload.link.codecs import compressors, kernels
from edge_offload.link.codecs.kernels.portable import NONE, PREDICTORS, Frame
from edge_offload.link.codecs.method import Coded, Method, NotApplicable
from edge_offload.link.codecs.payload import Header, array_from, bytes_of, take_int


def stack_frame(shape: Tuple[int, ...], predictor: int) -> Optional[Frame]:
    """Read an array of ``shape`` as a stack of images: [..., H, W, C<=4] interleaved, [..., C<=4, H, W] or [..., H, W].

    Returns:
        A frame without colour differences, or None if the shape is no image.
    """
    least = 4  # pixels; anything smaller is not worth predicting
    if len(shape) >= 3 and 1 <= shape[-1] <= 4 and min(shape[-3:-1]) >= least:
        images, channels, interleaved = shape[:-3], shape[-1], True
        height, width = shape[-3:-1]
    elif len(shape) >= 2 and min(shape[-2:]) >= least:
        (height, width), interleaved = shape[-2:], False
        channels = shape[-3] if len(shape) >= 3 and 1 <= shape[-3] <= 4 else 1
        images = shape[:-3] if channels > 1 else shape[:-2]
    else:
        return None
    count = 1
    for extent in images:
        count *= extent
    return Frame(count, channels, height, width, interleaved, predictor, False) if count else None


def with_colour(data: Array, frame: Frame) -> Frame:
    """``frame`` with colour differences switched on where a sample of ``data`` (uint8, flat) gets smaller by it."""
    if frame.channels != 3:
        return frame
    stack = (
        (frame.images, frame.height, frame.width, 3)
        if frame.interleaved
        else (frame.images, 3, frame.height, frame.width)
    )
    axis = 1 if frame.interleaved else 2
    rows = min(frame.height, 32)
    first = (frame.height - rows) // 2
    middle = np.ascontiguousarray(data.reshape(stack)[:1].take(range(first, first + rows), axis=axis))
    part = Frame(1, 3, rows, frame.width, frame.interleaved, frame.predictor, False)
    planes = kernels.residual(middle.reshape(-1), part).reshape(3, -1)[:, frame.width :]
    separate = _estimate_effort(planes[0]) + _estimate_effort(planes[2])
    together = _estimate_effort(planes[0] - planes[1]) + _estimate_effort(planes[2] - planes[1])
    if together >= separate:
        return frame
    return replace(frame, colour=True)


def _estimate_effort(plane: Array) -> int:
    return int(np.abs(plane.view(np.int8).astype(np.int16)).sum())


def frame_params(frame: Frame) -> Dict[str, Any]:
    """Parameters of ``frame`` for the decoder, besides its predictor."""
    return {
        "layout": [frame.images, frame.channels, frame.height, frame.width],
        "interleaved": int(frame.interleaved),
        "colour": int(frame.colour),
    }


def take_frame(params: Mapping[str, Any], predictor: int, size: int) -> Frame:
    """Inverse of :func:`frame_params` for ``size`` elements.

    Raises:
        ProtocolError: the frame does not cover exactly ``size`` elements.
    """
    layout = params.get("layout")
    if not isinstance(layout, (list, tuple)) or len(layout) != 4:
        raise ProtocolError("image layout is a list of four sizes")
    product = 1
    for extent in layout:
        if type(extent) is not int or not 1 <= extent <= size:
            raise ProtocolError("image layout does not fit the shape")
        product *= extent
    colour = take_int(params, "colour", 0, 1)
    if product != size or (colour and layout[1] != 3):
        raise ProtocolError("image layout does not fit the shape")
    interleaved = bool(take_int(params, "interleaved", 0, 1))
    return Frame(layout[0], layout[1], layout[2], layout[3], interleaved, predictor, bool(colour))


def encode_frame(data: Array, frame: Frame, kind: str) -> Coded:
    """Code uint8 (flat) as ``frame`` says, with colour differences where they help."""
    frame = with_colour(data, frame)
    return frame_params(frame), [compressors.compress(kind, kernels.residual(data, frame), residual=True)]


def decode_frame(coded: memoryview, frame: Frame, kind: str, size: int) -> Array:
    """uint8 (flat), ``size`` of them, out of one coded part.

    Raises:
        ProtocolError: damaged.
    """
    planes = np.frombuffer(compressors.expand(kind, coded, size), np.uint8)
    return kernels.pixels(planes, frame)


def suits_image(dtype: np.dtype[Any], shape: Tuple[int, ...]) -> bool:
    """Tell whether (dtype, shape) is a stack of 8-bit images."""
    return dtype.itemsize == 1 and stack_frame(shape, NONE) is not None


def _make_method(name: str, summary: str, kinds: Tuple[str, ...]) -> Method:
    predictor = PREDICTORS[name]

    def encode(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
        frame = stack_frame(array.shape, predictor)
        if frame is None or array.dtype.itemsize != 1:
            raise NotApplicable(f"{array.dtype.name} {list(array.shape)} is not a stack of 8-bit images")
        return encode_frame(bytes_of(array), frame, kind)

    def decode(header: Header, kind: str, parts: List[memoryview]) -> Array:
        if len(parts) != 1 or set(header.params) != {"layout", "interleaved", "colour"}:
            raise ProtocolError(f"{header.codec}: one part and three parameters expected")
        frame = take_frame(header.params, predictor, header.size)
        return array_from(decode_frame(parts[0], frame, kind, header.size), header)

    return Method(name, summary, kinds, True, encode, decode, suits_image)


LEFT = _make_method("left", "8-bit images, difference to the left neighbour", ("zstd", "lz4"))
GRADIENT = _make_method("gradient", "8-bit images, difference to left + upper - upper left", ("zstd", "lz4"))
PAETH = _make_method("paeth", "8-bit images, difference to the nearest of three neighbours", ("zstd",))
