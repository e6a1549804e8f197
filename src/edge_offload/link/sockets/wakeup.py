"""Waking a thread that polls sockets, from any other thread."""

from __future__ import annotations

import contextlib
import os


class Wakeup:
    """A pipe whose reading end is polled. Wakes between two :meth:`clear` calls merge into one."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._pending = False

    def wake(self) -> None:
        """Make :attr:`descriptor` readable."""
        if self._pending:
            return
        self._pending = True
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._write, b"w")

    def clear(self) -> None:
        """Call before looking at the work, so that work added during the look wakes again."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.descriptor, 64)) == 64:
                pass
        # after the read: the other way round, a wake in between would be eaten and every later one be taken for merged
        self._pending = False

    def close(self) -> None:
        """Close both ends; no wake may follow."""
        os.close(self.descriptor)
        os.close(self._write)
