"""Large buffers travel once, as blobs named by the checksum of their bytes; afterwards the names stand for them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Tuple, Union

DIGEST_BYTES = 32
#: Bytes of one blob, at most. Larger tensors are several, so that an upload that broke off goes on where it was.
MAX_BLOB_BYTES = 8 << 20

Data = Union[bytes, bytearray, memoryview]


@dataclass(frozen=True)
class Named:
    """Stands for ``nbytes`` bytes by the ``names`` of the blobs that they consist of."""

    nbytes: int
    names: Tuple[bytes, ...]


def digest(data: Data) -> bytes:
    """The name of ``data``: its SHA-256."""
    return hashlib.sha256(data).digest()
