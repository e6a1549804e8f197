"""Large buffers travel once, as blobs named by the checksum of their bytes; afterwards the names stand for them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Sequence, Set, Tuple, Union

from edge_offload.errors import ProtocolError

DIGEST_BYTES = 32
#: Bytes of one blob, at most. Larger tensors are several, so that an upload that broke off goes on where it was.
MAX_BLOB_BYTES = 8 << 20
#: Checksums in one question.
MAX_NAMES = 256

Data = Union[bytes, bytearray, memoryview]


@dataclass(frozen=True)
class Named:
    """Stands for ``nbytes`` bytes by the ``names`` of the blobs that they consist of."""

    nbytes: int
    names: Tuple[bytes, ...]


def digest(data: Data) -> bytes:
    """The name of ``data``: its SHA-256."""
    return hashlib.sha256(data).digest()


def cut(data: memoryview) -> List[memoryview]:
    """The blobs that stand for ``data``."""
    return [data[start : start + MAX_BLOB_BYTES] for start in range(0, data.nbytes, MAX_BLOB_BYTES)]


def look_up(names: Sequence[bytes], ask: Callable[[List[bytes]], Any]) -> Iterator[Tuple[range, Set[int]]]:
    """Which blobs the server has: positions in ``names`` that were asked for, and those of them that are missing.

    Args:
        names: checksums.
        ask: puts one question; returns what the server says is missing.

    Raises:
        ProtocolError: the server did not answer that.
    """
    for start in range(0, len(names), MAX_NAMES):
        asked = range(start, min(start + MAX_NAMES, len(names)))
        missing = ask(list(names[start : asked.stop]))
        if not isinstance(missing, list) or not all(type(i) is int and 0 <= i < len(asked) for i in missing):
            raise ProtocolError("the server did not say which weights it has")
        yield asked, {start + index for index in missing}
