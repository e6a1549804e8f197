"""Weights on the server's disk, by the checksum of their bytes: what one program sent, no program sends again."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import threading
from dataclasses import dataclass
from typing import Optional, Tuple, Union

from edge_offload.errors import ProtocolError

_log = logging.getLogger(__name__)
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


def default_directory() -> pathlib.Path:
    """``$XDG_CACHE_HOME/edge_offload/blobs``, by default under ``~/.cache``."""
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME", "") or pathlib.Path.home() / ".cache")
    return root / "edge_offload" / "blobs"


class BlobStore:
    """Blobs in a directory that only this user can read; the least recently used go first. Thread-safe.

    A robot that knows a checksum can use the blob, whoever sent it. A disk that cannot be written costs uploads at
    the next start, never a result.

    Args:
        directory: where they are; made when first needed.
        max_bytes: most bytes on disk.
    """

    def __init__(self, directory: Optional[pathlib.Path] = None, max_bytes: int = 16 << 30) -> None:
        self.directory = directory if directory is not None else default_directory()
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: Optional[int] = None

    def get(self, name: bytes) -> Optional[bytes]:
        """The blob, or None if it is not here (any more). A file that was damaged is not here."""
        path = self._path(name)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        if digest(data) != name:
            _log.warning("%s is damaged and is sent anew", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return data

    def put(self, name: bytes, data: Data) -> None:
        """Keep a blob.

        Raises:
            ProtocolError: ``name`` is not its checksum.
        """
        if digest(data) != name:
            raise ProtocolError("a blob does not have the checksum that it was announced with")
        path = self._path(name)
        try:
            with self._lock:
                if path.exists():
                    return
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._make_room(memoryview(data).nbytes)
                temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
                    stream.write(data)
                os.replace(temporary, path)
        except OSError as error:
            _log.warning("weights cannot be kept in %s: %s", self.directory, error)

    def _path(self, name: bytes) -> pathlib.Path:
        if len(name) != DIGEST_BYTES:
            raise ProtocolError("a checksum of another length")
        text = name.hex()
        return self.directory / text[:2] / text

    def _make_room(self, size: int) -> None:
        if self._held is None or self._held + size > self.max_bytes:
            # counted anew: other servers of this user share the directory
            found = sorted(
                ((stat.st_mtime, stat.st_size, path) for path in self.directory.glob("??/*") for stat in [path.stat()]),
                key=lambda item: item[0],
            )
            self._held = sum(item[1] for item in found)
            for _, bytes_, path in found:
                if self._held + size <= self.max_bytes:
                    break
                path.unlink()
                self._held -= bytes_
        self._held += size
