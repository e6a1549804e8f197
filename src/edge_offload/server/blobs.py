"""Weights and constants on the server's disk, by checksum: what one program sent, none sends again."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Dict, List, Optional, Tuple

from edge_offload import places
from edge_offload.errors import ProtocolError
from edge_offload.link.transport.peers import Request
from edge_offload.protocol.blobs import DIGEST_BYTES, MAX_BLOB_BYTES, MAX_NAMES, Data, digest

_log = logging.getLogger(__name__)

#: Bytes that may wait to be written; whoever stores more writes by itself.
MAX_UNWRITTEN_BYTES = 64 << 20


class BlobStore:
    """Blobs in a directory that only this user can read; the least recently used go first. Thread-safe.

    A robot that knows a checksum can use the blob, whoever sent it. It is written in a thread, so that nobody waits for
    a slow disk. A disk that cannot be written costs uploads at the next start, never a result.

    Args:
        directory: where they are; made when first needed.
        max_bytes: most bytes on disk.
    """

    def __init__(self, directory: Optional[pathlib.Path] = None, max_bytes: int = 16 << 30) -> None:
        self.directory = directory if directory is not None else places.blobs_folder()
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._stored: Optional[int] = None
        self._writer = ThreadPoolExecutor(1, "edge_offload-blobs")
        self._writing = threading.Lock()
        self._unwritten: Dict[bytes, Tuple[bytes, Future[None]]] = {}

    def get_blob(self, name: bytes) -> Optional[bytes]:
        """Return the blob, or None if it is not here (any more), or damaged."""
        path = self._path(name)
        unwritten = self._unwritten.get(name)
        if unwritten is not None:
            return unwritten[0]
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

    def put_blob(self, name: bytes, data: Data) -> None:
        """Keep a blob, which is written later.

        Raises:
            ProtocolError: ``name`` is not its checksum.
        """
        if digest(data) != name:
            raise ProtocolError("a blob does not have the checksum that it was announced with")
        with self._writing:
            if name in self._unwritten:
                return
            size = sum(len(waiting) for waiting, _ in self._unwritten.values())
            waits = size + memoryview(data).nbytes <= MAX_UNWRITTEN_BYTES
            if waits:
                self._unwritten[name] = bytes(data), self._writer.submit(self._write_waiting, name)
        if not waits:
            self._write_blob(name, data)

    def flush(self) -> None:
        """Wait until all blobs are written."""
        with self._writing:
            writes = [write for _, write in self._unwritten.values()]
        wait(writes)

    def _write_waiting(self, name: bytes) -> None:
        with self._writing:
            data, _ = self._unwritten[name]
        try:
            self._write_blob(name, data)
        finally:
            with self._writing:
                del self._unwritten[name]

    def _write_blob(self, name: bytes, data: Data) -> None:
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
        if self._stored is None or self._stored + size > self.max_bytes:
            # counted anew: other servers of this user share the directory
            files = sorted(
                ((stat.st_mtime, stat.st_size, path) for path in self.directory.glob("??/*") for stat in [path.stat()]),
                key=lambda item: item[0],
            )
            self._stored = sum(nbytes for _, nbytes, _ in files)
            for _, nbytes, path in files:
                if self._stored + size <= self.max_bytes:
                    break
                path.unlink()
                self._stored -= nbytes
        self._stored += size


def check_names(names: Any, most: int = MAX_NAMES) -> List[bytes]:
    """A list of checksums off the wire.

    Raises:
        ProtocolError: it is not one.
    """
    if not isinstance(names, list) or len(names) > most:
        raise ProtocolError(f"a list of at most {most} checksums was expected")
    if not all(isinstance(name, bytes) and len(name) == DIGEST_BYTES for name in names):
        raise ProtocolError(f"a checksum is {DIGEST_BYTES} bytes")
    return names


def find_blobs(store: BlobStore, request: Request) -> Tuple[List[int], Dict[bytes, bytes]]:
    """Return positions of the missing blobs of ``{names}``, and the present ones; reads files."""
    names = check_names(request.body.get("names"))
    blobs = {name: data for name in names for data in [store.get_blob(name)] if data is not None}
    return [position for position, name in enumerate(names) if name not in blobs], blobs


def store_blob(store: BlobStore, request: Request) -> Tuple[bytes, bytes]:
    """``{name}`` and a blob, which is written to disk: name and blob.

    Raises:
        ProtocolError: the blob is too large, or ``name`` is not its checksum.
    """
    (name,) = check_names([request.body.get("name")])
    data = b"".join(request.buffers)
    if len(data) > MAX_BLOB_BYTES:
        raise ProtocolError(f"a piece of {len(data)} bytes, the limit is {MAX_BLOB_BYTES}")
    store.put_blob(name, data)
    return name, data
