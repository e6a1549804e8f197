"""Blocks of images that are coded by the gradient or by the difference to a reference: compiled where possible.

``native/blocks.c`` is built on first use; numpy computes the same bits where it cannot be.
"""

from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.link.codecs import kernels
from edge_offload.link.codecs.kernels.portable import NONE, Frame, split_planes
from edge_offload.native.loader import Library
from edge_offload.native.recipe import Recipe

BLOCK = 16  # pixels on a side
_library = Library(
    Recipe(
        "edge_offload_blocks", "blocks of the temporal codec", pathlib.Path(__file__).parent / "native" / "blocks.c",
        ("-O3", "-fno-strict-aliasing"), language="C", processor=True,
    ),
    switch="EDGE_OFFLOAD_NATIVE",
)  # fmt: skip


def _load_module() -> Optional[Any]:
    """Return the compiled functions, built if need be; None where they cannot be."""
    if _library.module is None and _library.look() is None:
        _library.start()
        _library.wait()
        _library.look()
    return _library.module


def blend(temporal: Array, spatial: Array, frame: Frame) -> Tuple[Array, Array]:
    """As :func:`blend_plainly`; ``temporal`` may be overwritten."""
    module = _load_module()
    if module is None:
        return blend_plainly(temporal, spatial, frame)
    images, down, across = block_grid(frame)
    choice = np.empty(images * down * across, np.uint8)
    module.blend(temporal, spatial, choice, frame.images, frame.channels, frame.height, frame.width)
    return temporal, choice


def unblend(planes: Array, reference: Array, choice: Array, frame: Frame) -> Array:
    """As :func:`unblend_plainly`."""
    module = _load_module()
    if module is None:
        return unblend_plainly(planes, reference, choice, frame)
    out = np.empty(frame.size, np.uint8)
    residuals = _restore_layout(planes, frame)
    extents = (frame.images, frame.channels, frame.height, frame.width, frame.interleaved)
    module.unblend(residuals, reference, choice, out, *extents)
    return out


def block_grid(frame: Frame) -> Tuple[int, int, int]:
    """(images, rows, columns) of the blocks of a frame."""
    return frame.images, -(-frame.height // BLOCK), -(-frame.width // BLOCK)


def blend_plainly(temporal: Array, spatial: Array, frame: Frame) -> Tuple[Array, Array]:
    """Temporal residual planes with the blocks of the gradient's residual planes that are smaller.

    Returns:
        (planes uint8 flat, choice uint8 flat of :func:`block_grid`: 1 where the block is spatial).
    """
    shape = (frame.images, frame.channels, frame.height, frame.width)
    efforts = [_block_effort(planes.reshape(shape)) for planes in (temporal, spatial)]
    choice = efforts[1] < efforts[0]
    pixels = _per_pixel(choice, frame)
    mixed = np.where(pixels[:, None], spatial.reshape(shape), temporal.reshape(shape))
    return mixed.reshape(-1), choice.view(np.uint8).reshape(-1)


def _block_effort(planes: Array) -> Array:
    images, _, height, width = planes.shape
    padded = np.zeros((images, -(-height // BLOCK) * BLOCK, -(-width // BLOCK) * BLOCK), np.int64)
    padded[:, :height, :width] = np.abs(planes.view(np.int8).astype(np.int64)).sum(axis=1)
    blocks: Array = padded.reshape(images, padded.shape[1] // BLOCK, BLOCK, -1, BLOCK).sum(axis=(2, 4))
    return blocks


def _per_pixel(choice: Array, frame: Frame) -> Array:
    wide = np.repeat(np.repeat(choice.reshape(block_grid(frame)), BLOCK, axis=1), BLOCK, axis=2)
    return wide[:, : frame.height, : frame.width].astype(bool)


def _restore_layout(planes: Array, frame: Frame) -> Array:
    """Residual planes as residuals in the order of the pixels, none a difference to another channel."""
    return kernels.pixels(planes, replace(frame, predictor=NONE))


def unblend_plainly(planes: Array, reference: Array, choice: Array, frame: Frame) -> Array:
    """Inverse of :func:`blend_plainly`: pixels out of planes, the reference's pixels and the choice (uint8, flat)."""
    r = split_planes(_restore_layout(planes, frame), frame)
    before, spatial = split_planes(reference, frame), _per_pixel(choice, frame)
    x = np.zeros_like(r)
    up = np.zeros_like(r[:, :, 0])
    column = np.arange(frame.width)
    for y in range(frame.height):
        # with d = x - up, a spatial pixel adds its residual to d of the pixel before; a temporal one sets d anew
        mine = spatial[:, None, y]
        restored = before[:, :, y] + r[:, :, y] - up
        sums = np.cumsum(np.where(mine, r[:, :, y], 0), axis=-1, dtype=np.uint8)
        last = np.maximum.accumulate(np.where(mine, -1, column), axis=-1) + np.zeros_like(r[:, :, y], dtype=int)
        start = np.take_along_axis(restored - sums, np.maximum(last, 0), axis=-1)
        d = np.where(mine, sums + np.where(last >= 0, start, np.uint8(0)), restored)
        x[:, :, y] = up = d + up
    if frame.interleaved:
        x = x.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(x).reshape(-1)
