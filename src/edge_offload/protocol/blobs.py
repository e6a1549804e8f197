"""Large buffers travel once, as blobs named by the checksum of their bytes; afterwards the names stand for them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Sequence, Set, Tuple, Union

from edge_offload.errors import ProtocolError

DIGEST_BYTES = 32
#: Largest blob, bytes. Larger tensors are split, so that an interrupted upload resumes at a blob.
MAX_BLOB_BYTES = 8 << 20
#: Most checksums in one request.
MAX_NAMES = 256

Data = Union[bytes, bytearray, memoryview]


@dataclass(frozen=True)
class NamedBlobs:
    """Reference to ``nbytes`` bytes by the ``names`` of their blobs, which the server has."""

    nbytes: int
    names: Tuple[bytes, ...]


def digest(data: Data) -> bytes:
    """SHA-256 of ``data``, which is its name."""
    return hashlib.sha256(data).digest()


def split_blobs(data: memoryview) -> List[memoryview]:
    """Split ``data`` into blobs of at most :data:`MAX_BLOB_BYTES`."""
    return [data[start : start + MAX_BLOB_BYTES] for start in range(0, data.nbytes, MAX_BLOB_BYTES)]


def find_missing(
    names: Sequence[bytes], request_missing: Callable[[List[bytes]], Any]
) -> Iterator[Tuple[range, Set[int]]]:
    """Yield, per request, the positions in ``names`` that it covers and those whose blobs the server lacks.

    Args:
        names: checksums.
        request_missing: sends checksums to the server and returns the positions of those that it lacks.

    Raises:
        ProtocolError: the answer is no list of positions.
    """
    for start in range(0, len(names), MAX_NAMES):
        positions = range(start, min(start + MAX_NAMES, len(names)))
        missing = request_missing(list(names[start : positions.stop]))
        if not isinstance(missing, list) or not all(type(i) is int and 0 <= i < len(positions) for i in missing):
            raise ProtocolError("the server did not say which weights it has")
        yield positions, {start + index for index in missing}
