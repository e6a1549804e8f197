"""Reports a long build on standard error."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import threading
import time
from typing import Any, Optional, TextIO


class Progress:
    """Context of a long build: writes what is built and where, and afterwards its duration.

    On a terminal it also shows the seconds so far.

    Args:
        what: name of what is built, and about how long that takes.
        where: folder in which the result is kept.
        stream: where to write; standard error by default.
        every_s: seconds between two updates on a terminal.
    """

    def __init__(self, what: str, where: pathlib.Path, stream: Optional[TextIO] = None, every_s: float = 1.0) -> None:
        self._stream = stream or sys.stderr
        self._start_text = f"building {what}, once; it is kept in {where}"
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, name="edge-offload-build", daemon=True)

    def __enter__(self) -> Progress:
        self._started_s = time.monotonic()
        self._write(f"edge_offload: {self._start_text}\n")
        if self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if kind is None:  # else the exception says why
            self._write(f"edge_offload: built in {time.monotonic() - self._started_s:.0f} s\n")

    def _count(self) -> None:
        while not self._ended.wait(self._every_s):
            self._write(f"\redge_offload: building … {time.monotonic() - self._started_s:.0f} s")
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the stream was closed: the build goes on
            self._stream.write(text)
            self._stream.flush()
