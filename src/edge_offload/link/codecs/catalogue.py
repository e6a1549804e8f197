"""The table of codecs: name -> (method, byte compressor)."""

from __future__ import annotations

from typing import Dict, List, Tuple

from edge_offload.errors import BadInput
from edge_offload.link.codecs import image, lossy, packing, palette, plain
from edge_offload.link.codecs.method import Method

METHODS: Dict[str, Method] = {
    method.name: method
    for method in (
        plain.RAW, plain.SHUFFLE, packing.BITS, packing.SPARSE, palette.PALETTE,
        image.LEFT, image.GRADIENT, image.PAETH, lossy.FP16, lossy.JPEG,
    )
}  # fmt: skip

CODECS: Dict[str, Tuple[Method, str]] = {
    (f"{method.name}+{kind}" if kind else method.name): (method, kind)
    for method in METHODS.values()
    for kind in method.entropies
}
"""Every codec: name -> (method, byte compressor). These names stand in descriptors, plans and configuration."""


def codec_named(name: str) -> Tuple[Method, str]:
    """The method and byte compressor of codec ``name``.

    Raises:
        BadInput: no such codec.
    """
    if name not in CODECS:
        raise BadInput(f"no codec {name!r}", remedy=f"use auto or one of {', '.join(CODECS)}")
    return CODECS[name]


def codec_names(lossless: bool = True) -> List[str]:
    """Names of the lossless codecs, or of the lossy ones."""
    return [name for name, (method, _) in CODECS.items() if method.lossless == lossless]
