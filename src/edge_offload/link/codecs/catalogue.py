"""The codecs by name, and the two functions that everyone calls: :func:`encode` and :func:`decode`."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.errors import BadInput, ProtocolError

from . import plain
from .method import Method
from .payload import DEFAULT_MAX_BYTES, Encoded, check_array, check_buffers, check_descriptor

METHODS: Dict[str, Method] = {method.name: method for method in (plain.RAW, plain.SHUFFLE)}

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


def encode_as(name: str, array: np.ndarray, options: Mapping[str, Any]) -> Encoded:
    """Encode a C-contiguous array with exactly the named codec.

    Raises:
        BadInput: no such codec.
        NotApplicable: dtype, shape or content does not suit it.
    """
    method, kind = codec_named(name)
    params, parts = method.encode(array, kind, options)
    descriptor: Dict[str, Any] = {"codec": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    if params:
        descriptor["params"] = params
    return Encoded(descriptor, parts)


def encode(array: np.ndarray, codec: str = "auto", **options: Any) -> Encoded:
    """Encode one array.

    Args:
        array: any shape and strides; dtype one of :data:`~edge_offload.link.codecs.payload.DTYPES`, little-endian.
        codec: ``auto`` (always lossless) or a name of :data:`CODECS`.

    Returns:
        Descriptor and parts. The part of ``raw`` aliases ``array``: do not write to it before the part has left.

    Raises:
        BadInput: the array cannot travel, no such codec, or the codec does not suit the array.
    """
    array = check_array(array)
    if codec == "auto":
        encoded = encode_as("shuffle+zstd", array, options)
        return encoded if encoded.nbytes < array.nbytes else encode_as("raw", array, options)
    return encode_as(codec, array, options)


def decode(
    descriptor: Mapping[str, Any], buffers: Sequence[Any], max_bytes: int = DEFAULT_MAX_BYTES
) -> np.ndarray:
    """Decode what :func:`encode` made, off an untrusted wire.

    Args:
        max_bytes: refuse payloads that decode to more than this.

    Returns:
        C-contiguous array, bit-equal to the encoded one (unless the codec is lossy). It may be a read-only view of
        ``buffers``; copy it before writing to it.

    Raises:
        ProtocolError: anything that an encoder of this version would not have sent.
    """
    header = check_descriptor(descriptor, max_bytes)
    parts = check_buffers(buffers)
    if header.codec not in CODECS:
        raise ProtocolError(f"payload codec {header.codec[:32]!r} is not known here")
    method, kind = CODECS[header.codec]
    if not method.suits(header.dtype, header.shape):
        raise ProtocolError(f"codec {header.codec} cannot have made {header.dtype.name} {list(header.shape)}")
    array = method.decode(header, kind, parts)
    if array.dtype != header.dtype or array.shape != header.shape:
        raise ProtocolError(f"codec {header.codec} made {array.dtype.name} {list(array.shape)} instead of its header")
    return array


def codec_names(lossless: bool = True) -> List[str]:
    """Names of the lossless codecs, or of the lossy ones."""
    return [name for name, (method, _) in CODECS.items() if method.lossless == lossless]
