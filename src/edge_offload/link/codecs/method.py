"""The shape of a coding method: a pair of functions under a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.link.codecs.payload import Buffer, Header, Params

Coded = Tuple[Params, List[Buffer]]


class NotApplicable(BadInput):
    """The content does not suit the method (too many distinct values, not an image, ...)."""


@dataclass(frozen=True)
class Method:
    """A way to turn an array into parts and back.

    Attributes:
        name: first half of a codec's name; the second half is one of ``entropies`` (``""``: none).
        summary: one line for tables.
        entropies: the byte compressors that it may be combined with.
        lossless: whether decode gives every bit back.
        encode: ``(array, entropy, options) -> (params, parts)``; the array is C-contiguous. Raises NotApplicable.
        decode: ``(header, entropy, parts) -> array`` of exactly the header's dtype and shape. Raises ProtocolError.
        suits: whether dtype and shape (not the content) allow the method at all.
    """

    name: str
    summary: str
    entropies: Tuple[str, ...]
    lossless: bool
    encode: Callable[[Array, str, Mapping[str, Any]], Coded]
    decode: Callable[[Header, str, List[memoryview]], Array]
    suits: Callable[[np.dtype[Any], Tuple[int, ...]], bool]
