"""Keeps Python's collector of cyclic garbage from holding frames up: one pass over a million objects takes 0.3 s."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import Callable, Iterator, Optional, Tuple

from edge_offload import background

AGAIN_S = 600.0
"""Seconds after which everything is looked at again: what has become garbage since it was looked at goes then."""
EVERY_S = 1.0
"""Seconds between looks at what is new."""

NEVER = 1 << 30


class Collector:
    """Looks at every object once, soon after it was made; at whatever stays every ten minutes only.

    Most objects go when nobody names them any more, without the collector; only cycles need it. What learns makes many
    at once: those are not looked at before everything is.

    Args:
        again_s: see :data:`AGAIN_S`.
        clock: monotonic seconds.
        learns: whether something learns or plans beside frames.
    """

    def __init__(
        self,
        again_s: float = AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
        learns: Callable[[], bool] = background.learns,
    ) -> None:
        self._again_s, self._clock, self._learns = again_s, clock, learns
        self._whole_s = clock()
        self._learnt = False
        self._before: Optional[Tuple[int, int, int]] = None

    def begin(self) -> None:
        """Look at everything now, when nobody waits."""
        if self._before is None:
            self._before = gc.get_threshold()
            gc.set_threshold(*self._before[:2], NEVER)
        self._whole_s = self._clock()
        self._pass()

    def look(self) -> None:
        """Look at what is new; call it about once a second."""
        if self._before is None:
            return
        if self._learns():
            self._learnt = True
            return
        if self._learnt:
            self._learnt = False
            gc.freeze()
            return
        if self._clock() - self._whole_s >= self._again_s:
            gc.unfreeze()
            self._whole_s = self._clock()
        self._pass()

    def end(self) -> None:
        """Leave the collector as it was; more than once is as good as once."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Begin, look every second in a thread of its own, and end."""
        over = threading.Event()

        def looks() -> None:
            while not over.wait(EVERY_S):
                self.look()

        thread = threading.Thread(target=looks, name="edge-offload-collector", daemon=True)
        self.begin()
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.end()

    @staticmethod
    def _pass() -> None:
        gc.collect()
        gc.freeze()
