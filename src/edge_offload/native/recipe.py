"""Compiles a source file of this package on first use, once however many processes ask, and keeps the library.

Libraries are kept in ``native`` of the cache folder (``$EDGE_OFFLOAD_CACHE``, else ``edge_offload`` in
``$XDG_CACHE_HOME`` or ``~/.cache``), by a hash of all that they depend on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any, Optional, Sequence, TextIO, Tuple

from edge_offload.errors import Unsupported

TIMEOUT_S = 300.0
"""For one run of a compiler."""


def cache_folder() -> pathlib.Path:
    """Where built libraries are kept."""
    base = os.environ.get("EDGE_OFFLOAD_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "edge_offload")
    return pathlib.Path(base).expanduser() / "native"


class Telling:
    """Tells the user of a build that takes long: what, where it is kept, and when it is done; on a terminal, the time.

    Args:
        what: is built, and about how long that takes.
        where: it is kept.
        stream: where to write; standard error by default.
        every_s: seconds between two looks at the clock.
    """

    def __init__(self, what: str, where: pathlib.Path, stream: Optional[TextIO] = None, every_s: float = 1.0) -> None:
        self._stream = stream or sys.stderr
        self._first = f"building {what}, once; it is kept in {where}"
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, name="edge-offload-build", daemon=True)

    def __enter__(self) -> Telling:
        self.begin()
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        self.end(done=kind is None)

    def begin(self) -> None:
        """Say what is being built."""
        self._began_s = time.monotonic()
        self._write(f"edge_offload: {self._first}\n")
        if self._stream.isatty():
            self._thread.start()

    def end(self, done: bool) -> None:
        """Say that it is done; nothing where it is not: whoever ended it says why."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if done:
            self._write(f"edge_offload: built in {time.monotonic() - self._began_s:.0f} s\n")

    def _count(self) -> None:
        while not self._over.wait(self._every_s):
            self._write(f"\redge_offload: building … {time.monotonic() - self._began_s:.0f} s")
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever listened is gone; that is no reason to stop
            self._stream.write(text)
            self._stream.flush()


@dataclass(frozen=True)
class Recipe:
    """How a library is made.

    Attributes:
        name: of the library, in the cache folder.
        source: the one file that is compiled.
        compiler: its command.
        flags: what it is told; part of the hash.
        suffix: of the library's file.
        tunings: further flags, the most wanted first; the first that the compiler takes are used.
        depends: what else the library depends on; part of the hash.
    """

    name: str
    source: pathlib.Path
    compiler: Tuple[str, ...]
    flags: Tuple[str, ...]
    suffix: str = ".so"
    tunings: Sequence[Tuple[str, ...]] = ((),)
    depends: Tuple[str, ...] = ()

    def path(self) -> pathlib.Path:
        """Where the library is, or will be.

        Raises:
            Unsupported: the compiler does not run.
        """
        try:
            version = subprocess.run([*self.compiler, "--version"], capture_output=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unsupported(f"the compiler {self.compiler[0]} does not run: {error}") from error
        words = repr((self.compiler, self.flags, tuple(self.tunings)))
        parts = [self.source.read_bytes(), version.stdout, *(text.encode() for text in (words, *self.depends))]
        return cache_folder() / f"{self.name}-{hashlib.sha256(bytes(1).join(parts)).hexdigest()[:24]}{self.suffix}"

    def build(self) -> pathlib.Path:
        """Compile unless that was done before, here or by another process; the library's path.

        Raises:
            Unsupported: it cannot be built here; the message says why.
        """
        path = self.path()
        if path.exists():
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(path.parent / f"{self.name}.lock", "a", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes
                if not path.exists():
                    self._compile(path)
        except OSError as error:
            raise Unsupported(f"cannot build into {path.parent}: {error}", remedy="set EDGE_OFFLOAD_CACHE") from error
        return path

    def _compile(self, path: pathlib.Path) -> None:
        """Into a folder of its own first, so that nobody loads half a library."""
        log = ""
        with tempfile.TemporaryDirectory(dir=str(path.parent)) as folder:
            made = os.path.join(folder, path.name)
            for tuning in self.tunings:
                command = [*self.compiler, *self.flags, *tuning, str(self.source), "-o", made]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
                except subprocess.TimeoutExpired as error:
                    raise Unsupported(f"the compiler took more than {TIMEOUT_S:.0f} s") from error
                if done.returncode == 0:
                    os.replace(made, path)
                    return
                log = done.stderr
        raise Unsupported(f"the compiler failed: {' '.join(log.split())[:300]}")
