"""Table of codecs, name -> (method, byte compressor), and stateless encoding and decoding by it.

Two methods that ignore the content are defined here: ``raw`` (the memory as it is) and ``shuffle``. The latter puts
the first bytes of all elements together, then the second ones, and compresses them.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput, ProtocolError
from edge_offload.link.codecs import compressors, image, lossy, packing, palette
from edge_offload.link.codecs.method import Coded, Method
from edge_offload.link.codecs.payload import (
    DEFAULT_MAX_BYTES,
    Encoded,
    Header,
    array_from,
    bytes_of,
    check_buffers,
    check_descriptor,
    dtype_name,
    one_part,
)


def _encode_raw(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    return {}, [bytes_of(array).data]


def _decode_raw(header: Header, kind: str, parts: List[memoryview]) -> Array:
    return array_from(one_part(header, parts), header)


def _encode_shuffle(array: Array, kind: str, options: Mapping[str, Any]) -> Coded:
    return {}, [compressors.compress(kind, compressors.shuffle_bytes(array))]


def _decode_shuffle(header: Header, kind: str, parts: List[memoryview]) -> Array:
    plain = compressors.expand(kind, one_part(header, parts), header.nbytes)
    return array_from(compressors.unshuffle_bytes(plain, header.dtype.itemsize), header)


def _any_array(dtype: np.dtype[Any], shape: Tuple[int, ...]) -> bool:
    return True


RAW = Method("raw", "the memory as it is", ("",), True, _encode_raw, _decode_raw, _any_array)
SHUFFLE = Method(
    "shuffle", "bytes of equal weight together", ("zstd", "lz4"), True, _encode_shuffle, _decode_shuffle, _any_array
)

METHODS: Dict[str, Method] = {
    method.name: method
    for method in (
        RAW, SHUFFLE, packing.BITS, packing.SPARSE, palette.PALETTE,
        image.LEFT, image.GRADIENT, image.PAETH, lossy.FP16, lossy.JPEG,
    )
}  # fmt: skip

CODECS: Dict[str, Tuple[Method, str]] = {
    (f"{method.name}+{entropy}" if entropy else method.name): (method, entropy)
    for method in METHODS.values()
    for entropy in method.entropies
}
"""Every codec: name -> (method, byte compressor). These names stand in descriptors, plans and configuration."""


def codec_named(name: str) -> Tuple[Method, str]:
    """Return the method and byte compressor of codec ``name``.

    Raises:
        BadInput: no such codec.
    """
    if name not in CODECS:
        raise BadInput(f"no codec {name!r}", remedy=f"use auto or one of {', '.join(CODECS)}")
    return CODECS[name]


def codec_names(lossless: bool = True) -> List[str]:
    """Names of the lossless codecs, or of the lossy ones."""
    return [name for name, (method, _) in CODECS.items() if method.lossless == lossless]


def encode_as(name: str, array: Array, options: Mapping[str, Any]) -> Encoded:
    """Encode a C-contiguous array with exactly the named codec.

    Raises:
        BadInput: no such codec.
        NotApplicable: dtype, shape or content does not suit it.
    """
    method, entropy = codec_named(name)
    params, parts = method.encode(array, entropy, options)
    descriptor: Dict[str, Any] = {"codec": name, "dtype": dtype_name(array.dtype), "shape": list(array.shape)}
    if params:
        descriptor["params"] = params
    if not method.lossless:
        descriptor["lossy"] = True
    return Encoded(descriptor, parts)


def decode(descriptor: Mapping[str, Any], buffers: Sequence[Any], max_bytes: int = DEFAULT_MAX_BYTES) -> Array:
    """Decode what ``encode`` made, off an untrusted wire.

    Args:
        descriptor: of the payload, from a message's body.
        buffers: the payload's parts.
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
        raise ProtocolError(f"payload codec {header.codec[:32]!r} cannot be decoded without its stream, or is unknown")
    method, entropy = CODECS[header.codec]
    if not method.suits(header.dtype, header.shape):
        raise ProtocolError(f"codec {header.codec} cannot have made {header.dtype.name} {list(header.shape)}")
    if descriptor.get("lossy", False) is method.lossless:
        raise ProtocolError(
            f"codec {header.codec} is {'lossless' if method.lossless else 'lossy'}, its header denies it"
        )
    array = method.decode(header, entropy, parts)
    if array.dtype != header.dtype or array.shape != header.shape:
        raise ProtocolError(f"codec {header.codec} made {array.dtype.name} {list(array.shape)} instead of its header")
    return array
