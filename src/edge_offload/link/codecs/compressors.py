"""Byte compressors that the codecs use: zstd and lz4, with output sizes checked before memory is taken.

Also the byte shuffle that precedes them: it groups bytes by their position in an element.
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
"""Names of the compressors; '' stores the bytes as they are."""

# Residuals of images have few useful matches, so a tiny hash table leaves more to the Huffman stage. On a video frame
# that compresses more than the defaults of level 1 (3.09x instead of 2.93x), and faster (345 instead of 247 MB/s).
_RESIDUAL = {"window_log": 17, "hash_log": 6, "chain_log": 6, "min_match": 7, "target_length": 0, "strategy": 1}

_local = threading.local()  # (de)compressor contexts must not be shared between threads


def compress(kind: str, data: Any, residual: bool = False) -> Buffer:
    """``data``, compressed. Releases the GIL.

    Args:
        kind: one of :data:`KINDS`.
        data: contiguous and bytes-like.
        residual: the bytes are a predictor's residuals. This changes speed and size, not the format.

    Raises:
        BadInput: more than 2 GB for lz4.
    """
    if kind == "zstd":
        coded: bytes = _zstd_compressor(residual).compress(data)
        return coded
    if kind == "lz4":
        # LZ4_MAX_INPUT_SIZE
        if memoryview(data).nbytes > 0x7E000000:
            raise BadInput("lz4 codes at most 2 GB at once", remedy="use zstd")
        coded = lz4.block.compress(data, store_size=False)
        return coded
    return memoryview(data)


def _zstd_compressor(residual: bool) -> Any:
    name = "residual_compressor" if residual else "compressor"
    compressor = getattr(_local, name, None)
    if compressor is None:
        # 1: the fastest level that still codes literals by Huffman
        parameters = zstandard.ZstdCompressionParameters.from_level(1, **(_RESIDUAL if residual else {}))
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
        setattr(_local, name, compressor)
    return compressor


def expand(kind: str, coded: memoryview, size: int) -> Buffer:
    """``coded``, decompressed to exactly ``size`` bytes, which the caller has bounded. Releases the GIL.

    Raises:
        ProtocolError: ``coded`` is damaged, or does not hold ``size`` bytes.
    """
    try:
        if kind == "zstd":
            return _expand_zstd(coded, size)
        if kind == "lz4":
            # a length byte adds at most 255 bytes of output
            if size > 255 * max(coded.nbytes, 1):
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
    # zstandard allocates as many bytes as the frame's header claims: compare that with ``size`` first
    claimed = zstandard.get_frame_parameters(coded).content_size
    if claimed != size:
        raise ProtocolError(f"zstd payload claims {claimed} bytes instead of {size}")
    # one zstd block (3 header bytes and more) makes at most 128 KiB
    if size > (coded.nbytes // 3 + 1) * (128 * 1024):
        raise ProtocolError(f"zstd: {coded.nbytes} bytes cannot hold {size}")
    decompressor = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    plain: bytes = decompressor.decompress(coded, max_output_size=size, allow_extra_data=False)
    if len(plain) != size:
        raise ProtocolError(f"zstd payload holds {len(plain)} bytes instead of {size}")
    return plain


def shuffle_bytes(array: Array) -> Buffer:
    """Bytes of a C-contiguous array, regrouped: the first byte of each element, then the second of each, and so on."""
    data = bytes_of(array)
    if array.dtype.itemsize == 1 or array.size < 2:
        return data.data
    return kernels.shuffle(data, array.dtype.itemsize).data


def unshuffle_bytes(data: Buffer, itemsize: int) -> Buffer:
    """Inverse of :func:`shuffle_bytes`; ``itemsize``: bytes of an element."""
    if itemsize == 1 or len(data) <= itemsize:
        return data
    return kernels.unshuffle(np.frombuffer(data, np.uint8), itemsize).data
