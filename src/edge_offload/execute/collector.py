"""Keeps Python's collector of cyclic garbage from holding frames up: one pass over a million objects takes 0.3 s."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import Callable, Iterator, Optional, Tuple

from edge_offload import background


class Collector:
    """Collects cyclic garbage: every object once, soon after it was made; survivors every ten minutes only.

    Only cycles need the collector. Learning makes many objects at once: those wait for the next full pass.

    Args:
        full_pass_s: seconds between passes over all objects.
        clock: monotonic seconds.
        learns: whether something learns or plans beside frames.
    """

    def __init__(
        self,
        full_pass_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        learns: Callable[[], bool] = background.is_learning,
    ) -> None:
        self._full_pass_s, self._clock, self._learns = full_pass_s, clock, learns
        self._full_pass_at_s = clock()
        self._has_learned = False
        self._thresholds: Optional[Tuple[int, int, int]] = None

    def start(self) -> None:
        """Passes over everything now, when nobody waits."""
        if self._thresholds is None:
            self._thresholds = gc.get_threshold()
            gc.set_threshold(*self._thresholds[:2], 1 << 30)  # no full collection
        self._full_pass_at_s = self._clock()
        self._collect_all()

    def collect_new(self) -> None:
        """Passes over new objects; call it about once a second."""
        if self._thresholds is None:
            return
        if self._learns():
            self._has_learned = True
            return
        if self._has_learned:
            self._has_learned = False
            gc.freeze()
            return
        if self._clock() - self._full_pass_at_s >= self._full_pass_s:
            gc.unfreeze()
            self._full_pass_at_s = self._clock()
        self._collect_all()

    def stop(self) -> None:
        """Restores the collector's settings; idempotent."""
        if self._thresholds is not None:
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()
            self._thresholds = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Collects every second in a thread of its own inside ``with``."""
        stopped = threading.Event()

        def collect_periodically() -> None:
            while not stopped.wait(1.0):  # seconds between passes over new objects
                self.collect_new()

        thread = threading.Thread(target=collect_periodically, name="edge-offload-collector", daemon=True)
        self.start()
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            self.stop()

    @staticmethod
    def _collect_all() -> None:
        gc.collect()
        gc.freeze()
