"""Built engines on disk: private, checked by SHA-256 before they are loaded, bounded. They never cross the wire.

An entry is one file: the SHA-256 of the rest in hex, a newline, a line of JSON on what it is, and the engine's bytes.
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

#: Bytes that all entries may take together.
MOST_BYTES = 2 << 30
_SUFFIX = ".engine"
_MOST_HEAD = 4096


@dataclass(frozen=True)
class Entry:
    """A built engine.

    Attributes:
        built: its bytes.
        onnx: digest of the ONNX that it was built from.
        checked: whether these bytes gave what torch gives, on noise.
    """

    built: bytes
    onnx: str
    checked: bool = False


def key_of(facts: Mapping[str, Any]) -> str:
    """Name of the entry for an engine that all of ``facts`` decide (plain values)."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class EngineCache:
    """Entries in one folder of the user's. Safe between threads and processes.

    Args:
        folder: where; by default ``engines`` in the cache.
        most_bytes: what is kept; the entry that was used longest ago goes first.
    """

    def __init__(self, folder: Optional[pathlib.Path] = None, most_bytes: int = MOST_BYTES) -> None:
        self._given = folder
        self._most_bytes = most_bytes

    @property
    def folder(self) -> pathlib.Path:
        """Where the entries are."""
        return self._given or cache_dir() / "engines"

    def get(self, key: str, build: Callable[[], Entry]) -> Entry:
        """The entry ``key``, built and kept where there is none that can be trusted. Built once between processes.

        Raises:
            Unsupported: it cannot be kept (disk full, no right to write, a folder that others can write).
            Exception: what ``build`` raises.
        """
        try:
            with locked("engines"):
                self._claim()
                path = self.folder / f"{key}{_SUFFIX}"
                found = _read(path)
                if found is not None:
                    os.utime(path)
                    return found
        except OSError as error:
            raise _unkept(error) from error
        with _building(key):
            found = _read(path)
            if found is not None:
                return found
            entry = build()
            try:
                self._write(path, entry)
            except OSError as error:
                raise _unkept(error) from error
            return entry

    def forget(self, key: str) -> None:
        """Delete an entry: what was loaded from it failed."""
        with contextlib.suppress(OSError):
            (self.folder / f"{key}{_SUFFIX}").unlink()

    def _claim(self) -> None:
        """Have the folder to ourselves."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = os.lstat(self.folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
            raise Unsupported(f"{self.folder} is not a folder of yours", remedy="move it away")
        if stat.S_IMODE(facts.st_mode) & 0o077:
            os.chmod(self.folder, 0o700)
            # whatever others may have put there until now is not ours
            for path in self.folder.glob(f"*{_SUFFIX}"):
                path.unlink()

    def _write(self, path: pathlib.Path, entry: Entry) -> None:
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
        self._bound(path)

    def _bound(self, newest: pathlib.Path) -> None:
        ages: Dict[pathlib.Path, os.stat_result] = {}
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                ages[path] = path.stat()
        held = sum(facts.st_size for facts in ages.values())
        for path, facts in sorted(ages.items(), key=lambda item: item[1].st_mtime_ns):
            if held <= self._most_bytes or path == newest:
                continue
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            held -= facts.st_size


@contextlib.contextmanager
def _building(key: str) -> Any:
    """One process at a time builds an entry; entries share a few locks, so that lock files do not pile up."""
    with locked(f"engine-build-{key[:1]}") as folder:
        yield folder


def _unkept(error: OSError) -> Unsupported:
    return Unsupported(f"its engine cannot be kept: {in_words(error)}")


def _read(path: pathlib.Path) -> Optional[Entry]:
    """The entry in ``path``; None where there is none, or it is not whole, or not ours alone (then it is deleted)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return _rejected(path)
    with os.fdopen(descriptor, "rb") as stream:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.getuid() or not stat.S_ISREG(facts.st_mode) or stat.S_IMODE(facts.st_mode) & 0o077:
            return _rejected(path)
        stated, head, built = stream.readline(_MOST_HEAD), stream.readline(_MOST_HEAD), stream.read()
    digest = hashlib.sha256(head)
    digest.update(built)
    if digest.hexdigest().encode() + b"\n" != stated:
        return _rejected(path)
    told = json.loads(head)
    return Entry(built, str(told["onnx"]), bool(told["checked"]))


def _rejected(path: pathlib.Path) -> Optional[Entry]:
    with contextlib.suppress(OSError):
        path.unlink()
    return None
