"""Payload codecs: fewer bytes over the link for the same tensor, bit for bit unless asked otherwise.

``encode(array, codec="auto") -> Encoded(descriptor, buffers)`` and ``decode(descriptor, buffers, max_bytes) -> array``
are stateless and safe on hostile input. ``select`` says what ``auto`` would take; :class:`Selector` holds its
measurements. ``prepare`` compiles the inner loops ahead of the first frame, ``status`` says which ones serve.
"""

from typing import Any

from edge_offload import beside
from edge_offload.link.codecs.choice import DEFAULT_LINK_BYTES_PER_S, Selector, encode, select
from edge_offload.link.codecs.kernels import prepare, status
from edge_offload.link.codecs.method import NotApplicable
from edge_offload.link.codecs.payload import DEFAULT_MAX_BYTES, Encoded
from edge_offload.link.codecs.table import CODECS, codec_names, decode

__all__ = [
    "CODECS",
    "DEFAULT_LINK_BYTES_PER_S",
    "DEFAULT_MAX_BYTES",
    "Encoded",
    "NotApplicable",
    "Selector",
    "codec_names",
    "decode",
    "encode",
    "prepare",
    "select",
    "status",
]


def __getattr__(name: str) -> Any:
    """The names of release 0.1 that live in ``edge_offload_research.temporal``."""
    if name in ("ReceiveStream", "ReferenceMissing", "SendStream", "TEMPORAL"):
        return getattr(beside.action("temporal-codec", "edge_offload_research"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
