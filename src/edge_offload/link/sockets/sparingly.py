"""Log lines that a peer can cause at will: at most a few a second are written, the rest are counted."""

from __future__ import annotations

import logging
import time
from typing import Any


class Sparingly:
    """Wraps a logger."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._window_s = 0.0
        self._written = 0
        self._suppressed = 0

    def warning(self, text: str, *arguments: Any) -> None:
        """Write this line, unless there have been enough in this second."""
        now = time.monotonic()
        if now - self._window_s >= 1.0:
            if self._suppressed:
                self._log.warning("link: %d more warnings like these were not written", self._suppressed)
            self._window_s, self._written, self._suppressed = now, 0, 0
        if self._written < 5:
            self._written += 1
            self._log.warning(text, *arguments)
        else:
            self._suppressed += 1
