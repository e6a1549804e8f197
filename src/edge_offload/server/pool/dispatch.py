"""Batches that were let in: stage by stage, elsewhere when a stage is overdue, and out of the plan whoever is so twice.

Ray tells of a frozen or cut-off node after a minute, so every call has its reserved end here. Pure: times are given,
calls are made by whoever drives it; first answer wins.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Mapping, Sequence, Set, Tuple

from edge_offload.server.pool.reserve import Batcher, Route, Use

#: A call is overdue so long behind its reserved end, or half of its time if that is longer (seconds).
GRACE_S = 0.05
#: So many overdue calls without an answer between them take a node out of the plan.
STRIKES = 2

#: Calls from whose lateness the slack is taken; from so many on, and anew after each so many.
LATEST, EVERY = 256, 16

#: A worker: route, stage, number.
Worker = Tuple[int, int, int]


@dataclass
class Job:
    """A batch: its requests, and what is kept of them until they are answered."""

    requests: Tuple[int, ...]
    deadline: float
    inputs: List[Any]
    running: int = 0
    done: bool = False


@dataclass
class Track:
    """A way of a batch through a route; there is a second one where the first cannot go on."""

    job: Job
    route: Route
    uses: Tuple[Use, ...]
    payload: Any
    stage: int = 0
    tried: Set[int] = field(default_factory=set)


@dataclass
class Call:
    """One stage of one batch at one worker.

    Attributes:
        number: of the call.
        track: what it is for; :attr:`Track.payload` is what it takes.
        stage, worker: where.
        due: when it is to end.
        takes: seconds.
    """

    number: int
    track: Track
    stage: int
    worker: int
    due: float
    takes: float
    overdue: bool = False


class Dispatcher:
    """Serves the requests of one network by its routes.

    Args:
        start: makes a call; :meth:`ended` or :meth:`failed` is called when it has.
        answer: takes a batch's requests and the outputs of its last stage.
        refuse: takes requests that are not computed, and why.
        slack_s: by so much, at most, batches are to end before the deadline: what calls and clocks cost. Less where
            calls are known to end nearer to their reserved ends.
    """

    def __init__(
        self,
        start: Callable[[Call], None],
        answer: Callable[[Tuple[int, ...], Any], None],
        refuse: Callable[[Sequence[int], str], None],
        slack_s: float = 0.0,
    ) -> None:
        self._slack_s = self._most_slack_s = slack_s
        #: Seconds from the reserved ends of the latest calls to their ends.
        self.late_s: Deque[float] = deque(maxlen=LATEST)
        self._ended = 0
        self._start, self._answer, self._refuse = start, answer, refuse
        self._routes: List[Route] = []
        self._batcher = Batcher([])
        self._inputs: Dict[int, Tuple[Any, float]] = {}
        self._calls: Dict[int, Call] = {}
        self._numbers = itertools.count(1)
        self._nodes: Dict[Tuple[int, int, int], str] = {}
        self._strikes: Dict[str, int] = {}
        #: Nodes that are out of the plan, since when.
        self.out: Dict[str, float] = {}
        self._absent: Set[Tuple[int, int, int]] = set()

    @property
    def running(self) -> int:
        """Calls under way."""
        return len(self._calls)

    def use(self, routes: Sequence[Route], nodes: Mapping[Worker, str], absent: Sequence[Worker]) -> None:
        """Serve by these routes from now on; what is under way goes on as it began.

        Args:
            routes: with fresh tables.
            nodes: of each worker.
            absent: workers that are not there yet; see :meth:`present`.
        """
        self._routes = list(routes)
        under_way = {id(call.track.route) for call in self._calls.values()}
        before = {key: node for key, node in self._nodes.items() if key[0] in under_way}
        self._nodes = {**before, **{self._key(worker): node for worker, node in nodes.items()}}
        self._absent = {self._key(worker) for worker in absent}
        self._batcher.reroute(self._routes)
        for key, node in self._nodes.items():
            if key in self._absent or node in self.out:
                self._free(key, math.inf)

    def every(self, interval_s: float) -> None:
        """Requests come so often."""
        self._batcher.interval_s = interval_s

    def present(self, worker: Worker, now: float) -> None:
        """A worker is there (again)."""
        key = self._key(worker)
        self._absent.discard(key)
        if self._nodes.get(key) not in self.out:
            self._free(key, now)

    def absent(self, worker: Worker) -> None:
        """A worker is not there until :meth:`present`."""
        key = self._key(worker)
        self._absent.add(key)
        self._free(key, math.inf)

    def arrive(self, request: int, inputs: Any, deadline: float) -> None:
        """A request comes; deadlines rise with arrival."""
        self._inputs[request] = inputs, deadline
        self._batcher.arrive(request, deadline - self._slack_s)

    def step(self, now: float) -> float:
        """Let in what can be, look at what is overdue; when to come again at the latest."""
        for call in list(self._calls.values()):
            if not call.overdue and now >= self._limit(call):
                call.overdue = True
                self._strike(call, now)
                self._elsewhere(call, now)
            elif call.overdue and not call.track.job.done and now >= call.track.job.deadline + GRACE_S:
                self._finish(call.track.job)
                self._refuse(call.track.job.requests, "no member of the pool answered in time")
        if not any(math.isfinite(free) for route in self._routes for stage in route.stages[:1] for free in stage.free):
            self._refuse_all("full: no member of the pool is there")
            again = math.inf
        else:
            let_in, dropped, again = self._batcher.decide(now)
            for dispatch in let_in:
                given = [self._inputs.pop(request) for request in dispatch.requests]
                job = Job(dispatch.requests, min(deadline for _, deadline in given), [inputs for inputs, _ in given])
                self._next(_track(job, dispatch.route, dispatch.way.uses), now)
            for request in dropped:
                del self._inputs[request]
            if dropped:
                self._refuse(dropped, "full: the pool cannot answer in time")
        limits = [self._limit(call) if not call.overdue else call.track.job.deadline + GRACE_S
                  for call in self._calls.values() if not call.track.job.done]  # fmt: skip
        return min([again, *limits])

    def ended(self, number: int, payload: Any, now: float) -> None:
        """A call has ended; what it gave."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        self._alive(call, now)
        self._learn(call, now)
        track, job = call.track, call.track.job
        job.running -= 1
        use = track.uses[call.stage]
        if use.worker == call.worker and math.isfinite(float(track.route.stages[call.stage].free[call.worker])):
            track.route.used(call.stage, use, now)
        if job.done or track.stage != call.stage:
            return
        track.stage += 1
        track.payload = payload
        track.tried = set()
        if track.stage < len(track.route.stages):
            self._next(track, now)
            return
        self._finish(job)
        self._answer(job.requests, payload)

    def failed(self, number: int, why: str, gone: bool, now: float) -> None:
        """A call has failed; ``gone``: since its worker is not there any more (until :meth:`present`)."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        job = call.track.job
        job.running -= 1
        if gone:
            key = (id(call.track.route), call.stage, call.worker)
            self._absent.add(key)
            self._free(key, math.inf)
        if not job.done and call.track.stage == call.stage:
            self._elsewhere(call, now)
            if not job.running:
                self._finish(job)
                self._refuse(job.requests, f"full: a member of the pool failed: {why}"[:500])

    def heard(self, node: str, now: float) -> None:
        """A node answers."""
        self._strikes.pop(node, None)
        if self.out.pop(node, None) is not None:
            for key, of in self._nodes.items():
                if of == node and key not in self._absent:
                    self._free(key, now)

    def node_lost(self, node: str, now: float) -> None:
        """Somebody else says that a node is gone."""
        if node not in self.out:
            self._take_out(node, now)
        for call in list(self._calls.values()):
            if not call.overdue and self._node(call) == node:
                call.overdue = True
                self._elsewhere(call, now)

    def _next(self, track: Track, now: float) -> None:
        use = track.uses[track.stage]
        table = track.route.stages[track.stage]
        takes = float(table.compute_s[len(track.job.requests) - 1])
        if not math.isfinite(float(table.free[use.worker])):
            self._elsewhere(Call(0, track, track.stage, use.worker, now, takes), now)
            if not track.job.running and not track.job.done:
                self._finish(track.job)
                self._refuse(track.job.requests, "full: no other member of the pool is there")
            return
        self._call(track, use.worker, max(use.end, now + (use.moved - use.begin) + takes), takes)

    def _call(self, track: Track, worker: int, due: float, takes: float) -> None:
        call = Call(next(self._numbers), track, track.stage, worker, due, takes)
        track.tried.add(worker)
        track.job.running += 1
        self._calls[call.number] = call
        self._start(call)

    def _elsewhere(self, call: Call, now: float) -> None:
        """From the last tensors at hand at another worker of the stage; else from the inputs by another route."""
        track, job = call.track, call.track.job
        if job.done or track.stage != call.stage:
            return
        track.tried.add(call.worker)
        table = track.route.stages[call.stage]
        left = [worker for worker in range(len(table.free)) if worker not in track.tried]
        if left:
            worker = min(left, key=lambda each: float(table.free[each]))
            due = max(float(table.free[worker]), now) + call.takes + table.transfer_s * len(job.requests)
            if due <= job.deadline:
                table.free[worker] = due
                self._call(track, worker, due, call.takes)
                return
        for route in self._routes:
            if route is track.route or route.batch < len(job.requests):
                continue
            way = route.probe(now, len(job.requests))
            if way.end <= job.deadline:
                route.reserve(way)
                self._next(_track(job, route, way.uses), now)
                return

    def _limit(self, call: Call) -> float:
        return call.due + max(GRACE_S, call.takes / 2)

    def _finish(self, job: Job) -> None:
        job.done = True
        job.inputs = []

    def _refuse_all(self, why: str) -> None:
        requests = list(self._inputs)
        self._inputs.clear()
        interval_s, self._batcher = self._batcher.interval_s, Batcher(self._routes)
        self._batcher.interval_s = interval_s
        if requests:
            self._refuse(requests, why)

    def _learn(self, call: Call, now: float) -> None:
        self.late_s.append(now - call.due)
        self._ended += 1
        if self._ended % EVERY == 0:
            stages = max((len(route.stages) for route in self._routes), default=1)
            late_s = max(0.0, statistics.quantiles(self.late_s, n=10)[-1])
            self._slack_s = min(self._most_slack_s, stages * late_s)

    def _strike(self, call: Call, now: float) -> None:
        node = self._node(call)
        self._strikes[node] = self._strikes.get(node, 0) + 1
        if self._strikes[node] >= STRIKES and node not in self.out:
            self._take_out(node, now)

    def _take_out(self, node: str, now: float) -> None:
        self.out[node] = now
        for key, of in self._nodes.items():
            if of == node:
                self._free(key, math.inf)

    def _alive(self, call: Call, now: float) -> None:
        self.heard(self._node(call), now)

    def _node(self, call: Call) -> str:
        return self._nodes.get((id(call.track.route), call.stage, call.worker), "")

    def _key(self, worker: Worker) -> Tuple[int, int, int]:
        route, stage, number = worker
        return id(self._routes[route]), stage, number

    def _free(self, key: Tuple[int, int, int], when: float) -> None:
        for route in self._routes:
            if id(route) == key[0]:
                route.stages[key[1]].free[key[2]] = when


def _track(job: Job, route: Route, uses: Tuple[Use, ...]) -> Track:
    return Track(job, route, uses, [parcel for inputs in job.inputs for parcel in inputs])
