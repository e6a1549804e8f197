"""Cache of built engines on disk: private, bounded, checked by SHA-256 before loading. Engines never cross the wire.

An entry is one file: the SHA-256 of the rest in hex, a newline, a line of JSON (header), and the engine's bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import stat
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional

from edge_offload.cache import cache_dir, locked
from edge_offload.errors import Unsupported, in_words

_SUFFIX = ".engine"


@dataclass(frozen=True)
class EngineEntry:
    """A built engine.

    Attributes:
        built: its bytes.
        onnx: digest of the ONNX model that it was built from.
        checked: whether its outputs for random inputs agreed with torch's.
    """

    built: bytes
    onnx: str
    checked: bool = False


def key_of(facts: Mapping[str, Any]) -> str:
    """Return the name of the entry for an engine that is determined by ``facts`` (plain values)."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class EngineCache:
    """Cache in one folder of the user. Safe between threads and processes.

    Args:
        folder: folder of the entries; by default ``engines`` in the cache.
        most_bytes: most bytes of all entries; the least recently used one is evicted first.
    """

    def __init__(self, folder: Optional[pathlib.Path] = None, most_bytes: int = 2 << 30) -> None:
        self._given = folder
        self._most_bytes = most_bytes

    @property
    def folder(self) -> pathlib.Path:
        """Folder of the entries."""
        return self._given or cache_dir() / "engines"

    def get_or_build(self, key: str, build: Callable[[], EngineEntry]) -> EngineEntry:
        """Reads the entry ``key``, or builds and stores it if no valid one exists. Built once between processes.

        Raises:
            Unsupported: it cannot be stored (disk full, no right to write, a folder that others can write).
            Exception: what ``build`` raises.
        """
        try:
            with locked("engines"):
                self._claim_folder()
                path = self.folder / f"{key}{_SUFFIX}"
                cached = _read_entry(path)
                if cached is not None:
                    os.utime(path)
                    return cached
        except OSError as error:
            raise _storage_error(error) from error
        with _build_lock(key):
            cached = _read_entry(path)
            if cached is not None:
                return cached
            entry = build()
            try:
                self._write_entry(path, entry)
            except OSError as error:
                raise _storage_error(error) from error
            return entry

    def delete_entry(self, key: str) -> None:
        """Deletes an entry whose engine failed."""
        with contextlib.suppress(OSError):
            (self.folder / f"{key}{_SUFFIX}").unlink()

    def _claim_folder(self) -> None:
        """Makes the folder private to this user."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = os.lstat(self.folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
            raise Unsupported(f"{self.folder} is not a folder of yours", remedy="move it away")
        if stat.S_IMODE(facts.st_mode) & 0o077:
            os.chmod(self.folder, 0o700)
            # other users may have written these entries
            for path in self.folder.glob(f"*{_SUFFIX}"):
                path.unlink()

    def _write_entry(self, path: pathlib.Path, entry: EngineEntry) -> None:
        head = json.dumps({"onnx": entry.onnx, "checked": entry.checked}).encode() + b"\n"
        digest = hashlib.sha256(head)
        digest.update(entry.built)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".building.")  # 0600
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(digest.hexdigest().encode() + b"\n" + head)
                stream.write(entry.built)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        self._evict_oldest(path)

    def _evict_oldest(self, newest: pathlib.Path) -> None:
        ages: Dict[pathlib.Path, os.stat_result] = {}
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                ages[path] = path.stat()
        total = sum(facts.st_size for facts in ages.values())
        for path, facts in sorted(ages.items(), key=lambda item: item[1].st_mtime_ns):
            if total <= self._most_bytes or path == newest:
                continue
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            total -= facts.st_size


@contextlib.contextmanager
def _build_lock(key: str) -> Any:
    """Let one process at a time build an entry. Entries share 16 locks, so that few lock files are needed."""
    with locked(f"engine-build-{key[:1]}") as folder:
        yield folder


def _storage_error(error: OSError) -> Unsupported:
    return Unsupported(f"its engine cannot be stored: {in_words(error)}")


def _read_entry(path: pathlib.Path) -> Optional[EngineEntry]:
    """Read the entry in ``path``. None: absent; or damaged or accessible to other users, and then it is deleted."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return _delete_invalid(path)
    with os.fdopen(descriptor, "rb") as stream:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.getuid() or not stat.S_ISREG(facts.st_mode) or stat.S_IMODE(facts.st_mode) & 0o077:
            return _delete_invalid(path)
        most = 4096  # bytes of a line
        stated, head, built = stream.readline(most), stream.readline(most), stream.read()
    digest = hashlib.sha256(head)
    digest.update(built)
    if digest.hexdigest().encode() + b"\n" != stated:
        return _delete_invalid(path)
    header = json.loads(head)
    return EngineEntry(built, str(header["onnx"]), bool(header["checked"]))


def _delete_invalid(path: pathlib.Path) -> Optional[EngineEntry]:
    with contextlib.suppress(OSError):
        path.unlink()
    return None
