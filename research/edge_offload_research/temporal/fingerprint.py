"""A 64-bit fingerprint of an array's bytes, fast in plain numpy: guards against references that differ, not attackers.

Multiply-and-add with pseudo-random odd weights modulo 2**64 over blocks, then once more over the blocks' sums.
"""

from __future__ import annotations

import numpy as np

from edge_offload.arrays import Array
from edge_offload.link.codecs.payload import bytes_of

_BLOCK = 4096  # words of 8 bytes


def _make_weights(start: int, count: int) -> Array:
    """Odd uint64 weights number ``start`` ... of one fixed pseudo-random sequence (splitmix64)."""
    z = (np.arange(start + 1, start + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: Array = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return odd


_WITHIN = _make_weights(0, _BLOCK)


def fingerprint_array(array: Array) -> int:
    """Fingerprint of the memory of a C-contiguous array. Dtype and shape do not enter."""
    data = bytes_of(array)
    aligned = data.size // (8 * _BLOCK) * 8 * _BLOCK
    tail = np.zeros(8 * _BLOCK, np.uint8)
    tail[: data.size - aligned] = data[aligned:]
    sums = np.concatenate([_block_sums(data[:aligned]), _block_sums(tail), np.array([data.size], np.uint64)])
    return int(np.einsum("i,i->", sums, _make_weights(_BLOCK, sums.size)))


def _block_sums(data: Array) -> Array:
    values = data.view(np.uint64).reshape(-1, _BLOCK)
    # high bits of a word would only reach high bits of the product: fold them down first
    sums: Array = np.einsum("ij,j->i", values ^ (values >> np.uint64(32)), _WITHIN)
    return sums
