"""Temporal methods: an array as its difference to a reference of the same dtype and shape (see :mod:`.stream`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import ProtocolError
from edge_offload.link.codecs import compressors, image, kernels
from edge_offload.link.codecs.compressors import unshuffle_bytes
from edge_offload.link.codecs.kernels.portable import GRADIENT, NONE, Frame
from edge_offload.link.codecs.method import Coded, NotApplicable
from edge_offload.link.codecs.payload import Encoded, Header, Params, array_from, bytes_of, take_int
from edge_offload_research.temporal import blocks

TEMPORAL: Dict[str, str] = {"temporal+zstd": "zstd", "temporal+lz4": "lz4"}
"""Codecs that need a stream: name -> byte compressor."""


def encode_difference(array: Array, reference: Array, codec: str) -> Encoded:
    """``array - reference``, modulo the width of an element, coded by ``codec`` of :data:`TEMPORAL`.

    In 8-bit images, blocks of 16 x 16 pixels that moved are coded by the gradient predictor instead.

    Raises:
        NotApplicable: shapes or dtypes differ, or elements of 16 bytes.
    """
    if array.shape != reference.shape or array.dtype != reference.dtype or array.dtype.itemsize > 8:
        raise NotApplicable("no difference between arrays of different shape or dtype, or of complex128")
    kind = TEMPORAL[codec]
    item = array.dtype.itemsize
    unsigned = np.dtype(f"u{item}")
    difference = array.reshape(-1).view(unsigned) - reference.reshape(-1).view(unsigned)
    descriptor: Dict[str, Any] = {"codec": codec, "dtype": array.dtype.name, "shape": list(array.shape)}
    frame = image.stack_frame(array.shape, NONE) if item == 1 else None
    if frame is not None:
        descriptor["params"], parts = _encode_blocks(bytes_of(array), difference, frame, kind)
        return Encoded(descriptor, parts)
    data = difference if item == 1 or array.size < 2 else kernels.shuffle(difference.view(np.uint8), item)
    return Encoded(descriptor, [compressors.compress(kind, data.view(np.uint8), residual=item == 1)])


def _encode_blocks(pixels: Array, difference: Array, frame: Frame, kind: str) -> Coded:
    """An image block by block: against the reference, or by the gradient where that leaves less."""
    frame = image.with_colour(difference, frame)
    temporal = kernels.residual(difference, frame)
    spatial = kernels.residual(pixels, replace(frame, predictor=GRADIENT))
    planes, choice = blocks.blend(temporal, spatial, frame)
    params: Params = image.frame_params(frame)
    parts = [compressors.compress(kind, planes, residual=True)]
    if choice.any():
        params["blocks"] = 1
        parts.append(compressors.compress(kind, np.packbits(choice)))
    return params, parts


def _decode_blocks(header: Header, reference: Array, parts: List[memoryview]) -> Array:
    params, kind = header.params, TEMPORAL[header.codec]
    frame = image.take_frame(params, NONE, header.size)
    mixed = take_int(params, "blocks", 1, 1) if "blocks" in params else 0
    if len(parts) != 1 + mixed or len(params) != len(image.frame_params(frame)) + mixed:
        raise ProtocolError(f"{header.codec}: parts or parameters that do not belong to it")
    if not mixed:
        total: Array = image.decode_frame(parts[0], frame, kind, frame.size) + reference
        return total
    planes = np.frombuffer(compressors.expand(kind, parts[0], frame.size), np.uint8)
    images, down, across = blocks.block_grid(frame)
    count = images * down * across
    choice = np.unpackbits(np.frombuffer(compressors.expand(kind, parts[1], -(-count // 8)), np.uint8), count=count)
    return blocks.unblend(planes, reference, choice, frame)


def decode_difference(header: Header, reference: Array, parts: List[memoryview]) -> Array:
    """Inverse of :func:`encode_difference`.

    Raises:
        ProtocolError: damaged.
    """
    kind, item = TEMPORAL[header.codec], header.dtype.itemsize
    if header.params:
        if item != 1:
            raise ProtocolError(f"{header.codec}: parameters that do not belong to it")
        return array_from(_decode_blocks(header, bytes_of(reference), parts), header)
    if len(parts) != 1 or item > 8:
        raise ProtocolError(f"{header.codec}: one part expected")
    data = np.frombuffer(unshuffle_bytes(compressors.expand(kind, parts[0], header.nbytes), item), np.uint8)
    unsigned = np.dtype(f"u{item}")
    total = data.view(unsigned) + reference.reshape(-1).view(unsigned)
    return array_from(bytes_of(total), header)
