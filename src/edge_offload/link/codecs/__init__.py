"""Payload codecs: fewer bytes over the link for the same tensor, bit for bit unless asked otherwise.

``encode(array, codec="auto") -> Encoded(descriptor, buffers)`` and ``decode(descriptor, buffers, max_bytes) -> array``
are stateless and safe on hostile input.
"""

from .catalogue import CODECS, codec_names, decode, encode
from .payload import DEFAULT_MAX_BYTES, Encoded

__all__ = ["CODECS", "DEFAULT_MAX_BYTES", "Encoded", "codec_names", "decode", "encode"]
