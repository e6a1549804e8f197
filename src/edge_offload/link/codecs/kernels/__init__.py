"""Inner loops of the codecs: compiled where possible, numpy otherwise, with the same bits from both.

``kernels.c`` is built in the background on first use. ``EDGE_OFFLOAD_NATIVE=0`` keeps to numpy.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.link.codecs.kernels import portable
from edge_offload.link.codecs.kernels.portable import Frame
from edge_offload.native.libraries import CODECS
from edge_offload.native.loader import Library

_library = Library(CODECS, switch="EDGE_OFFLOAD_NATIVE")
_TYPE_CODE = {"i": 1, "f": 2}  # order of a palette; unsigned and bool: 0


def prepare() -> str:
    """Build the compiled kernels now instead of beside the first frames; returns :func:`status`."""
    if _module() is None:
        _library.wait()
    return status()


def status() -> str:
    """One line for ``doctor``: which kernels serve, and why not the compiled ones."""
    if _module() is not None:
        return "compiled kernels"
    if _library.why_not:
        return f"numpy kernels (slower, same bits): {_library.why_not}"
    return "numpy kernels while the compiled ones are being built"


def _module() -> Optional[Any]:
    """The compiled kernels, or None while they are being built and where they cannot be."""
    if _library.module is None and _library.look() is None:
        _library.start()
    return _library.module


def residual(pixels: Array, frame: Frame) -> Array:
    """See :func:`portable.residual`."""
    return _frame_call("residual", portable.residual, pixels, frame)


def pixels(planes: Array, frame: Frame) -> Array:
    """See :func:`portable.pixels`."""
    return _frame_call("pixels", portable.pixels, planes, frame)


def _frame_call(name: str, fallback: Any, data: Array, frame: Frame) -> Array:
    module = _module()
    if module is None:
        plain: Array = fallback(data, frame)
        return plain
    out = np.empty(data.size, np.uint8)
    getattr(module, name)(
        data, out, frame.images, frame.channels, frame.height, frame.width,
        frame.interleaved, frame.predictor, frame.colour,
    )  # fmt: skip
    return out


def shuffle(data: Array, item: int) -> Array:
    """See :func:`portable.shuffle`."""
    module = _module()
    if module is None:
        return portable.shuffle(data, item)
    out = np.empty(data.size, np.uint8)
    module.shuffle(data, out, item)
    return out


def unshuffle(data: Array, item: int) -> Array:
    """See :func:`portable.unshuffle`."""
    module = _module()
    if module is None:
        return portable.unshuffle(data, item)
    out = np.empty(data.size, np.uint8)
    module.unshuffle(data, out, item)
    return out


def palette(bits: Array, kind: str, limit: int) -> Optional[Tuple[Array, List[Array]]]:
    """See :func:`portable.palette`."""
    module = _module()
    if module is None:
        return portable.palette(bits, kind, limit)
    outer, channels, inner = bits.shape
    index = np.empty(bits.size, np.uint8)
    values = np.empty((channels, portable.PALETTE_LIMIT), np.uint64)
    item = bits.dtype.itemsize
    counts = module.palette(bits, index, values, outer, channels, inner, item, _TYPE_CODE.get(kind, 0), limit)
    if counts is None:
        return None
    return index, [values[channel, :count].astype(bits.dtype) for channel, count in enumerate(counts)]


def gather(index: Array, palettes: Array, outer: int, inner: int) -> Array:
    """See :func:`portable.gather`."""
    module = _module()
    if module is None:
        return portable.gather(index, palettes, outer, inner)
    out = np.empty(index.size, palettes.dtype)
    module.gather(index, palettes, out, outer, len(palettes), inner, palettes.dtype.itemsize)
    return out
