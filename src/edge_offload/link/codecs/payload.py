"""What travels: a descriptor (dtype, shape, codec) and the checks that bound it before anything is allocated."""

from __future__ import annotations

import sys
from collections import abc
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, ProtocolError

DTYPES: Dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
}  # fmt: skip
"""The dtypes that may travel. Anything else (objects, strings, records, dates, big-endian) is refused."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
"""Largest array that :func:`edge_offload.link.codecs.decode` makes unless told otherwise (bytes)."""

Buffer = Union[bytes, bytearray, memoryview]
Params = Dict[str, Any]

_KEYS = {"codec", "dtype", "shape", "params", "stream", "lossy"}


@dataclass(frozen=True)
class Encoded:
    """One array, ready to send.

    Attributes:
        descriptor: plain dict (strings, ints, lists) that msgpack or JSON can carry.
        buffers: bytes-like parts, in the order that ``decode`` wants them. They may alias the array that was encoded
            (codec ``raw``): do not write to it before the parts have left.
    """

    descriptor: Dict[str, Any]
    buffers: List[Buffer]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts together, without the descriptor."""
        return sum(memoryview(part).nbytes for part in self.buffers)


@dataclass(frozen=True)
class Header:
    """A descriptor after its checks: the array that it declares fits in memory."""

    codec: str
    dtype: np.dtype[Any]
    shape: Tuple[int, ...]
    params: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        product = 1
        for extent in self.shape:
            product *= extent
        return product

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded array."""
        return self.size * self.dtype.itemsize


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The dtype's name, from a table: numpy makes it anew each time."""
    return _NAMES.get(dtype) or str(dtype.name)


def check_array(array: Array) -> Array:
    """``array`` as C-contiguous memory of the same shape and bits (a copy only where needed).

    Raises:
        BadInput: not an array, a dtype that does not travel, or big-endian.
    """
    if not isinstance(array, np.ndarray):
        raise BadInput(f"cannot encode a {type(array).__name__}", remedy="pass a numpy array")
    if dtype_name(array.dtype) not in DTYPES:
        raise BadInput(f"dtype {array.dtype} does not travel", remedy=f"use one of {', '.join(DTYPES)}")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        raise BadInput("big-endian arrays do not travel", remedy="array.astype(array.dtype.newbyteorder('<'))")
    if type(array) is not np.ndarray:
        array = array.view(np.ndarray)
    return array if array.flags.c_contiguous else array.copy(order="C")


def bytes_of(array: Array) -> Array:
    """The memory of a C-contiguous array as uint8 [nbytes], without a copy."""
    return array.reshape(-1).view(np.uint8)


def array_from(data: Any, header: Header) -> Array:
    """Array over ``data`` (bytes-like of exactly ``header.nbytes``), without a copy.

    Raises:
        ProtocolError: ``data`` has another length.
    """
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    if view.nbytes != header.nbytes:
        raise ProtocolError(f"{header.codec}: {view.nbytes} bytes where the shape needs {header.nbytes}")
    if header.size == 0:
        return np.empty(header.shape, header.dtype)
    return np.frombuffer(view, dtype=header.dtype).reshape(header.shape)


def check_descriptor(descriptor: Mapping[str, Any], max_bytes: int) -> Header:
    """Parse a descriptor off the wire.

    Raises:
        ProtocolError: a key, type or size that is not allowed, or more than ``max_bytes`` once decoded.
    """
    if not isinstance(descriptor, abc.Mapping):
        raise ProtocolError(f"payload descriptor is a {type(descriptor).__name__}, not a map")
    if not {"codec", "dtype", "shape"} <= set(descriptor) or not set(descriptor) <= _KEYS:
        raise ProtocolError(f"payload descriptor has keys {sorted(map(str, descriptor))[:8]}")
    codec, dtype, shape = descriptor["codec"], descriptor["dtype"], descriptor["shape"]
    params = descriptor.get("params", {})
    if not (isinstance(codec, str) and isinstance(dtype, str)):
        raise ProtocolError("payload descriptor: codec and dtype are strings")
    if dtype not in DTYPES:
        raise ProtocolError(f"payload dtype {dtype[:32]!r} is not allowed")
    if not isinstance(params, abc.Mapping) or not all(isinstance(key, str) for key in params):
        raise ProtocolError("payload descriptor: params is a map of names")
    if not isinstance(shape, (list, tuple)) or len(shape) > 32:  # as in numpy
        raise ProtocolError("payload descriptor: shape is a list of at most 32 sizes")
    product = DTYPES[dtype].itemsize
    empty_limit = 1 << 40  # numpy refuses far larger empty arrays by a ValueError
    for extent in shape:
        if type(extent) is not int or not 0 <= extent <= empty_limit:
            raise ProtocolError("payload descriptor: every size is a non-negative integer")
        product *= max(extent, 1)
        if product > max(max_bytes, empty_limit if 0 in shape else 0):
            raise ProtocolError(f"payload would decode to more than the {max_bytes} bytes allowed")
    return Header(codec, DTYPES[dtype], tuple(shape), params)


def check_buffers(buffers: Sequence[Any]) -> List[memoryview]:
    """Every part as a flat read view.

    Raises:
        ProtocolError: not a list of contiguous bytes-like parts.
    """
    if not isinstance(buffers, (list, tuple)):
        raise ProtocolError("payload parts are a list of buffers")
    views = []
    for part in buffers:
        try:
            view = memoryview(part)
            views.append(view.cast("B") if view.nbytes else memoryview(b""))
        except TypeError as error:
            raise ProtocolError(f"payload part is not bytes: {error}") from error
    return views


def take_int(params: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """Integer parameter ``key`` in ``low..high``.

    Raises:
        ProtocolError: missing, of another type, or out of range.
    """
    value = params.get(key)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"payload parameter {key} is not an integer in {low}..{high}")
    return value


def one_part(header: Header, parts: List[memoryview]) -> memoryview:
    """The only part of a payload.

    Raises:
        ProtocolError: none or several, or parameters where there are none.
    """
    if len(parts) != 1 or header.params:
        raise ProtocolError(f"{header.codec}: one part and no parameters expected")
    return parts[0]
