"""Calls of workers: the choice of a worker, arrival of its tensors, and expected ends."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Callable, Dict, Iterator, List, Optional, Set, Tuple

from edge_offload.server.pool.dispatch.members import Members
from edge_offload.server.pool.dispatch.queues import OVERDUE_GRACE_S, Job, StageCall, StageQueue
from edge_offload.server.pool.links import NEAR

#: Overdue calls without an answer between them, or strikes of one call, after which a node is excluded.
STRIKES = 2


class Workers:
    """Workers with at most one computing call and one whose tensors arrive meanwhile.

    Args:
        members: present workers.
        start: makes a call.
        lead_s: time before the end of a call at which a worker of a first stage is sent the next one.

    Attributes:
        links: links are emulated: transfers between stages are delayed until they would arrive.
        stages_due: stages in which a worker or a batch may have become ready.
        check_s: time at which the earliest call may be overdue.
    """

    def __init__(self, members: Members, start: Callable[[StageCall], None], lead_s: float) -> None:
        self.links = False
        self.stages_due: Dict[StageQueue, None] = {}
        self.check_s = math.inf
        self._members, self._start, self._lead_s = members, start, lead_s
        self._calls: Dict[int, StageCall] = {}
        self._timers: List[Tuple[float, int, StageQueue, Optional[StageCall]]] = []
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[StageCall]:
        return iter(list(self._calls.values()))

    def choose_worker(
        self, stage: StageQueue, now: float, size: int, job: Optional[Job] = None
    ) -> Optional[Tuple[int, float]]:
        """Return the worker that starts a batch first, and the arrival of its tensors; None: no worker is free.

        Workers that did not receive the batch before, on nodes without suspicions, come first if they may be in time.
        """
        workers = stage.present
        tried = {worker for stage_id, worker in job.tried if stage_id == id(stage)} if job is not None else set()
        avoid: Set[str] = self._members.suspects
        if avoid or tried:
            workers = [worker for worker in workers if worker not in tried]
            avoid |= {stage.nodes[worker] for worker in tried}
            path_s = stage.route.path_s[stage.number][size]
            wait_s = math.inf if job is None else job.latest - path_s
            preferred = [
                worker for worker in workers if stage.nodes[worker] not in avoid and stage.free_s[worker] <= wait_s
            ]
            workers = preferred or workers
        best, ready_by_machine = (math.inf, math.inf, -1), {}
        for worker in workers:
            if not stage.accepts_batch(worker, now, self._lead_s):
                continue
            ready_at = now
            if stage.number and job is not None:
                machine = stage.machines[worker]
                if machine not in ready_by_machine:
                    transfer_s = stage.transfer_s * size
                    ready_by_machine[machine] = (
                        stage.route.links.earliest_start(job.machine, machine, now, transfer_s) + transfer_s
                    )
                ready_at = ready_by_machine[machine]
            best = min(best, (max(ready_at, stage.free_s[worker]), ready_at, worker))
        return (best[2], best[1]) if best[2] >= 0 else None

    def send_job(self, stage: StageQueue, worker: int, job: Job, ready_at: float, now: float) -> None:
        """Make a call whose tensors arrive at ``ready_at``."""
        size = len(job.requests)
        compute_s = stage.compute_s[size]
        due = max(ready_at, stage.free_s[worker]) + compute_s
        call = StageCall(next(self._numbers), job, stage, worker, job.payload, job.holder, ready_at, compute_s, due)
        stage.free_s[worker] = due
        stage.busy_s += compute_s
        if stage.number:
            machine = stage.machines[worker]
            stage.route.links.reserve_span(job.machine, machine, ready_at - stage.transfer_s * size, ready_at, now)
        stage.calls[worker].append(call)
        self._calls[call.number] = call
        job.tried.add((id(stage), worker))
        job.queued = None
        job.running += 1
        self.check_s = min(self.check_s, call.limit)
        if ready_at > now:
            self.add_timer(ready_at, stage, call)
        if ready_at <= now or not self.links:
            self._send_call(call)
        if not stage.number and self._lead_s:
            self.add_timer(due - self._lead_s, stage)

    def _send_call(self, call: StageCall) -> None:
        call.sent = True
        self._start(call)

    def add_timer(self, until: float, stage: StageQueue, call: Optional[StageCall] = None) -> None:
        """Add a timer that checks a stage at ``until``."""
        heapq.heappush(self._timers, (until, next(self._numbers), stage, call))

    def run_timers(self, now: float) -> None:
        """Send calls whose tensors have arrived, and mark stages whose timers are due."""
        while self._timers and self._timers[0][0] <= now:
            _, _, stage, call = heapq.heappop(self._timers)
            self.stages_due[stage] = None
            if call is None or call.sent or call.number not in self._calls:
                continue
            if call.job.done:
                self.remove_call(call.number, now)
            else:
                self._send_call(call)

    @property
    def next_wake_s(self) -> float:
        """Latest time of the next wake or check."""
        return min(self._timers[0][0] if self._timers else math.inf, self.check_s)

    def remove_call(self, number: int, now: float) -> Optional[StageCall]:
        """Remove a call that is in flight; None: it is not."""
        call = self._calls.pop(number, None)
        if call is None:
            return None
        if call.overdue:
            call.job.overdue -= 1
        else:
            call.job.running -= 1
        stage, worker = call.table, call.worker
        stage.calls[worker].remove(call)
        free_s = now
        for other in stage.calls[worker]:
            other.due = free_s = max(free_s, other.ready_at) + other.compute_s
            self.check_s = min(self.check_s, other.limit)
        stage.free_s[worker] = free_s
        self.stages_due[stage] = None
        return call

    def find_overdue(self, now: float) -> List[StageCall]:
        """Return calls that exceeded their limit, or did so for the second time."""
        late, self.check_s = [], math.inf
        for call in self:
            if call.sent and call.strikes < STRIKES and now >= call.limit - NEAR:
                call.strikes += 1
                late.append(call)
            if call.overdue and not call.job.done:
                self.check_s = min(self.check_s, max(now, call.job.latest) + OVERDUE_GRACE_S)
            if call.strikes < STRIKES:
                self.check_s = min(self.check_s, call.limit)
        return late

    def abandon_call(self, call: StageCall) -> None:
        """Abandon a call; it may still answer."""
        call.overdue = True
        call.job.running -= 1
        call.job.overdue += 1
        self.check_s = min(self.check_s, call.job.latest + OVERDUE_GRACE_S)
