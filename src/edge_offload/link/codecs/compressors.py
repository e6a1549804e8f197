"""Byte compressors under the codecs: zstd and lz4, with output sizes known before anything is allocated.

And the shuffle before them, which puts bytes of equal weight together.
"""

from __future__ import annotations

import threading
from typing import Any

import lz4.block
import numpy as np
import zstandard

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, ProtocolError
from edge_offload.link.codecs import kernels
from edge_offload.link.codecs.payload import Buffer, bytes_of

KINDS = ("", "lz4", "zstd")
"""'' stores the bytes as they are."""

ZSTD_LEVEL = 1  # the fastest level that still codes literals by Huffman
# Residuals of images hold few matches worth having: a tiny hash table leaves more to the Huffman stage, which is both
# smaller (3.09x instead of 2.93x on a video frame) and faster (345 instead of 247 MB/s) than level 1 as it is.
_RESIDUAL = {"window_log": 17, "hash_log": 6, "chain_log": 6, "min_match": 7, "target_length": 0, "strategy": 1}
_LZ4_LIMIT = 0x7E000000  # LZ4_MAX_INPUT_SIZE
_LZ4_EXPANSION = 255  # a length byte adds at most 255 bytes of output
_ZSTD_BLOCK = 128 * 1024  # one zstd block (3 header bytes and more) makes at most this much

_local = threading.local()  # (de)compressor contexts must not be shared between threads


def compress(kind: str, data: Any, residual: bool = False) -> Buffer:
    """``data`` (contiguous bytes-like) coded by ``kind``. Releases the GIL.

    Args:
        kind: name of the coder.
        data: what is coded.
        residual: the bytes are what a predictor left over; changes speed and size, not the format.

    Raises:
        BadInput: more than 2 GB for lz4.
    """
    if kind == "zstd":
        coded: bytes = _zstd_compressor(residual).compress(data)
        return coded
    if kind == "lz4":
        if memoryview(data).nbytes > _LZ4_LIMIT:
            raise BadInput("lz4 codes at most 2 GB at once", remedy="use zstd")
        coded = lz4.block.compress(data, store_size=False)
        return coded
    return memoryview(data)


def _zstd_compressor(residual: bool) -> Any:
    name = "residual_compressor" if residual else "compressor"
    made = getattr(_local, name, None)
    if made is None:
        parameters = zstandard.ZstdCompressionParameters.from_level(ZSTD_LEVEL, **(_RESIDUAL if residual else {}))
        made = zstandard.ZstdCompressor(compression_params=parameters)
        setattr(_local, name, made)
    return made


def expand(kind: str, coded: memoryview, size: int) -> Buffer:
    """Exactly ``size`` bytes out of ``coded``. The caller has bounded ``size``. Releases the GIL.

    Raises:
        ProtocolError: damaged, or another size than promised.
    """
    try:
        if kind == "zstd":
            return _expand_zstd(coded, size)
        if kind == "lz4":
            if size > _LZ4_EXPANSION * max(coded.nbytes, 1):
                raise ProtocolError(f"lz4: {coded.nbytes} bytes cannot hold {size}")
            plain: Buffer = lz4.block.decompress(coded, uncompressed_size=size) if size else b""
        else:
            plain = coded
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, OverflowError, MemoryError) as error:
        raise ProtocolError(f"damaged {kind} payload: {error}") from error
    if len(plain) != size:
        raise ProtocolError(f"{kind or 'stored'} payload holds {len(plain)} bytes instead of {size}")
    return plain


def _expand_zstd(coded: memoryview, size: int) -> Buffer:
    # the frame's own claim decides how much zstandard allocates: hold it against the shape first
    claimed = zstandard.get_frame_parameters(coded).content_size
    if claimed != size:
        raise ProtocolError(f"zstd payload claims {claimed} bytes instead of {size}")
    if size > (coded.nbytes // 3 + 1) * _ZSTD_BLOCK:
        raise ProtocolError(f"zstd: {coded.nbytes} bytes cannot hold {size}")
    decompressor = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    plain: bytes = decompressor.decompress(coded, max_output_size=size, allow_extra_data=False)
    if len(plain) != size:
        raise ProtocolError(f"zstd payload holds {len(plain)} bytes instead of {size}")
    return plain


def shuffle_bytes(array: Array) -> Buffer:
    """Bytes of a C-contiguous array, all first bytes of the elements first, then all second ones, ..."""
    data = bytes_of(array)
    if array.dtype.itemsize == 1 or array.size < 2:
        return data.data
    return kernels.shuffle(data, array.dtype.itemsize).data


def unshuffle_bytes(data: Buffer, itemsize: int) -> Buffer:
    """Inverse of :func:`shuffle_bytes`."""
    if itemsize == 1 or len(data) <= itemsize:
        return data
    return kernels.unshuffle(np.frombuffer(data, np.uint8), itemsize).data
