"""A remote computation that is late gets a local rival; the first valid result wins, the other is dropped.

Waiting for a dead server costs a frame at most the time after which its result counts as late. The remote attempt runs
on a thread of its own; while an old one is still out, no further frame waits for the server.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.modes.runner import Attempt, FailedAttempt

#: Seconds between two looks at whether the server has come back while the robot computes.
JOIN_EVERY_S = 0.02

Remote = Callable[[], Attempt]
Local = Callable[[threading.Event], Attempt]


@dataclass(frozen=True)
class Outcome:
    """How a race ended.

    Attributes:
        attempt: the result that is used.
        remote: whether it is the remote one.
        hedged: whether the local computation was started.
        local_s: how long the local computation had run when the race ended (seconds).
        reason: why it is not the remote one; empty when it is.
        lost: what the remote attempt had put on the link when it failed; None if it did not fail.
        remote_s: how long the remote attempt took, where it began later than the frame (seconds); nan elsewhere.
    """

    attempt: Attempt
    remote: bool
    hedged: bool = False
    local_s: float = 0.0
    reason: str = ""
    lost: Optional[FailedAttempt] = None
    remote_s: float = math.nan


class Hedge:
    """Races remote against local attempts, frame after frame. Used by one thread at a time.

    Args:
        settled: called with (seconds, attempt or None) when a remote attempt that lost its race ends, on its thread.
    """

    def __init__(self, settled: Optional[Callable[[float, Optional[Attempt]], None]] = None) -> None:
        self._settled = settled
        self._remote = concurrent.futures.ThreadPoolExecutor(1, "edge-offload-remote")
        self._local = concurrent.futures.ThreadPoolExecutor(1, "edge-offload-local")
        self._out: Optional[Future[Any]] = None
        self._out_since_s = 0.0
        self._straggler: Optional[Future[Any]] = None

    def unavailable_reason(self) -> Optional[str]:
        """Why no remote attempt can begin now: an old one is still out."""
        out = self._out
        if out is None or out.done():
            return None
        return f"the server has not answered for {time.monotonic() - self._out_since_s:.2f} s"

    def run(
        self,
        remote: Remote,
        local: Local,
        late_s: float,
        stopped: Optional[Callable[[], bool]] = None,
        every_s: float = math.inf,
    ) -> Outcome:
        """One frame: remote, and local too when the remote result is not there after ``late_s`` seconds (inf: never).

        Args:
            remote: begins at once.
            local: what the robot computes by itself.
            late_s: seconds from the begin.
            stopped: asked every ``every_s`` seconds whether there is no use in waiting for that long.
            every_s: seconds between two looks.

        Raises:
            Exception: what the local computation raised, if the remote one failed as well.
        """
        began = time.monotonic()
        self._out, self._out_since_s = self._remote.submit(remote), began
        if self._came_in(self._out, late_s, stopped, every_s):
            lost = self._out.exception()
            if lost is None:
                return Outcome(self._out.result(), remote=True)
            if not isinstance(lost, EdgeOffloadError):
                raise lost
            attempt = self.alone(local)
            return Outcome(attempt, False, False, attempt.stages_s["compute_robot"], str(lost), _failed(lost))
        return self._race(self._out, local, began)

    @staticmethod
    def _came_in(out: Future[Any], late_s: float, stopped: Optional[Callable[[], bool]], every_s: float) -> bool:
        """Wait for a remote attempt; whether it ended before it was time to begin here."""
        ends = time.monotonic() + max(0.0, late_s)
        while True:
            left_s = max(0.0, ends - time.monotonic())
            wait_s = left_s if stopped is None else min(left_s, every_s)
            if concurrent.futures.wait([out], None if math.isinf(wait_s) else wait_s).done:
                return True
            if wait_s >= left_s or (stopped is not None and stopped()):
                return False

    def _race(self, out: Future[Any], local: Local, began: float) -> Outcome:
        started, enough = time.monotonic(), threading.Event()
        return self._first(out, self._start(local, enough), enough, started, began)

    def joined(self, local: Local, join: Callable[[float], Optional[Remote]], every_s: float = JOIN_EVERY_S) -> Outcome:
        """One frame: local, and remote too as soon as there is a reason; the first valid result wins.

        Args:
            local: begins at once.
            join: asked every ``every_s`` seconds, with the seconds since the begin, for a remote attempt to add.
            every_s: seconds between two looks.

        Raises:
            Exception: what the local computation raised, if no remote one was added or it failed as well.
        """
        self._let_straggler_end()
        started, enough = time.monotonic(), threading.Event()
        rival = self._start(local, enough)
        remote: Optional[Remote] = None
        while remote is None:
            done, _ = concurrent.futures.wait([rival], every_s)
            if done:
                return Outcome(rival.result(), False)
            remote = join(time.monotonic() - started)
        began = time.monotonic()
        self._out, self._out_since_s = self._remote.submit(remote), began
        found = self._first(self._out, rival, enough, started, began)
        return replace(found, remote_s=time.monotonic() - began) if found.remote else found

    def _first(
        self, out: Future[Any], rival: Future[Any], enough: threading.Event, started: float, began: float
    ) -> Outcome:
        """Who of the two is first; ``started``, ``began``: when the local and the remote computation did."""
        late_s = max(0.0, started - began)
        concurrent.futures.wait([out, rival], return_when=concurrent.futures.FIRST_COMPLETED)
        if out.done() and out.exception() is None:
            enough.set()
            return Outcome(out.result(), True, True, time.monotonic() - started)
        if not rival.done():
            concurrent.futures.wait([rival])
        if rival.exception() is not None:
            # the model fails here: the server's answer, if one comes, is the only one there can be
            return Outcome(out.result(), True, True, time.monotonic() - started)
        lost = out.exception() if out.done() else None
        if lost is None:
            out.add_done_callback(lambda future: self._end(future, began))
        reason = f"the server did not answer within {late_s:.3f} s" if lost is None else str(lost)
        return Outcome(rival.result(), False, True, time.monotonic() - started, reason, _failed(lost))

    def alone(self, local: Local) -> Attempt:
        """The local computation without a rival, once an earlier one that lost its race has left the processor."""
        self._let_straggler_end()
        return local(threading.Event())

    def _let_straggler_end(self) -> None:
        straggler, self._straggler = self._straggler, None
        if straggler is not None:
            concurrent.futures.wait([straggler])

    def close(self) -> None:
        """Let the threads end when what they do is done."""
        self._remote.shutdown(wait=False)
        self._local.shutdown(wait=False)

    def _start(self, local: Local, enough: threading.Event) -> Future[Any]:
        # results depend on the number of threads, which torch keeps per thread
        threads = torch.get_num_threads()

        def run() -> Attempt:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            return local(enough)

        self._straggler = self._local.submit(run)
        return self._straggler

    def _end(self, future: Future[Any], began: float) -> None:
        if self._settled is not None:
            self._settled(time.monotonic() - began, future.result() if future.exception() is None else None)


def _failed(error: Optional[BaseException]) -> Optional[FailedAttempt]:
    return error if isinstance(error, FailedAttempt) else None
