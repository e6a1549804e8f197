"""Few values in few bits (``bits``), and mostly zeros as a tree of occupancy masks (``sparse``)."""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import ProtocolError
from edge_offload.link.codecs import compressors, kernels
from edge_offload.link.codecs.compressors import shuffle_bytes, unshuffle_bytes
from edge_offload.link.codecs.method import Coded, Method, NotApplicable
from edge_offload.link.codecs.palette import view_unsigned
from edge_offload.link.codecs.payload import Buffer, Header, array_from, take_int

MOST_VALUES = 16
_MOST_LEVELS = 6


def _bits_per_element(values: int) -> int:
    """Bits per element for so many distinct values."""
    return 0 if values == 1 else 1 if values == 2 else 2 if values <= 4 else 4


def _encode_bits(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    if not _suits_bits(array.dtype, array.shape):
        raise NotApplicable(f"{array.dtype.name} {list(array.shape)} cannot be packed into bits")
    flat = view_unsigned(array)
    if flat.dtype.itemsize == 1 and int(flat.max()) == 1:
        index, values = flat, [0, 1]  # occupancy and masks: no search for the values
    else:
        palette = kernels.palette(flat.reshape(1, 1, -1), array.dtype.kind, MOST_VALUES)
        if palette is None:
            raise NotApplicable(f"more than {MOST_VALUES} distinct values")
        index, values = palette[0], [int(value) for value in palette[1][0]]
    return {"values": values}, [compressors.compress(kind, pack_bits(index, _bits_per_element(len(values))))]


def pack_bits(index: Array, width: int) -> Array:
    """uint8 indices below 2**width -> bytes, first element in the lowest bits."""
    if width == 0:
        return index[:0]
    if width == 1:
        return np.packbits(index, bitorder="little")
    slots = 8 // width
    if index.size % slots:
        index = np.concatenate([index, np.zeros(-index.size % slots, np.uint8)])
    packed = index[0::slots].copy()
    for slot in range(1, slots):
        packed |= index[slot::slots] << np.uint8(width * slot)
    return packed


def unpack_bits(packed: Array, width: int, size: int) -> Array:
    """Inverse of :func:`pack_bits`: uint8 [size]."""
    if width == 0:
        return np.zeros(size, np.uint8)
    if width == 1:
        return np.unpackbits(packed, count=size, bitorder="little")
    slots, mask = 8 // width, np.uint8((1 << width) - 1)
    index = np.empty((packed.size, slots), np.uint8)
    for slot in range(slots):
        index[:, slot] = (packed >> np.uint8(width * slot)) & mask
    return index.reshape(-1)[:size]


def _decode_bits(header: Header, kind: str, parts: List[memoryview]) -> Array:
    values = header.params.get("values")
    if len(parts) != 1 or set(header.params) != {"values"} or not isinstance(values, (list, tuple)):
        raise ProtocolError(f"{header.codec}: one part and a list of values expected")
    item = header.dtype.itemsize
    if not 1 <= len(values) <= MOST_VALUES or not all(
        type(value) is int and 0 <= value < 1 << (8 * item) for value in values
    ):
        raise ProtocolError(f"{header.codec}: 1 to {MOST_VALUES} bit patterns of {item} bytes expected")
    width = _bits_per_element(len(values))
    packed = np.frombuffer(compressors.expand(kind, parts[0], -(-header.size * width // 8)), np.uint8)
    index = unpack_bits(packed, width, header.size)
    if len(values) < 1 << width and int(index.max()) >= len(values):
        raise ProtocolError(f"{header.codec}: an index points past its {len(values)} values")
    if item == 1 and list(values) == [0, 1]:
        return array_from(index, header)
    table = np.zeros((1, 256), np.dtype(f"u{item}"))
    table[0, : len(values)] = values
    return array_from(kernels.gather(index, table, 1, header.size).view(np.uint8), header)


def _suits_bits(dtype: np.dtype[Any], shape: Tuple[int, ...]) -> bool:
    return dtype.itemsize <= 8 and 0 not in shape


def _encode_sparse(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    if not _suits_bits(array.dtype, array.shape):
        raise NotApplicable(f"{array.dtype.name} {list(array.shape)} has no sparse form")
    flat = view_unsigned(array)
    occupied = flat != 0
    parts: List[Buffer] = [compressors.compress(kind, shuffle_bytes(flat[occupied]))]
    mask = np.packbits(occupied, bitorder="little")
    levels = 0
    # below 64 bytes of mask another level costs more than it saves
    while levels < _MOST_LEVELS and mask.size >= 64:
        occupied = mask != 0
        if 4 * int(np.count_nonzero(occupied)) > 3 * mask.size:
            break
        parts.append(compressors.compress(kind, mask[occupied]))
        mask = np.packbits(occupied, bitorder="little")
        levels += 1
    parts.append(compressors.compress(kind, mask))
    return {"levels": levels}, parts


def _decode_sparse(header: Header, kind: str, parts: List[memoryview]) -> Array:
    if set(header.params) != {"levels"}:
        raise ProtocolError(f"{header.codec}: one parameter expected")
    levels = take_int(header.params, "levels", 0, _MOST_LEVELS)
    if len(parts) != levels + 2:
        raise ProtocolError(f"{header.codec}: {levels + 2} parts expected")
    sizes = [header.size]  # elements, then bytes of every mask above them
    for _ in range(levels + 1):
        sizes.append(-(-sizes[-1] // 8))
    masks = np.frombuffer(compressors.expand(kind, parts[-1], sizes[-1]), np.uint8)
    where = np.flatnonzero(np.unpackbits(masks, count=sizes[-2], bitorder="little"))
    for level in range(levels, 0, -1):
        # `where` are the positions of the non-zero bytes of this mask: their bits are positions one level down
        leaves = np.frombuffer(compressors.expand(kind, parts[level], where.size), np.uint8)
        rows, bits = np.nonzero(np.unpackbits(leaves.reshape(-1, 1), axis=1, bitorder="little"))
        where = where[rows] * 8 + bits
    if where.size and int(where[-1]) >= header.size:
        raise ProtocolError(f"{header.codec}: a position lies outside the array")
    item = header.dtype.itemsize
    values = unshuffle_bytes(compressors.expand(kind, parts[0], where.size * item), item)
    flat = np.zeros(header.size, np.dtype(f"u{item}"))
    flat[where] = np.frombuffer(values, flat.dtype)
    return array_from(flat.view(np.uint8), header)


BITS = Method(
    "bits", f"at most {MOST_VALUES} distinct values", ("", "zstd", "lz4"), True, _encode_bits, _decode_bits, _suits_bits
)
SPARSE = Method("sparse", "mostly zeros", ("zstd", "lz4"), True, _encode_sparse, _decode_sparse, _suits_bits)
