"""Says on standard error that a build takes long."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import threading
import time
from typing import Any, Optional, TextIO


class Progress:
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

    def __enter__(self) -> Progress:
        self._began_s = time.monotonic()
        self._write(f"edge_offload: {self._first}\n")
        if self._stream.isatty():
            self._thread.start()
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if kind is None:  # else the error says why
            self._write(f"edge_offload: built in {time.monotonic() - self._began_s:.0f} s\n")

    def _count(self) -> None:
        while not self._over.wait(self._every_s):
            self._write(f"\redge_offload: building … {time.monotonic() - self._began_s:.0f} s")
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever listened is gone; that is no reason to stop
            self._stream.write(text)
            self._stream.flush()
