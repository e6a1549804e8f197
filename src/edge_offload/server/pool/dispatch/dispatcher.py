"""Batches that were let in: stage by stage, elsewhere when a stage is overdue, and out of the plan whoever is so twice.

Ray tells of a frozen or cut-off node after a minute, so every call has its reserved end here. Pure: times are given,
calls are made by whoever drives it; first answer wins.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import numpy as np

from edge_offload.server.pool.dispatch.calls import Calls
from edge_offload.server.pool.dispatch.jobs import GRACE_S, Call, Job, Worker, begin
from edge_offload.server.pool.dispatch.members import Members
from edge_offload.server.pool.dispatch.outcomes import Outcomes
from edge_offload.server.pool.dispatch.paths import Paths
from edge_offload.server.pool.reserve import Batcher, Route

#: So many overdue calls without an answer between them take a node out of the plan.
STRIKES = 2


class Dispatcher:
    """Serves the requests of one network by its routes.

    Args:
        start: makes a call; :meth:`ended` or :meth:`failed` is called when it has.
        answer: takes a batch's requests and the outputs of its last stage.
        refuse: takes requests that are not computed, and why.
        slack_s: by so much, at most, batches are to end before the deadline: what calls and clocks cost. Less where
            batches are known to end nearer to their reserved ends.

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
    ) -> None:
        self.members, self.outcomes = Members(), Outcomes(slack_s)
        self._calls = Calls(start, refuse)
        self._paths = Paths(self.members, self._calls, self.outcomes)
        self._answer, self._refuse = answer, refuse
        self._batcher = Batcher([])
        self._inputs: Dict[int, Tuple[Any, float]] = {}

    def use(
        self, routes: Sequence[Route], nodes: Mapping[Worker, str], absent: Sequence[Worker], links: bool = False
    ) -> None:
        """Serve by these routes from now on; what is under way goes on as it began.

        Args:
            routes: with fresh tables.
            nodes: of each worker.
            absent: workers that are not there yet; see :meth:`absent`.
            links: links are emulated: what goes from stage to stage is held for as long as was reserved for it.
        """
        self.members.use(routes, nodes, absent, {id(call.track.route) for call in self._calls})
        self._batcher.reroute(self.members.routes)
        self._calls.links = links

    def every(self, interval_s: float) -> None:
        """Requests come so often."""
        self._batcher.interval_s = interval_s

    def absent(self, worker: Worker) -> None:
        """A worker is not there until :meth:`~.members.Members.present`."""
        key = self.members.key(worker)
        self.members.leave(key)
        self._paths.reserve_elsewhere({key})

    def arrive(self, request: int, inputs: Any, deadline: float) -> None:
        """A request comes; deadlines rise with arrival."""
        self._inputs[request] = inputs, deadline
        self._batcher.arrive(request, deadline - self.outcomes.slack_s)

    def step(self, now: float) -> float:
        """Let in what can be, look at what is overdue; when to come again at the latest."""
        for call in self._calls:
            if call.sent and not call.overdue and now >= call.limit:
                call.overdue = True
                self._strike(call, now)
                self._paths.elsewhere(call, now)
            elif call.overdue and not call.track.job.done and now >= call.track.job.deadline + GRACE_S:
                self._calls.finish(call.track.job)
                self._refuse(call.track.job.requests, "no member of the pool answered in time")
        if not any(np.isfinite(route.stages[0].free).any() for route in self.members.routes):
            self._refuse_all("full: no member of the pool is there")
            again = math.inf
        else:
            let_in, dropped, again = self._batcher.decide(now)
            for dispatch in let_in:
                given = [self._inputs.pop(request) for request in dispatch.requests]
                job = Job(
                    dispatch.requests, min(deadline for _, deadline in given), [inputs for inputs, _ in given], now
                )
                job.promised = dispatch.way.end
                self._paths.go_on(begin(job, dispatch.route, dispatch.way.uses), now)
            for request in dropped:
                del self._inputs[request]
            if dropped:
                self._refuse(dropped, "full: the pool cannot answer in time")
        again = min(again, self._paths.send(now))
        limits = [call.limit if not call.overdue else call.track.job.deadline + GRACE_S
                  for call in self._calls if call.sent and not call.track.job.done]  # fmt: skip
        return min([again, *limits])

    def ended(self, number: int, payload: Any, now: float, stays: bool = False) -> None:
        """A call has ended; what it gave, and whether that stays in its node's store until somebody takes it."""
        call = self._calls.remove(number)
        if call is None:
            return
        self.members.heard(self.members.node(call), now, stays)
        self.outcomes.late_s.append(now - call.due)
        track, job = call.track, call.track.job
        if not call.wanted:
            call.use.next = None
        track.route.used(call.stage, call.use, now)
        if not call.wanted:
            self._calls.refuse_stranded(job, "full: no member of the pool answered in time")
            return
        track.stage += 1
        track.payload, track.at = payload, self.members.node(call) if stays else ""
        track.tried = set()
        if track.stage < len(track.route.stages):
            self._paths.go_on(track, now)
            return
        self.outcomes.learn(now - job.promised)
        if job.stranded is not None:
            job.stranded.answered = now
            self.outcomes.moved_in_time += len(job.requests) if now <= job.deadline else 0
        self._calls.finish(job)
        self._answer(job.requests, payload)

    def failed(self, number: int, why: str, gone: bool, now: float) -> None:
        """A call has failed; ``gone``: since its worker is not there any more (see :meth:`absent`)."""
        call = self._calls.remove(number)
        if call is None:
            return
        job = call.track.job
        call.table.done(call.use, now)
        if gone:
            self.members.doubted.add(self.members.node(call))
            key = (id(call.track.route), call.stage, call.worker)
            self.members.leave(key)
            self._paths.reserve_elsewhere({key})
        self._paths.elsewhere(call, now)
        self._calls.refuse_stranded(job, f"full: a member of the pool failed: {why}"[:500])

    def node_lost(self, node: str, now: float) -> None:
        """A node is gone, or does not answer: what is under way there, or needs what it has, goes elsewhere."""
        if node not in self.members.out:
            self._paths.reserve_elsewhere(self.members.take_out(node, now))
        for call in self._calls:
            if call.sent and not call.overdue and node in (self.members.node(call), call.track.at):
                call.overdue = True
                self._paths.elsewhere(call, now)

    def _refuse_all(self, why: str) -> None:
        requests = list(self._inputs)
        self._inputs.clear()
        interval_s, self._batcher = self._batcher.interval_s, Batcher(self.members.routes)
        self._batcher.interval_s = interval_s
        if requests:
            self._refuse(requests, why)

    def _strike(self, call: Call, now: float) -> None:
        """A call is overdue: by its worker, or the node that has its tensors if that is doubted already."""
        at, members = call.track.at, self.members
        node = at if at in members.suspects else members.node(call)
        if at:
            members.doubted.add(at)
        members.strikes[node] = members.strikes.get(node, 0) + 1
        if members.strikes[node] >= STRIKES and node not in members.out:
            self.node_lost(node, now)
