"""Executors that are started when their robot connects, while its program still imports torch."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, List, Sequence

from edge_offload.link.transport.peers import Peer
from edge_offload.server.services.device.executor import ExecutorProcess


class ExecutorSupply:
    """Starts executors ahead of the sessions that use them. Thread-safe.

    Args:
        options: command line of each.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._prepared: Dict[Peer, ExecutorProcess] = {}
        self._closed = False

    def prepare_executor(self, peer: Peer) -> None:
        """Start an executor for a robot that has connected, in a thread."""
        with self._lock:
            if self._closed or peer in self._prepared:
                return
            executor = self._prepared[peer] = ExecutorProcess(self._options)

        def start() -> None:
            with contextlib.suppress(OSError):  # the session that takes it tries again, and reports it
                executor.start()

        threading.Thread(target=start, name="edge_offload-prepare", daemon=True).start()

    def take_executor(self, peer: Peer) -> ExecutorProcess:
        """Return the executor of a new session: the one that was started for its robot, or one to be started."""
        with self._lock:
            executor = self._prepared.pop(peer, None)
        return executor or ExecutorProcess(self._options)

    def discard_executor(self, peer: Peer) -> None:
        """End the executor of a robot that has gone without using it."""
        with self._lock:
            executor = self._prepared.pop(peer, None)
        if executor is not None:
            _end_all([executor])

    def close(self) -> None:
        """End all executors that no session has taken."""
        with self._lock:
            self._closed = True
            unused = list(self._prepared.values())
            self._prepared.clear()
        _end_all(unused)


def _end_all(executors: List[ExecutorProcess]) -> None:
    for executor in executors:
        threading.Thread(target=executor.kill_process, daemon=True).start()
