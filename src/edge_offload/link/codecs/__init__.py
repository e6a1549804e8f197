"""Payload codecs: fewer bytes over the link for the same tensor, bit for bit unless asked otherwise.

``encode(array, codec="auto") -> Encoded(descriptor, buffers)`` and ``decode(descriptor, buffers, max_bytes) -> array``
are stateless and safe on hostile input. :class:`SendStream` and :class:`ReceiveStream` add temporal prediction for an
input that repeats. ``select`` says what ``auto`` would take; :class:`Selector` holds its measurements. ``prepare``
compiles the inner loops ahead of the first frame, ``status`` says which ones serve.
"""

from .catalogue import CODECS, codec_names
from .choice import DEFAULT_LINK_BYTES_PER_S, Selector, encode, select
from .coding import decode
from .difference import TEMPORAL
from .kernels import prepare, status
from .method import NotApplicable
from .payload import DEFAULT_MAX_BYTES, Encoded
from .stream import ReceiveStream, ReferenceMissing, SendStream

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
