"""Executors that are started before a session needs one: for each robot that connects, and spare ones for the next.

A spare executor has imported torch, and on a GPU has its context. While memory is scarce there is none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Callable, Dict, List, Sequence, Tuple

import psutil

from edge_offload.link.transport.peers import Peer
from edge_offload.server.services.device import forking
from edge_offload.server.services.device.executor import ExecutorProcess

_log = logging.getLogger(__name__)

#: Share of the machine's memory below which spare executors are given up, and above which they are started again.
SCARCE_SHARE, AMPLE_SHARE = 0.1, 0.2
#: Seconds between two looks at the machine's memory.
LOOK_S = 5.0


def available_share() -> float:
    """Share of the machine's memory that programs can still have, 0 to 1."""
    memory = psutil.virtual_memory()
    return float(memory.available / memory.total)


class ExecutorSupply:
    """Starts executors ahead. Thread-safe.

    Args:
        options: command line of each.
        spares: how many are there for robots that are not connected yet.
        available: share of the memory that is available.
    """

    def __init__(self, options: Sequence[str], spares: int, available: Callable[[], float] = available_share) -> None:
        self._options, self._most, self._available = options, spares, available
        self._lock = threading.Lock()
        self._prepared: Dict[Peer, ExecutorProcess] = {}
        self._spares: List[ExecutorProcess] = []
        self._scarce = self._closed = False
        self._looked_s = time.monotonic()

    def start(self) -> None:
        """Start the spare executors, in threads."""
        with self._lock:
            self._add_spares()

    def prepare_executor(self, peer: Peer) -> None:
        """Start an executor for a robot that has connected, in a thread; a spare one is there already."""
        with self._lock:
            if self._closed or self._spares or peer in self._prepared:
                return
            self._prepared[peer] = self._start_executor()

    def take_executor(self, peer: Peer) -> ExecutorProcess:
        """Return the executor of a new session: that of its robot, a spare one, or one that is not started yet."""
        with self._lock:
            waiting = [self._prepared.pop(peer)] if peer in self._prepared else []
            while self._spares and not waiting:
                waiting = [spare for spare in [self._spares.pop(0)] if not spare.ended]
            self._add_spares()
        return waiting[0] if waiting else ExecutorProcess(self._options)

    def discard_executor(self, peer: Peer) -> None:
        """End the executor of a robot that has gone without using it."""
        with self._lock:
            executor = self._prepared.pop(peer, None)
        if executor is not None:
            _end_all([executor])

    def check_memory(self, in_use: bool) -> None:
        """Give spare executors up while memory is scarce, and start them again after that; to be called now and then.

        Args:
            in_use: programs have executors, which the process that forks them looks after.
        """
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        share = self._available()
        with self._lock:
            was_scarce = self._scarce
            self._scarce = share < (AMPLE_SHARE if was_scarce else SCARCE_SHARE)
            ended: List[ExecutorProcess] = []
            if self._scarce:
                ended, self._spares = self._spares, []
            self._add_spares()
            idle = self._scarce and not in_use and not self._prepared
        if ended:
            _log.warning("%.0f %% of the memory is available: the spare executors are given up", 100 * share)
        _end_all(ended)
        if idle:
            forking.close_fork_server()

    def describe_spares(self) -> Tuple[int, int]:
        """Return how many spare executors are ready, and the bytes that they take with the process that forks them."""
        with self._lock:
            pids = [spare.pid for spare in self._spares if spare.ready]
        forks = forking.fork_server_pid() if pids else []
        return len(pids), sum(_proportional_bytes(pid) for pid in [*pids, *forks] if pid)

    def close(self) -> None:
        """End all executors that no session has taken."""
        with self._lock:
            self._closed = True
            ended, self._spares, self._prepared = [*self._spares, *self._prepared.values()], [], {}
        _end_all(ended)

    def _add_spares(self) -> None:
        """Start executors until there are enough; the caller holds the lock."""
        while len(self._spares) < self._most and not self._scarce and not self._closed:
            self._spares.append(self._start_executor())

    def _start_executor(self) -> ExecutorProcess:
        executor = ExecutorProcess(self._options)

        def start() -> None:
            with contextlib.suppress(OSError):  # the session that takes it tries again, and reports it
                executor.start()

        threading.Thread(target=start, name="edge_offload-prepare", daemon=True).start()
        return executor


def _proportional_bytes(pid: int) -> int:
    """Memory of a process, of shared pages its share; 0 if it has ended."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.Error:
        return 0


def _end_all(executors: Sequence[ExecutorProcess]) -> None:
    for executor in executors:
        threading.Thread(target=executor.kill_process, daemon=True).start()
