"""Runs requests in batches, stage by stage, earliest deadline first, and drops those that cannot be in time.

A batch is formed when a worker becomes free. An overdue call is retried on another worker, and its first response
counts. A node with two overdue calls and no response between them leaves the plan. Each call has an expected end,
since Ray reports a frozen or disconnected node only after a minute. Pure: times come in as arguments
(seconds), and the driver makes the calls.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Any, Callable, Mapping, Sequence, Tuple

from edge_offload.server.pool.dispatch.elsewhere import describe_stranded, find_route
from edge_offload.server.pool.dispatch.members import Members
from edge_offload.server.pool.dispatch.outcomes import Outcomes
from edge_offload.server.pool.dispatch.queues import Job, PoolRequest, Route, StageCall, StageQueue, Worker
from edge_offload.server.pool.dispatch.workers import STRIKES, Workers
from edge_offload.server.pool.links import NEAR

_NO_MEMBER = "full: no member of the pool is there"
_TOO_LATE = "full: the pool cannot answer in time"


class Dispatcher:
    """Serves the requests of one network on its routes (pipelines of stages).

    Args:
        start: makes a call; the driver reports its result to :meth:`end_call` or :meth:`fail_call`.
        answer: receives the numbers of a batch's requests and the outputs of its last stage.
        refuse: receives the numbers of requests that are not computed, and the reason.
        slack_s: largest margin before the deadline by which batches are to end, for the cost of calls and clocks. It
            shrinks when batches are measured to end nearer to their expected ends.
        lead_s: seconds before the end of a call at which a worker of a first stage receives the next call.

    Attributes:
        members: present workers and suspect nodes.
        calls: calls in flight, timers and stages to serve.
        outcomes: lateness of calls, and batches that were moved to another worker.
    """

    def __init__(
        self,
        start: Callable[[StageCall], None],
        answer: Callable[[Tuple[int, ...], Any], None],
        refuse: Callable[[Sequence[int], str], None],
        slack_s: float = 0.0,
        lead_s: float = 0.0,
    ) -> None:
        self.members, self.outcomes = Members(), Outcomes(slack_s)
        self.calls = Workers(self.members, start, lead_s)
        self._answer, self._refuse = answer, refuse
        self._numbers = itertools.count()

    def use_routes(
        self, routes: Sequence[Route], nodes: Mapping[Worker, str], absent: Sequence[Worker], links: bool = False
    ) -> None:
        """Serve by these routes from now on; batches in flight continue on theirs.

        Args:
            routes: with empty queues.
            nodes: name of each worker's node.
            absent: workers that are not present yet; see :meth:`mark_absent`.
            links: whether links are emulated: a transfer between stages is delayed until it would arrive.
        """
        self.members.use_routes(routes, nodes, absent)
        self.calls.links = links
        for stage in self.members.iterate_stages():
            for free_s in stage.free_s:
                self.calls.add_timer(free_s, stage)

    def mark_absent(self, worker: Worker) -> None:
        """Mark a worker absent until :meth:`~.members.Members.mark_present`."""
        route, stage, number = worker
        self.members.mark_absent(self.members.routes[route].stages[stage], number)

    def add_request(self, request: int, inputs: Any, deadline: float) -> None:
        """Queue a request by its absolute deadline (s); requests must be added in the order of deadlines."""
        route = self.members.assign_request(PoolRequest(deadline, request, inputs))
        if route is not None:
            self.calls.stages_due[route.stages[0]] = None

    def step(self, now: float) -> float:
        """Send batches that are ready and check overdue calls; return the time by which to call this again."""
        if self.members.changed or self.members.unplaced:
            self._update_members()
        self.calls.run_timers(now)
        if now >= self.calls.check_s:
            self._check_overdue(now)
        for route in self.members.able:
            if route.drop_s(self.outcomes.slack_s) <= now:
                self.calls.stages_due[route.stages[0]] = None
        while self.calls.stages_due or self.members.changed:
            if self.members.changed:
                self._update_members()
            stages, self.calls.stages_due = list(self.calls.stages_due), {}
            for stage in stages:
                self._serve_stage(stage, now)
        return min([self.calls.next_wake_s, *(route.drop_s(self.outcomes.slack_s) for route in self.members.able)])

    def end_call(self, number: int, payload: Any, now: float, stays: bool = False) -> None:
        """Record the end of a call with its output.

        ``stays``: the output remains in the store of its node, and ``payload`` refers to it.
        """
        call = self.calls.remove_call(number, now)
        if call is None:
            return
        self.members.record_answer(call.node, stays)
        self.outcomes.late_s.append(now - call.due)
        job, after = call.job, call.stage + 1
        if job.done or call.route.remaining_s(after, len(job.requests)) >= job.remaining_s:
            return  # another call of this batch was as far or further
        job.late_s += max(0.0, now - call.due)
        job.route, job.stage = call.route, after
        job.payload, job.holder = payload, call.node if stays else ""
        job.machine = call.table.machines[call.worker]
        if after < len(call.route.stages):
            self._queue_job(job)
            return
        self.outcomes.record_lateness(job.late_s)
        if job.stranded is not None:
            job.stranded.answered = now
            self.outcomes.moved_in_time += len(job.requests) if now <= job.deadline else 0
        self._finish_job(job)
        self._answer(job.requests, payload)

    def fail_call(self, number: int, reason: str, gone: bool, now: float) -> None:
        """Record the failure of a call; ``gone``: its worker is absent now (see :meth:`mark_absent`)."""
        call = self.calls.remove_call(number, now)
        if call is None:
            return
        if gone:
            self.members.doubted.add(call.node)
            self.members.mark_absent(call.table, call.worker)
            self._update_members()
        self._move_job(call, now, f"full: a member of the pool failed: {reason}"[:500])

    def lose_node(self, node: str, now: float) -> None:
        """Remove a lost node from the plan; move batches that run on it, or need its tensors, to other nodes."""
        self.members.exclude_node(node, now)
        self._update_members()
        for call in self.calls:
            if not call.overdue and node in (call.node, call.holder):
                self.calls.abandon_call(call)
                self._move_job(call, now, _NO_MEMBER)

    # ------------------------------------------------------------------ requests

    def _update_members(self) -> None:
        """Update the present workers and check every stage."""
        unserved = self.members.update_presence()
        if unserved:
            self._refuse([request.number for request in unserved], _NO_MEMBER)
        self.calls.stages_due.update(dict.fromkeys(self.members.iterate_stages()))

    def _form_batches(self, route: Route, now: float) -> None:
        """Form batches for free workers; refuse a request that would be late, or would shrink a full batch."""
        stage, path_s, dropped = route.stages[0], route.path_s[0], []
        while route.requests:
            deadline = route.requests[0].deadline - self.outcomes.slack_s
            size = route.batch if len(route.requests) > route.batch else 1
            if now + path_s[size] > deadline + NEAR:
                dropped.append(route.requests.popleft().number)
                continue
            size = min(route.batch, len(route.requests))
            choice = self.calls.choose_worker(stage, now, size)
            if choice is None:
                break
            begin = max(now, stage.free_s[choice[0]])  # choice: worker, arrival of the tensors
            while size and begin + path_s[size] > deadline + NEAR:
                size -= 1
            if not size:
                dropped.append(route.requests.popleft().number)
                continue
            members = [route.requests.popleft() for _ in range(size)]
            numbers, inputs = tuple(request.number for request in members), [request.inputs for request in members]
            job = Job(numbers, members[0].deadline, members[-1].deadline, inputs, now, route)
            job.restart(route)
            self.calls.send_job(stage, choice[0], job, now, now)
        if dropped:
            self._refuse(dropped, _TOO_LATE)

    # ------------------------------------------------------------------ batches

    def _queue_job(self, job: Job) -> None:
        stage = job.queued = job.route.stages[job.stage]
        heapq.heappush(stage.jobs, (job.deadline, next(self._numbers), job))
        self.calls.stages_due[stage] = None

    def _serve_stage(self, stage: StageQueue, now: float) -> None:
        """Send a stage's batches to free workers, earliest deadline first."""
        waiting = []
        while stage.jobs:
            entry = heapq.heappop(stage.jobs)
            job = entry[-1]
            if job.done or job.queued is not stage:
                continue
            if job.holder in self.members.excluded or not job.has_untried(stage):
                self._requeue_job(job, now, _NO_MEMBER)
                continue
            size = len(job.requests)
            choice = self.calls.choose_worker(stage, now, size, job)
            path_s = stage.route.path_s[stage.number][size]
            begin = now if choice is None else max(choice[1], stage.free_s[choice[0]])
            if begin + path_s + self.outcomes.slack_s * (job.stranded is None) > job.latest + NEAR:
                self._reject_job(job, _TOO_LATE)
            elif choice is not None:
                self.calls.send_job(stage, choice[0], job, choice[1], now)
            else:
                waiting.append(entry)
                if job.watched is not stage:
                    job.watched = stage
                    self.calls.add_timer(job.latest - path_s + 2 * NEAR, stage)
                if not any(stage.accepts_batch(worker, now, 0.0) for worker in stage.present):
                    break
        for entry in waiting:
            heapq.heappush(stage.jobs, entry)
        if not stage.number:
            self._form_batches(stage.route, now)

    def _check_overdue(self, now: float) -> None:
        """Add a strike to nodes with overdue calls, and refuse batches past their last deadline."""
        for call in self.calls.find_overdue(now):
            node = call.holder if call.holder in self.members.suspects else call.node
            if call.holder:
                self.members.doubted.add(call.holder)
            self.members.strikes[node] = self.members.strikes.get(node, 0) + 1
            if not call.overdue:
                self.calls.abandon_call(call)
                self._move_job(call, now, _NO_MEMBER)
            if self.members.strikes.get(node, 0) >= STRIKES and node not in self.members.excluded:
                self.lose_node(node, now)
        for call in self.calls:
            job = call.job
            if call.overdue and not job.done and now >= job.latest and job.queued is None and not job.running:
                self._finish_job(job)
                self._refuse(job.requests, "full: no member of the pool answered in time")

    def _move_job(self, call: StageCall, now: float, reason: str) -> None:
        """Requeue the batch of a failed or abandoned call, unless another call of it runs."""
        job = call.job
        if job.done or job.queued is not None or job.running:
            return
        if job.stranded is None:
            job.stranded = describe_stranded(call, self.members.able, now)
            self.outcomes.stranded.append(job.stranded)
            self.outcomes.moved += len(job.requests)
        self._requeue_job(job, now, reason)

    def _requeue_job(self, job: Job, now: float, reason: str) -> None:
        """Queue a batch again from its last tensors, or from its inputs if the tensors may be late or lost."""
        possible, route = find_route(job, self.members, now, self.outcomes.slack_s)
        if route is not None:
            job.restart(route)
        if possible:
            self._queue_job(job)
        else:
            self._reject_job(job, reason)

    def _reject_job(self, job: Job, reason: str) -> None:
        """Refuse a batch, unless a call in flight may still answer it."""
        job.queued = None
        if not job.overdue and not job.running:
            self._finish_job(job)
            self._refuse(job.requests, reason)

    def _finish_job(self, job: Job) -> None:
        job.done, job.queued, job.inputs, job.payload = True, None, [], None
