"""Payload codecs: fewer bytes over the link for the same tensor, bit for bit unless asked otherwise.

``encode(array, codec="auto") -> Encoded(descriptor, buffers)`` and ``decode(descriptor, buffers, max_bytes) -> array``
are stateless and safe on hostile input. :class:`SendStream` and :class:`ReceiveStream` add temporal prediction for an
input that repeats. ``select`` says what ``auto`` would take; :class:`Selector` holds its measurements. ``prepare``
compiles the inner loops ahead of the first frame, ``status`` says which ones serve.
"""

from edge_offload.link.codecs.choice import DEFAULT_LINK_BYTES_PER_S, Selector, encode, select
from edge_offload.link.codecs.difference import TEMPORAL
from edge_offload.link.codecs.kernels import prepare, status
from edge_offload.link.codecs.method import NotApplicable
from edge_offload.link.codecs.payload import DEFAULT_MAX_BYTES, Encoded
from edge_offload.link.codecs.stream import ReceiveStream, ReferenceMissing, SendStream
from edge_offload.link.codecs.table import CODECS, codec_names, decode

__all__ = [
    "CODECS",
    "DEFAULT_LINK_BYTES_PER_S",
    "DEFAULT_MAX_BYTES",
    "TEMPORAL",
    "Encoded",
    "NotApplicable",
    "ReceiveStream",
    "ReferenceMissing",
    "Selector",
    "SendStream",
    "codec_names",
    "decode",
    "encode",
    "prepare",
    "select",
    "status",
]
