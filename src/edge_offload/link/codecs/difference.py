"""Temporal methods: an array as its difference to a reference of the same dtype and shape (see :mod:`.stream`)."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np

from edge_offload.errors import ProtocolError

from . import entropy, image, kernels
from .method import NotApplicable
from .payload import Encoded, Header, array_from, bytes_of
from .plain import unshuffled
from .portable import NONE

TEMPORAL: Dict[str, str] = {"temporal+zstd": "zstd", "temporal+lz4": "lz4"}
"""Codecs that need a stream: name -> byte compressor."""


def encode_difference(array: np.ndarray, reference: np.ndarray, codec: str) -> Encoded:
    """``array - reference``, modulo the width of an element, coded by ``codec`` of :data:`TEMPORAL`.

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
    frame = image.frame_of(array.shape, NONE) if item == 1 else None
    if frame is not None and frame.channels == 3:
        descriptor["params"], parts = image.encode_frame(difference, frame, kind)
        return Encoded(descriptor, parts)
    data = difference if item == 1 or array.size < 2 else kernels.shuffle(difference.view(np.uint8), item)
    return Encoded(descriptor, [entropy.compress(kind, data.view(np.uint8), residual=item == 1)])


def decode_difference(header: Header, reference: np.ndarray, parts: List[memoryview]) -> np.ndarray:
    """Inverse of :func:`encode_difference`.

    Raises:
        ProtocolError: damaged.
    """
    kind, item = TEMPORAL[header.codec], header.dtype.itemsize
    if len(parts) != 1 or item > 8:
        raise ProtocolError(f"{header.codec}: one part expected")
    if header.params:
        frame = image.take_frame(header.params, NONE, header.size)
        if item != 1 or set(header.params) != set(image.frame_params(frame)):
            raise ProtocolError(f"{header.codec}: parameters that do not belong to it")
        data = image.decode_frame(parts[0], frame, kind)
    else:
        data = np.frombuffer(unshuffled(entropy.expand(kind, parts[0], header.nbytes), item), np.uint8)
    unsigned = np.dtype(f"u{item}")
    total = data.view(unsigned) + reference.reshape(-1).view(unsigned)
    return array_from(bytes_of(total), header)
