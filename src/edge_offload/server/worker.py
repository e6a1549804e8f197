"""A thread that works off a fair queue: the device's owner, or the loader of models."""

from __future__ import annotations

import logging
import threading
from typing import Callable, Hashable, Optional

from edge_offload.server.fair_queue import FairQueue

Job = Callable[[], None]
_log = logging.getLogger(__name__)


class Worker:
    """Runs jobs one after the other in its own thread. A job that fails is logged and never ends the thread.

    Args:
        name: of the thread.
        queue: where jobs wait.
        prepare: called once in the thread before the first job.
    """

    def __init__(self, name: str, queue: FairQueue[Job], prepare: Optional[Callable[[], None]] = None) -> None:
        self.queue = queue
        self._prepare = prepare
        self._ready = threading.Event()
        self._failure: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start, and return once ``prepare`` is done.

        Raises:
            Exception: what ``prepare`` raised.
        """
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def submit(self, peer: Hashable, job: Job, cost_s: float = 0.0) -> None:
        """Queue a job that will take about ``cost_s`` seconds.

        Raises:
            Refused: the queue is full or closed.
        """
        self.queue.put(peer, job, cost_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Drop what waits, let the running job end; False if it has not within ``timeout_s``."""
        self.queue.close()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            if self._prepare is not None:
                self._prepare()
        except Exception as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        while True:
            taken = self.queue.get()
            if taken is None:
                return
            try:
                taken[0]()
            except (Exception, SystemExit):  # a model that calls sys.exit must not take the thread with it
                _log.exception("a job of %s failed", self._thread.name)
            finally:
                self.queue.served()
