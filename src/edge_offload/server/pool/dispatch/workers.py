"""Calls of workers: to whom a batch goes, when its tensors are there, and when it is expected to end."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Callable, Dict, Iterator, List, Optional, Set, Tuple

from edge_offload.server.pool.dispatch.members import Members
from edge_offload.server.pool.dispatch.queues import GRACE_S, Call, Job, Stage
from edge_offload.server.pool.links import NEAR

#: So many overdue calls without an answer between them, or one so often, take a node out of the plan.
STRIKES = 2


class Workers:
    """A worker has at most one call that computes and one whose tensors come meanwhile.

    Args:
        members: who is there.
        start: makes a call.
        lead_s: so long before the end of a call a worker of a first stage is sent the next one.

    Attributes:
        links: links are emulated: what goes from stage to stage is held until it would be there.
        look: stages in which a worker or a batch may have become ready.
        check_s: when the earliest call may be overdue.
    """

    def __init__(self, members: Members, start: Callable[[Call], None], lead_s: float) -> None:
        self.links = False
        self.look: Dict[Stage, None] = {}
        self.check_s = math.inf
        self._members, self._start, self._lead_s = members, start, lead_s
        self._calls: Dict[int, Call] = {}
        self._timers: List[Tuple[float, int, Stage, Optional[Call]]] = []
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls.values()))

    def pick(self, stage: Stage, now: float, size: int, job: Optional[Job] = None) -> Optional[Tuple[int, float]]:
        """The worker that begins a batch first, and when its tensors are there; None: none takes one now.

        One that the batch was not sent to before, on a node that nothing speaks against if that may be in time.
        """
        workers = stage.there
        tried = {worker for of, worker in job.tried if of == id(stage)} if job is not None else set()
        avoid: Set[str] = self._members.suspects
        if avoid or tried:
            workers = [worker for worker in workers if worker not in tried]
            avoid |= {stage.nodes[worker] for worker in tried}
            path_s = stage.route.path_s[stage.number][size]
            wait_s = math.inf if job is None else job.latest - path_s
            good = [w for w in workers if stage.nodes[w] not in avoid and stage.free_s[w] <= wait_s]
            workers = good or workers
        best, moved_at = (math.inf, math.inf, -1), {}
        for worker in workers:
            if not stage.opens(worker, now, self._lead_s):
                continue
            moved = now
            if stage.number and job is not None:
                machine = stage.machines[worker]
                if machine not in moved_at:
                    takes = stage.transfer_s * size
                    moved_at[machine] = stage.route.links.begin(job.machine, machine, now, takes) + takes
                moved = moved_at[machine]
            best = min(best, (max(moved, stage.free_s[worker]), moved, worker))
        return (best[2], best[1]) if best[2] >= 0 else None

    def send(self, stage: Stage, worker: int, job: Job, moved: float, now: float) -> None:
        """Make a call; the tensors are there at ``moved``."""
        size = len(job.requests)
        takes = stage.compute_s[size]
        due = max(moved, stage.free_s[worker]) + takes
        call = Call(next(self._numbers), job, stage, worker, job.payload, job.at, moved, takes, due)
        stage.free_s[worker] = due
        stage.busy_s += takes
        if stage.number:
            machine = stage.machines[worker]
            stage.route.links.take(job.machine, machine, moved - stage.transfer_s * size, moved, now)
        stage.calls[worker].append(call)
        self._calls[call.number] = call
        job.tried.add((id(stage), worker))
        job.queued = None
        job.running += 1
        self.check_s = min(self.check_s, call.limit)
        if moved > now:
            self.wait(moved, stage, call)
        if moved <= now or not self.links:
            self._begin(call)
        if not stage.number and self._lead_s:
            self.wait(due - self._lead_s, stage)

    def _begin(self, call: Call) -> None:
        call.sent = True
        self._start(call)

    def wait(self, until: float, stage: Stage, call: Optional[Call] = None) -> None:
        """Look at a stage then."""
        heapq.heappush(self._timers, (until, next(self._numbers), stage, call))

    def wake(self, now: float) -> None:
        """Make calls whose tensors have come; look at stages for which it is time."""
        while self._timers and self._timers[0][0] <= now:
            _, _, stage, call = heapq.heappop(self._timers)
            self.look[stage] = None
            if call is None or call.sent or call.number not in self._calls:
                continue
            if call.job.done:
                self.remove(call.number, now)
            else:
                self._begin(call)

    @property
    def again_s(self) -> float:
        """When to wake, or to check, at the latest."""
        return min(self._timers[0][0] if self._timers else math.inf, self.check_s)

    def remove(self, number: int, now: float) -> Optional[Call]:
        """A call is not under way any more; None: it was not."""
        call = self._calls.pop(number, None)
        if call is None:
            return None
        if call.overdue:
            call.job.overdue -= 1
        else:
            call.job.running -= 1
        stage, worker = call.table, call.worker
        stage.calls[worker].remove(call)
        at = now
        for other in stage.calls[worker]:
            other.due = at = max(at, other.moved) + other.takes
            self.check_s = min(self.check_s, other.limit)
        stage.free_s[worker] = at
        self.look[stage] = None
        return call

    def overdue(self, now: float) -> List[Call]:
        """Calls that are later than they may be, or are so for the second time."""
        late, self.check_s = [], math.inf
        for call in self:
            if call.sent and call.strikes < STRIKES and now >= call.limit - NEAR:
                call.strikes += 1
                late.append(call)
            if call.overdue and not call.job.done:
                self.check_s = min(self.check_s, max(now, call.job.latest) + GRACE_S)
            if call.strikes < STRIKES:
                self.check_s = min(self.check_s, call.limit)
        return late

    def abandon(self, call: Call) -> None:
        """A call is not counted on any more; it may still answer."""
        call.overdue = True
        call.job.running -= 1
        call.job.overdue += 1
        self.check_s = min(self.check_s, call.job.latest + GRACE_S)
