"""Palette: floats (or wide integers) of at most 256 distinct values per channel travel as 8-bit indices.

A normalised camera image is such a tensor: 8-bit pixels under one scale and offset per channel. The indices ascend
with the values, so that they are the picture again and the image predictor works on them.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import ProtocolError
from edge_offload.link.codecs import compressors, image, kernels
from edge_offload.link.codecs.compressors import shuffle_bytes, unshuffle_bytes
from edge_offload.link.codecs.kernels.portable import GRADIENT, NONE, PALETTE_LIMIT, Frame
from edge_offload.link.codecs.method import Coded, Method, NotApplicable
from edge_offload.link.codecs.payload import Header, array_from, take_int

_KEYS = {"layout", "interleaved", "colour", "picture", "counts"}


def view_unsigned(array: Array) -> Array:
    """Bit patterns of an array of itemsize 1, 2, 4 or 8 as unsigned integers, flat, without a copy."""
    return array.reshape(-1).view(np.dtype(f"u{array.dtype.itemsize}"))


def _channel_extents(frame: Frame) -> Tuple[int, int, int]:
    """(outer, channels, inner) extents of the frame's memory."""
    pixels = frame.height * frame.width
    if frame.interleaved:
        return frame.images * pixels, frame.channels, 1
    return frame.images, frame.channels, pixels


def _encode(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    if not _suits(array.dtype, array.shape):
        raise NotApplicable(f"{array.dtype.name} {list(array.shape)} has no palette")
    frame = image.stack_frame(array.shape, GRADIENT) or Frame(1, 1, 1, array.size, False, NONE, False)
    palette = kernels.palette(view_unsigned(array).reshape(_channel_extents(frame)), array.dtype.kind, PALETTE_LIMIT)
    if palette is None:
        raise NotApplicable(f"a channel holds more than {PALETTE_LIMIT} distinct values")
    index, values = palette
    counts = [len(channel) for channel in values]
    # from 32 values on the indices are taken for a picture, below for labels
    predictor = frame.predictor if max(counts) >= 32 else NONE
    frame = Frame(frame.images, frame.channels, frame.height, frame.width, frame.interleaved, predictor, False)
    params, parts = image.encode_frame(index, frame, kind)
    params.update(picture=int(predictor == GRADIENT), counts=counts)
    return params, [compressors.compress(kind, shuffle_bytes(np.concatenate(values))), *parts]


def _decode(header: Header, kind: str, parts: List[memoryview]) -> Array:
    params = header.params
    if len(parts) != 2 or set(params) != _KEYS:
        raise ProtocolError(f"{header.codec}: two parts and five parameters expected")
    predictor = GRADIENT if take_int(params, "picture", 0, 1) else NONE
    frame = image.take_frame(params, predictor, header.size)
    counts = params["counts"]
    if frame.channels > 4 or not isinstance(counts, (list, tuple)) or len(counts) != frame.channels:
        raise ProtocolError(f"{header.codec}: one palette per channel expected")
    if not all(type(count) is int and 1 <= count <= PALETTE_LIMIT for count in counts):
        raise ProtocolError(f"{header.codec}: a palette has 1 to {PALETTE_LIMIT} values")
    item = header.dtype.itemsize
    plain = unshuffle_bytes(compressors.expand(kind, parts[0], sum(counts) * item), item)
    values = np.frombuffer(plain, np.dtype(f"u{item}"))
    table = np.zeros((frame.channels, PALETTE_LIMIT), values.dtype)
    index = image.decode_frame(parts[1], frame, kind, frame.size)
    outer, channels, inner = _channel_extents(frame)
    start = 0
    for channel, count in enumerate(counts):
        table[channel, :count] = values[start : start + count]
        start += count
        if count < PALETTE_LIMIT and int(index.reshape(outer, channels, inner)[:, channel].max()) >= count:
            raise ProtocolError(f"{header.codec}: an index points past its palette of {count} values")
    return array_from(kernels.gather(index, table, outer, inner).view(np.uint8), header)


def _suits(dtype: np.dtype[Any], shape: Tuple[int, ...]) -> bool:
    return dtype.itemsize in (2, 4, 8) and 0 not in shape


PALETTE = Method(
    "palette", "at most 256 values a channel, as 8-bit images", ("zstd", "lz4"), True, _encode, _decode, _suits
)
