"""Inner loops of the codecs in numpy: what ``kernels.c`` computes, bit for bit, where there is no C compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array

NONE, LEFT, GRADIENT, PAETH = range(4)
PREDICTORS = {"none": NONE, "left": LEFT, "gradient": GRADIENT, "paeth": PAETH}
PALETTE_LIMIT = 256


@dataclass(frozen=True)
class Frame:
    """A stack of 8-bit images and how its residual is formed.

    Attributes:
        images, channels, height, width: extents, all positive.
        interleaved: memory order is [images, height, width, channels] instead of [images, channels, height, width].
        predictor: a value of :data:`PREDICTORS`, from the left (a), upper (b) and upper left (c) neighbours, 0 outside:
            a, a + b - c, or whichever of a, b, c is nearest to that (PNG specification, section 9.4).
        colour: residuals of channels 0 and 2 are sent as differences to channel 1 (needs 3 channels).
    """

    images: int
    channels: int
    height: int
    width: int
    interleaved: bool
    predictor: int
    colour: bool

    @property
    def size(self) -> int:
        """Bytes of the stack."""
        return self.images * self.channels * self.height * self.width


def residual(pixels: Array, frame: Frame) -> Array:
    """Pixels (uint8, flat) -> residual planes (uint8, flat) [images, channels, height, width], modulo 256."""
    x = split_planes(pixels, frame)
    if frame.predictor == NONE:
        r = x.copy()
    elif frame.predictor == LEFT:
        r = x.copy()
        r[..., 1:] -= x[..., :-1]
    elif frame.predictor == GRADIENT:
        r = x.copy()
        r[..., 1:, :] -= x[..., :-1, :]
        r[..., 1:] -= x[..., :-1]
        r[..., 1:, 1:] += x[..., :-1, :-1]
    else:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (1, 0)))
        r = x - _predict_paeth(padded[..., 1:, :-1], padded[..., :-1, 1:], padded[..., :-1, :-1])
    if frame.colour:
        r[:, 0] -= r[:, 1]
        r[:, 2] -= r[:, 1]
    return r.reshape(-1)


def pixels(planes: Array, frame: Frame) -> Array:
    """Inverse of :func:`residual`."""
    r = planes.reshape(frame.images, frame.channels, frame.height, frame.width)
    if frame.colour:
        r = r.copy()
        r[:, 0] += r[:, 1]
        r[:, 2] += r[:, 1]
    if frame.predictor == NONE:
        x = r
    elif frame.predictor == LEFT:
        x = np.cumsum(r, axis=3, dtype=np.uint8)
    elif frame.predictor == GRADIENT:
        x = np.cumsum(np.cumsum(r, axis=3, dtype=np.uint8), axis=2, dtype=np.uint8)
    else:
        x = _restore_paeth(r)
    if frame.interleaved:
        x = x.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(x).reshape(-1)


def split_planes(pixels: Array, frame: Frame) -> Array:
    """Return pixels (uint8, flat) as [images, channels, height, width]."""
    if frame.interleaved:
        stack = pixels.reshape(frame.images, frame.height, frame.width, frame.channels).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(stack)
    return pixels.reshape(frame.images, frame.channels, frame.height, frame.width)


def _predict_paeth(a: Array, b: Array, c: Array) -> Array:
    a, b, c = a.astype(np.int16), b.astype(np.int16), c.astype(np.int16)
    da, db, dc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
    nearest: Array = np.where((da <= db) & (da <= dc), a, np.where(db <= dc, b, c)).astype(np.uint8)
    return nearest


def _restore_paeth(r: Array) -> Array:
    images, channels, height, width = r.shape
    x = np.zeros((images * channels, height + 1, width + 1), np.uint8)
    r = r.reshape(images * channels, height, width)
    # all pixels of an anti-diagonal depend on earlier anti-diagonals only
    for diagonal in range(height + width - 1):
        rows = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        columns = diagonal - rows
        a, b, c = x[:, rows + 1, columns], x[:, rows, columns + 1], x[:, rows, columns]
        x[:, rows + 1, columns + 1] = r[:, rows, columns] + _predict_paeth(a, b, c)
    return x[:, 1:, 1:].reshape(images, channels, height, width)


def shuffle(data: Array, item: int) -> Array:
    """uint8 [count * item] -> [item * count]: all first bytes of the elements, then all second ones, ..."""
    return np.ascontiguousarray(data.reshape(-1, item).T).reshape(-1)


def unshuffle(data: Array, item: int) -> Array:
    """Inverse of :func:`shuffle`."""
    return np.ascontiguousarray(data.reshape(item, -1).T).reshape(-1)


def palette(bits: Array, kind: str, limit: int) -> Optional[Tuple[Array, List[Array]]]:
    """Distinct values per channel and the index of each element's value.

    Args:
        bits: unsigned integers [outer, channels, inner], C-contiguous: the bit patterns of the values.
        kind: dtype kind of the values (``u i f b``): the palette is ascending in the values' own order, with -0.0
            before 0.0 and NaNs outermost.
        limit: most values in a palette, at most 256.

    Returns:
        (indices uint8 flat, one array of bit patterns per channel), or None where a channel has more than ``limit``.
    """
    index = np.empty(bits.shape, np.uint8)
    palettes = []
    for channel in range(bits.shape[1]):
        keys = order_keys(bits[:, channel], kind)
        if len(np.unique(keys.reshape(-1)[:4096])) > limit:
            return None  # most arrays of many values say so at once
        values, where = np.unique(keys, return_inverse=True)
        if len(values) > limit:
            return None
        index[:, channel] = where.reshape(keys.shape)
        palettes.append(bits_of_keys(values, kind))
    return index.reshape(-1), palettes


def order_keys(bits: Array, kind: str) -> Array:
    """Unsigned integers that sort like the values whose bit patterns are ``bits``."""
    sign = _sign_bit(bits)
    keys: Array = bits
    if kind == "i":
        keys = bits ^ sign
    elif kind == "f":
        keys = np.where(bits & sign, ~bits, bits ^ sign)
    return keys


def bits_of_keys(keys: Array, kind: str) -> Array:
    """Inverse of :func:`order_keys`."""
    sign = _sign_bit(keys)
    bits: Array = keys
    if kind == "i":
        bits = keys ^ sign
    elif kind == "f":
        bits = np.where(keys & sign, keys ^ sign, ~keys)
    return bits


def _sign_bit(values: Array) -> Any:
    return values.dtype.type(1 << (8 * values.dtype.itemsize - 1))


def gather(index: Array, palettes: Array, outer: int, inner: int) -> Array:
    """Values of uint8 indices (flat): ``palettes`` is [channels, 256]; the result is flat, of the palettes' dtype."""
    channels = len(palettes)
    index = index.reshape(outer, channels, inner)
    values = np.empty(index.shape, palettes.dtype)
    for channel in range(channels):
        values[:, channel] = palettes[channel][index[:, channel]]
    return values.reshape(-1)
