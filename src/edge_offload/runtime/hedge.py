"""A remote computation that is late gets a local rival; the first valid result wins, the other is dropped.

When one is late, :mod:`edge_offload.manager.lateness` says. Remote attempts run on threads of their own; while one that
lost its race is still out, no further frame waits for the server. The robot computes one frame at a time, however many
are under way.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Callable, List, Optional, Protocol, Tuple

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.manager.tuning import MOST_IN_FLIGHT, POLL_S
from edge_offload.mode import TABLE, Mode
from edge_offload.modes.local import LocalRunner
from edge_offload.modes.runner import Attempt, FailedAttempt
from edge_offload.timing import InferenceReport

#: Seconds between two looks whether a local computation should be joined; a shorter one never is.
JOIN_EVERY_S = 2 * POLL_S

Remote = Callable[[], Attempt]
Local = Callable[[threading.Event], Attempt]
#: Called with the seconds of a remote attempt that lost its race, and its result (None: it failed).
OnLateResult = Callable[[float, Optional[Attempt]], None]


class RaceTimer(Protocol):
    """Decides when the local attempt starts beside a remote one."""

    def hedge_at(self) -> float:
        """Return the start of the local attempt (monotonic seconds), which may move."""

    def link_stopped(self) -> bool:
        """Tell whether it starts now because the link has stopped."""

    def next_check_at(self) -> float:
        """Return the earliest time at which either may change (monotonic seconds)."""


@dataclass(frozen=True)
class Outcome:
    """The end of a race.

    Attributes:
        attempt: the result that is used.
        remote: whether it is the remote one.
        hedged: whether the local computation was started.
        local_s: how long the local computation had run when the race ended (seconds).
        reason: why it is not the remote one; empty when it is.
        lost: what the remote attempt had put on the link when it failed; None if it did not fail.
        remote_s: how long the remote attempt took, where it began later than the frame (seconds); nan elsewhere.
        waited_s: how long it waited for inferences before it, before it began (seconds).
    """

    attempt: Attempt
    remote: bool
    hedged: bool = False
    local_s: float = 0.0
    reason: str = ""
    lost: Optional[FailedAttempt] = None
    remote_s: float = math.nan
    waited_s: float = 0.0

    def report(
        self, mode: Mode, reason: str, total_s: float, name: str, local: LocalRunner, usual_bytes_up: int
    ) -> Tuple[InferenceReport, InferenceReport]:
        """Return what the inference cost, and the same without the time spent behind earlier ones, to learn from.

        Args:
            mode: that was asked for.
            reason: why another one ran; empty when none did.
            total_s: what it took (seconds).
            name: of the model.
            local: what computes on the robot.
            usual_bytes_up: what a frame in ``mode`` puts on the link.
        """
        attempt = self.attempt
        stages_s = dict(attempt.stages_s)
        stages_s["queue"] = stages_s.get("queue", 0.0) + self.waited_s
        wasted_s = 0.0
        lost_bytes = lost_trips = 0
        if self.remote and self.hedged:
            stages_s["compute_robot"] = stages_s.get("compute_robot", 0.0) + self.local_s
            wasted_s = max(0.0, local.expected_s() - self.local_s)
        elif self.lost is not None:
            lost_bytes, lost_trips = self.lost.bytes_up, 1
        elif self.hedged:
            # the request is on its way still: the radio was busy while the robot waited
            stages_s["uplink"] = max(0.0, total_s - stages_s["compute_robot"])
            lost_bytes, lost_trips = usual_bytes_up, 1
        report = InferenceReport(
            mode=mode if self.remote else Mode.LOCAL,
            model=name,
            total_s=total_s,
            stages_s=stages_s,
            bytes_up=attempt.bytes_up + lost_bytes,
            bytes_down=attempt.bytes_down,
            round_trips=attempt.round_trips + lost_trips,
            clock_error_s=attempt.clock_error_s,
            emulated_slowdown=local.slowdown,
            fallback_reason=reason or attempt.note,
            hedged=self.hedged,
            wasted_s=wasted_s,
            engine=attempt.engine,
            behind_s=self.waited_s + sum(attempt.behind_s.values()),
            part_s=attempt.part_s or total_s - self.waited_s,
            lead_s=attempt.lead_s,
            overlap_s=attempt.overlap_s if self.remote else math.nan,
        )
        stages_s = {**report.stages_s, "queue": report.stages_s["queue"] - self.waited_s}
        to_learn = replace(report, total_s=total_s - self.waited_s, stages_s=stages_s)
        if self.remote and not math.isnan(self.remote_s):
            # the server was asked when the robot had been computing for a while: that is no time of the server's
            to_learn = replace(report, total_s=self.remote_s, stages_s=dict(attempt.stages_s), hedged=False)
        return report, without_queueing(to_learn, attempt)


def without_queueing(report: InferenceReport, attempt: Attempt) -> InferenceReport:
    """Return the report of an inference alone: nothing before it delays it, and nothing passes before its turn."""
    if not (attempt.behind_s or attempt.ahead_s) or not TABLE[report.mode].needs_link:
        return report
    stages_s = {stage: max(0.0, seconds - attempt.behind_s.get(stage, 0.0))
                for stage, seconds in report.stages_s.items()}  # fmt: skip
    total_s = report.total_s - sum(attempt.behind_s.values()) + attempt.ahead_s
    return replace(report, total_s=total_s, stages_s=stages_s)


class Hedge:
    """Races remote against local attempts. Thread-safe: several frames may be under way at once."""

    def __init__(self) -> None:
        self._remote = concurrent.futures.ThreadPoolExecutor(MOST_IN_FLIGHT, "edge-offload-remote")
        self._local = concurrent.futures.ThreadPoolExecutor(1, "edge-offload-local")
        self._lost: List[Tuple[Future[Any], float]] = []
        self._lock, self._processor = threading.Lock(), threading.Lock()

    def find_overdue_attempt(self) -> Optional[str]:
        """Return why no remote attempt can begin now: one that lost its race is still out."""
        with self._lock:
            lost = self._lost = [each for each in self._lost if not each[0].done()]
        return f"the server has not answered for {time.monotonic() - lost[0][1]:.2f} s" if lost else None

    def race_attempts(
        self, remote: Remote, local: Local, timer: RaceTimer, on_late_result: Optional[OnLateResult] = None
    ) -> Outcome:
        """One frame: remote, and local too when the remote result is late; the first valid result wins.

        Args:
            remote: begins at once.
            local: what the robot computes by itself.
            timer: gives the time at which the local attempt starts.
            on_late_result: called when a remote attempt that lost its race ends, on its thread.

        Raises:
            Exception: what the local computation raised, if the remote one failed as well.
        """
        started_s = time.monotonic()
        out = self._remote.submit(remote)
        if self._await_in_time(out, timer):
            return self._run_or_compute_locally(out.result, local)
        return self._finish_race(out, self._start_local(local), started_s, on_late_result)

    def run_inline(self, attempt: Remote, local: Local) -> Outcome:
        """One frame of a mode that leaves it to the robot: on the calling thread, whose memory is warm.

        Raises:
            Exception: what the local computation raised.
        """
        return self._run_or_compute_locally(lambda: self.run_unraced(lambda _cancelled: attempt()), local)

    def _run_or_compute_locally(self, attempt: Remote, local: Local) -> Outcome:
        """A mode's attempt without a rival, and the local computation in its place where it fails."""
        try:
            return Outcome(attempt(), remote=True)
        except EdgeOffloadError as lost:
            run_inline = self.run_unraced(local)
            return Outcome(run_inline, False, False, run_inline.stages_s["compute_robot"], str(lost), _failed(lost))

    @staticmethod
    def _await_in_time(out: Future[Any], timer: RaceTimer) -> bool:
        """Wait for a remote attempt; whether it ended before it was time to begin here."""
        while True:
            wait_s = min(max(0.0, timer.next_check_at() - time.monotonic()), threading.TIMEOUT_MAX)
            if concurrent.futures.wait([out], wait_s).done:
                return True
            if timer.hedge_at() <= time.monotonic() or timer.link_stopped():
                return False

    def race_joined(
        self,
        local: Local,
        join: Callable[[float], Optional[Remote]],
        every_s: float = JOIN_EVERY_S,
        on_late_result: Optional[OnLateResult] = None,
    ) -> Outcome:
        """One frame: local, and remote too as soon as there is a reason; the first valid result wins.

        Args:
            local: begins at once.
            join: asked every ``every_s`` seconds, with the seconds since the begin, for a remote attempt to add.
            every_s: seconds between two looks.
            on_late_result: as in :meth:`race_attempts`.

        Raises:
            Exception: what the local computation raised, if no remote one was added or it failed as well.
        """
        rival = self._start_local(local)
        remote: Optional[Remote] = None
        while remote is None:
            done, _ = concurrent.futures.wait([rival.out], every_s)
            if done:
                return Outcome(rival.out.result(), False)
            remote = join(time.monotonic() - rival.requested_s)
        started_s = time.monotonic()
        outcome = self._finish_race(self._remote.submit(remote), rival, started_s, on_late_result)
        return replace(outcome, remote_s=time.monotonic() - started_s) if outcome.remote else outcome

    def _finish_race(
        self, out: Future[Any], rival: _LocalAttempt, started_s: float, on_late_result: Optional[OnLateResult]
    ) -> Outcome:
        """Return the outcome of whichever of the two ends first; ``started_s``: when the remote one did."""
        concurrent.futures.wait([out, rival.out], return_when=concurrent.futures.FIRST_COMPLETED)
        if out.done() and out.exception() is None:
            rival.cancelled.set()
            return Outcome(out.result(), True, True, rival.ran_s())
        if not rival.out.done():
            concurrent.futures.wait([rival.out])
        if rival.out.exception() is not None:
            # the model fails here: the server's answer, if one comes, is the only one there can be
            return Outcome(out.result(), True, True, rival.ran_s())
        lost = out.exception() if out.done() else None
        if lost is None:
            with self._lock:
                self._lost.append((out, started_s))
            if on_late_result is not None:
                report_result = on_late_result
                out.add_done_callback(
                    lambda done: report_result(
                        time.monotonic() - started_s, None if done.exception() else done.result()
                    )
                )
        waited_s = max(0.0, rival.requested_s - started_s)
        reason = f"the server did not answer within {waited_s:.3f} s" if lost is None else str(lost)
        return Outcome(rival.out.result(), False, True, rival.ran_s(), reason, _failed(lost))

    def run_unraced(self, local: Local) -> Attempt:
        """The local computation without a rival, once another one has left the processor."""
        with self._processor:
            return local(threading.Event())

    def close(self) -> None:
        """Let the threads end when what they do is done."""
        self._remote.shutdown(wait=False)
        self._local.shutdown(wait=False)

    def _start_local(self, local: Local) -> _LocalAttempt:
        # results depend on the number of threads, which torch keeps per thread
        threads = torch.get_num_threads()
        rival = _LocalAttempt(time.monotonic())

        def run() -> Attempt:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            with self._processor:
                if rival.cancelled.is_set():
                    return Attempt(())  # the remote result is there
                rival.started_s = time.monotonic()
                return local(rival.cancelled)

        rival.out = self._local.submit(run)
        return rival


class _LocalAttempt:
    """A requested local computation, which may wait for the processor."""

    def __init__(self, requested_s: float) -> None:
        self.requested_s, self.started_s = requested_s, math.inf
        self.cancelled = threading.Event()
        self.out: Future[Any]

    def ran_s(self) -> float:
        """Return the seconds that it has computed."""
        return max(0.0, time.monotonic() - self.started_s)


def _failed(error: Optional[BaseException]) -> Optional[FailedAttempt]:
    return error if isinstance(error, FailedAttempt) else None
