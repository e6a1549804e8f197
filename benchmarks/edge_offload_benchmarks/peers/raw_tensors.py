"""Tensors as bytes, as a program would send them through a framework of calls: a header, then the values."""

from __future__ import annotations

import struct
from typing import List, Sequence, Tuple

import numpy as np
import torch

DTYPES = ("float32", "uint8", "int64", "int32", "float64", "bool")


def pack_tensors(tensors: Sequence[torch.Tensor]) -> bytes:
    """One message of several tensors."""
    parts = [struct.pack("<I", len(tensors))]
    for tensor in tensors:
        values = tensor.contiguous().numpy()
        parts.append(struct.pack(f"<II{values.ndim}I", DTYPES.index(values.dtype.name), values.ndim, *values.shape))
        parts.append(values.tobytes())
    return b"".join(parts)


def unpack_tensors(message: bytes) -> List[torch.Tensor]:
    """The tensors of a message; they share its memory until they are written to."""
    buffer, (count,), at = bytearray(message), struct.unpack_from("<I", message), 4
    tensors = []
    for _ in range(count):
        kind, dimensions = struct.unpack_from("<II", buffer, at)
        shape: Tuple[int, ...] = struct.unpack_from(f"<{dimensions}I", buffer, at + 8)
        values = np.frombuffer(buffer, DTYPES[kind], int(np.prod(shape)), at + 8 + 4 * dimensions)
        at += 8 + 4 * dimensions + values.nbytes
        tensors.append(torch.from_numpy(values.reshape(shape)))
    return tensors
