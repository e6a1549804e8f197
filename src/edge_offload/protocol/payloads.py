"""Codes the virtual device's buffers for the link, losslessly, and decodes them."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.calls import Buffer
from edge_offload.link import codecs

#: (position among the decoded buffers, descriptor of the codec, number of coded buffers in its place)
Coded = Tuple[int, Any, int]


#: Returns the encoding of an array that was encoded before; None: it was not.
FindEncoding = Callable[[Array], Optional[codecs.Encoded]]


#: Fewest bytes of an array that is coded; fewest and most of plain bytes, such as the facts of a message.
MIN_ARRAY_BYTES, MIN_PLAIN_BYTES, MAX_PLAIN_BYTES = 4096, 1024, 64 << 10


def is_coded(view: memoryview) -> bool:
    """Tell whether a buffer is coded; others are passed through."""
    if view.ndim == 1 and view.format == "B":
        return MIN_PLAIN_BYTES <= view.nbytes <= MAX_PLAIN_BYTES
    return view.ndim > 0 and view.nbytes >= MIN_ARRAY_BYTES


def encode(
    buffers: Sequence[Buffer],
    codec: str,
    link_bytes_per_s: Optional[float] = None,
    find_encoding: FindEncoding = lambda _array: None,
) -> Tuple[List[Coded], List[Buffer]]:
    """Code the buffers for which :func:`is_coded` says so, and pass the others through.

    Args:
        buffers: of a message.
        codec: name of the payload codec.
        link_bytes_per_s: rate of the link, for the choice of a codec; None: unknown.
        find_encoding: what was encoded before.

    Returns:
        One entry for each coded buffer, and all buffers in order.
    """
    coded: List[Coded] = []
    out: List[Buffer] = []
    for position, buffer in enumerate(buffers):
        view = memoryview(buffer)
        if not is_coded(view):
            out.append(buffer)
            continue
        array = np.asarray(view)
        encoded = find_encoding(array) or codecs.encode(array, codec, link_bytes_per_s=link_bytes_per_s)
        coded.append((position, encoded.descriptor, len(encoded.buffers)))
        out += encoded.buffers
    return coded, out


def decode(coded: Any, buffers: Sequence[Buffer], max_bytes: int) -> List[Buffer]:
    """Decode what :func:`encode` returned: the buffers as bytes.

    Raises:
        ProtocolError: malformed, or the decoded arrays have more than ``max_bytes``.
    """
    if not coded:
        return list(buffers)
    if not isinstance(coded, (list, tuple)) or len(coded) > len(buffers):
        raise ProtocolError("coded buffers are described by a list")
    out: List[Buffer] = []
    used = 0
    for item in coded:
        if not isinstance(item, (list, tuple)) or len(item) != 3:
            raise ProtocolError("a coded buffer lacks its descriptor")
        position, descriptor, count = item
        if (
            type(position) is not int
            or type(count) is not int
            or not 0 <= count <= 64
            or not isinstance(descriptor, dict)
        ):
            raise ProtocolError("a coded buffer lacks its place")
        uncoded = position - len(out)  # buffers before it that were passed through
        if uncoded < 0 or used + uncoded + count > len(buffers):
            raise ProtocolError("coded buffers are out of order")
        out += buffers[used : used + uncoded]
        used += uncoded
        array = codecs.decode(descriptor, buffers[used : used + count], max_bytes)
        used += count
        max_bytes -= array.nbytes
        out.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return out + list(buffers[used:])
