"""Content-blind methods: ``raw`` (the memory as it is) and ``shuffle`` (bytes of equal weight together, compressed)."""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import ProtocolError
from edge_offload.link.codecs import compressors, kernels
from edge_offload.link.codecs.method import Coded, Method
from edge_offload.link.codecs.payload import Buffer, Header, array_from, bytes_of


def one_part(header: Header, parts: List[memoryview]) -> memoryview:
    """The only part of a payload.

    Raises:
        ProtocolError: none or several, or parameters where there are none.
    """
    if len(parts) != 1 or header.params:
        raise ProtocolError(f"{header.codec}: one part and no parameters expected")
    return parts[0]


def shuffled(array: Array) -> Buffer:
    """Bytes of a C-contiguous array, all first bytes of the elements first, then all second ones, ..."""
    data = bytes_of(array)
    if array.dtype.itemsize == 1 or array.size < 2:
        return data.data
    return kernels.shuffle(data, array.dtype.itemsize).data


def unshuffled(data: Buffer, itemsize: int) -> Buffer:
    """Inverse of :func:`shuffled`."""
    if itemsize == 1 or len(data) <= itemsize:
        return data
    return kernels.unshuffle(np.frombuffer(data, np.uint8), itemsize).data


def _encode_raw(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    return {}, [bytes_of(array).data]


def _decode_raw(header: Header, kind: str, parts: List[memoryview]) -> Array:
    return array_from(one_part(header, parts), header)


def _encode_shuffle(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    return {}, [compressors.compress(kind, shuffled(array))]


def _decode_shuffle(header: Header, kind: str, parts: List[memoryview]) -> Array:
    plain = compressors.expand(kind, one_part(header, parts), header.nbytes)
    return array_from(unshuffled(plain, header.dtype.itemsize), header)


def _any_array(dtype: np.dtype[Any], shape: Tuple[int, ...]) -> bool:
    return True


RAW = Method("raw", "the memory as it is", ("",), True, _encode_raw, _decode_raw, _any_array)
SHUFFLE = Method(
    "shuffle", "bytes of equal weight together", ("zstd", "lz4"), True, _encode_shuffle, _decode_shuffle, _any_array
)
