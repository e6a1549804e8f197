"""Requests in batches, stage by stage: whose deadline is first goes first, and what cannot be in time is dropped.

A batch is formed when a worker becomes free. It goes elsewhere when a stage is overdue; a node that is so twice is out
of the plan. Ray tells of a frozen or cut-off node after a minute, so every call has its expected end here. Pure: times
are given, calls are made by whoever drives it; the first answer wins.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Any, Callable, Mapping, Sequence, Tuple

from edge_offload.server.pool.dispatch.elsewhere import stranded, way_on
from edge_offload.server.pool.dispatch.members import Members
from edge_offload.server.pool.dispatch.outcomes import Outcomes
from edge_offload.server.pool.dispatch.queues import Call, Job, Request, Route, Stage, Worker
from edge_offload.server.pool.dispatch.workers import STRIKES, Workers
from edge_offload.server.pool.links import NEAR

_NOBODY = "full: no member of the pool is there"
_LATE = "full: the pool cannot answer in time"


class Dispatcher:
    """Serves the requests of one network by its routes.

    Args:
        start: makes a call; :meth:`ended` or :meth:`failed` is called when it has.
        answer: takes a batch's requests and the outputs of its last stage.
        refuse: takes requests that are not computed, and why.
        slack_s: by so much, at most, batches are to end before the deadline: what calls and clocks cost. Less where
            batches are known to end nearer to their expected ends.
        lead_s: so long before the end of a call a worker of a first stage is sent the next one.

    Attributes:
        members: who is there.
        outcomes: what became of batches.
    """

    def __init__(
        self,
        start: Callable[[Call], None],
        answer: Callable[[Tuple[int, ...], Any], None],
        refuse: Callable[[Sequence[int], str], None],
        slack_s: float = 0.0,
        lead_s: float = 0.0,
    ) -> None:
        self.members, self.outcomes = Members(), Outcomes(slack_s)
        self.calls = Workers(self.members, start, lead_s)
        self._answer, self._refuse = answer, refuse
        self._numbers = itertools.count()

    def use(
        self, routes: Sequence[Route], nodes: Mapping[Worker, str], absent: Sequence[Worker], links: bool = False
    ) -> None:
        """Serve by these routes from now on; what is under way goes on as it began.

        Args:
            routes: with fresh queues.
            nodes: of each worker.
            absent: workers that are not there yet; see :meth:`absent`.
            links: links are emulated: what goes from stage to stage is held until it would be there.
        """
        self.members.use(routes, nodes, absent)
        self.calls.links = links
        for stage in self.members.stages():
            for free_s in stage.free_s:
                self.calls.wait(free_s, stage)

    def absent(self, worker: Worker) -> None:
        """A worker is not there until :meth:`~.members.Members.present`."""
        route, stage, number = worker
        self.members.leave(self.members.routes[route].stages[stage], number)

    def arrive(self, request: int, inputs: Any, deadline: float) -> None:
        """A request comes; deadlines rise with arrival."""
        route = self.members.place(Request(deadline, request, inputs))
        if route is not None:
            self.calls.look[route.stages[0]] = None

    def step(self, now: float) -> float:
        """Send what can be, look at what is overdue; when to come again at the latest."""
        if self.members.changed or self.members.unplaced:
            self._settle()
        self.calls.wake(now)
        if now >= self.calls.check_s:
            self._check(now)
        for route in self.members.able:
            if route.drop_s(self.outcomes.slack_s) <= now:
                self.calls.look[route.stages[0]] = None
        while self.calls.look or self.members.changed:
            if self.members.changed:
                self._settle()
            look, self.calls.look = list(self.calls.look), {}
            for stage in look:
                self._serve(stage, now)
        return min([self.calls.again_s, *(route.drop_s(self.outcomes.slack_s) for route in self.members.able)])

    def ended(self, number: int, payload: Any, now: float, stays: bool = False) -> None:
        """A call has ended; what it gave, and whether that stays in its node's store until somebody takes it."""
        call = self.calls.remove(number, now)
        if call is None:
            return
        self.members.heard(call.node, stays)
        self.outcomes.late_s.append(now - call.due)
        job, after = call.job, call.stage + 1
        if job.done or call.route.left_s(after, len(job.requests)) >= job.left_s:
            return  # another call was first
        job.late_s += max(0.0, now - call.due)
        job.route, job.stage = call.route, after
        job.payload, job.at = payload, call.node if stays else ""
        job.machine = call.table.machines[call.worker]
        if after < len(call.route.stages):
            self._queue(job)
            return
        self.outcomes.learn(job.late_s)
        if job.stranded is not None:
            job.stranded.answered = now
            self.outcomes.moved_in_time += len(job.requests) if now <= job.deadline else 0
        self._finish(job)
        self._answer(job.requests, payload)

    def failed(self, number: int, why: str, gone: bool, now: float) -> None:
        """A call has failed; ``gone``: since its worker is not there any more (see :meth:`absent`)."""
        call = self.calls.remove(number, now)
        if call is None:
            return
        if gone:
            self.members.doubted.add(call.node)
            self.members.leave(call.table, call.worker)
            self._settle()
        self._go_elsewhere(call, now, f"full: a member of the pool failed: {why}"[:500])

    def node_lost(self, node: str, now: float) -> None:
        """A node is gone, or does not answer: what is under way there, or needs what it has, goes elsewhere."""
        self.members.take_out(node, now)
        self._settle()
        for call in self.calls:
            if not call.overdue and node in (call.node, call.at):
                self.calls.abandon(call)
                self._go_elsewhere(call, now, _NOBODY)

    # ------------------------------------------------------------------ requests

    def _settle(self) -> None:
        """Look at every stage, as other workers are there."""
        nowhere = self.members.settle()
        if nowhere:
            self._refuse([request.number for request in nowhere], _NOBODY)
        self.calls.look.update(dict.fromkeys(self.members.stages()))

    def _admit(self, route: Route, now: float) -> None:
        """Form batches of requests for free workers; a request that would make a batch less than full is dropped."""
        stage, paths, dropped = route.stages[0], route.path_s[0], []
        while route.requests:
            deadline = route.requests[0].deadline - self.outcomes.slack_s
            size = route.batch if len(route.requests) > route.batch else 1
            if now + paths[size] > deadline + NEAR:
                dropped.append(route.requests.popleft().number)
                continue
            size = min(route.batch, len(route.requests))
            choice = self.calls.pick(stage, now, size)
            if choice is None:
                break
            begin = max(now, stage.free_s[choice[0]])
            while size and begin + paths[size] > deadline + NEAR:
                size -= 1
            if not size:
                dropped.append(route.requests.popleft().number)
                continue
            given = [route.requests.popleft() for _ in range(size)]
            numbers, inputs = tuple(each.number for each in given), [each.inputs for each in given]
            job = Job(numbers, given[0].deadline, given[-1].deadline, inputs, now, route)
            job.restart(route)
            self.calls.send(stage, choice[0], job, now, now)
        if dropped:
            self._refuse(dropped, _LATE)

    # ------------------------------------------------------------------ batches

    def _queue(self, job: Job) -> None:
        stage = job.queued = job.route.stages[job.stage]
        heapq.heappush(stage.jobs, (job.deadline, next(self._numbers), job))
        self.calls.look[stage] = None

    def _serve(self, stage: Stage, now: float) -> None:
        """Send a stage's batches to workers that take one, whose deadline is first before others."""
        passed = []
        while stage.jobs:
            entry = heapq.heappop(stage.jobs)
            job = entry[-1]
            if job.done or job.queued is not stage:
                continue
            if job.at in self.members.out or not job.untried(stage):
                self._again(job, now, _NOBODY)
                continue
            size = len(job.requests)
            choice = self.calls.pick(stage, now, size, job)
            path_s = stage.route.path_s[stage.number][size]
            begin = now if choice is None else max(choice[1], stage.free_s[choice[0]])
            if begin + path_s + self.outcomes.slack_s * (job.stranded is None) > job.latest + NEAR:
                self._give_up(job, _LATE)
            elif choice is not None:
                self.calls.send(stage, choice[0], job, choice[1], now)
            else:
                passed.append(entry)
                if job.watched is not stage:
                    job.watched = stage
                    self.calls.wait(job.latest - path_s + 2 * NEAR, stage)
                if not any(stage.opens(worker, now, 0.0) for worker in stage.there):
                    break
        for entry in passed:
            heapq.heappush(stage.jobs, entry)
        if not stage.number:
            self._admit(stage.route, now)

    def _check(self, now: float) -> None:
        """Strike nodes whose calls are overdue, and refuse what nobody answers any more."""
        for call in self.calls.overdue(now):
            node = call.at if call.at in self.members.suspects else call.node
            if call.at:
                self.members.doubted.add(call.at)
            self.members.strikes[node] = self.members.strikes.get(node, 0) + 1
            if not call.overdue:
                self.calls.abandon(call)
                self._go_elsewhere(call, now, _NOBODY)
            if self.members.strikes.get(node, 0) >= STRIKES and node not in self.members.out:
                self.node_lost(node, now)
        for call in self.calls:
            job = call.job
            if call.overdue and not job.done and now >= job.latest and job.queued is None and not job.running:
                self._finish(job)
                self._refuse(job.requests, "full: no member of the pool answered in time")

    def _go_elsewhere(self, call: Call, now: float, why: str) -> None:
        """A call is not counted on any more: its batch needs another, unless it has one."""
        job = call.job
        if job.done or job.queued is not None or job.running:
            return
        if job.stranded is None:
            job.stranded = stranded(call, self.members.able, now)
            self.outcomes.stranded.append(job.stranded)
            self.outcomes.moved += len(job.requests)
        self._again(job, now, why)

    def _again(self, job: Job, now: float, why: str) -> None:
        """Queue a batch once more: from its last tensors, or from its inputs where those may be late or lost."""
        possible, route = way_on(job, self.members, now, self.outcomes.slack_s)
        if route is not None:
            job.restart(route)
        if possible:
            self._queue(job)
        else:
            self._give_up(job, why)

    def _give_up(self, job: Job, why: str) -> None:
        """Refuse a batch, unless a call that is overdue may still answer it."""
        job.queued = None
        if not job.overdue and not job.running:
            self._finish(job)
            self._refuse(job.requests, why)

    def _finish(self, job: Job) -> None:
        job.done, job.queued, job.inputs, job.payload = True, None, [], None
