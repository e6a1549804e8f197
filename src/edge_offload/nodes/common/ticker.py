"""Calls a function at a steady rate of wall time, because simulated time may stand still or jump."""

from __future__ import annotations

import threading
import time
from typing import Callable


class Ticker:
    """A thread that calls ``work`` every ``period_s``; an exception goes to ``on_error`` and the thread goes on."""

    def __init__(
        self, period_s: float, work: Callable[[], None], on_error: Callable[[str, BaseException], None]
    ) -> None:
        self._period_s = period_s
        self._work = work
        self._on_error = on_error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_ticks, name="ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the call that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _run_ticks(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._period_s, time.monotonic())
            try:
                self._work()
            except Exception as error:
                self._on_error("periodic work", error)
