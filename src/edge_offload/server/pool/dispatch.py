"""Batches that were let in: stage by stage, elsewhere when a stage is overdue, and out of the plan whoever is so twice.

Ray tells of a frozen or cut-off node after a minute, so every call has its reserved end here. Workers are sent batches
in the order in which they were reserved, unless one fits in before another has come. Pure: times are given, calls are
made by whoever drives it; first answer wins.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from edge_offload.server.pool.reserve import Batcher, Route, StageTable, Use, Way

#: A call is overdue so long behind its reserved end, or half of its time if that is longer (seconds).
GRACE_S = 0.05
#: So many overdue calls without an answer between them take a node out of the plan.
STRIKES = 2

#: Batches from whose lateness the slack is taken; from so many on, and anew after each so many.
LATEST, EVERY = 256, 16
#: One batch in so many may be later than the slack.
MOST_LATE = 50
_NEAR = 1e-9

#: A worker: route, stage, number.
Worker = Tuple[int, int, int]


@dataclass
class Stranded:
    """A batch whose call has failed or is overdue, as it stood when that was noticed.

    Attributes:
        began: when it was let in.
        noticed: when.
        due: when the call was to end.
        takes: seconds of the call.
        left_s: seconds that it and the stages after it take elsewhere.
        free: when a worker of the stage on another node begins it; infinite: there is none.
        anew_s: seconds that it takes by another route and other nodes, from its inputs; infinite: there is none.
        at: the node whose store has its last tensors; empty: the driver has them.
        deadline: of the batch.
        requests: how many.
        answered: when it was, after all; infinite: it was not.
    """

    began: float
    noticed: float
    due: float
    takes: float
    left_s: float
    free: float
    anew_s: float
    at: str
    deadline: float
    requests: int
    answered: float = math.inf


@dataclass
class Job:
    """A batch: its requests, and what is kept of them until they are answered."""

    requests: Tuple[int, ...]
    deadline: float
    inputs: List[Any]
    began: float = 0.0
    running: int = 0
    done: bool = False
    tracks: List[Track] = field(default_factory=list)
    promised: float = math.inf
    stranded: Optional[Stranded] = None
    anew: bool = False


@dataclass
class Track:
    """A way of a batch through a route; there is a second one where the first cannot go on.

    ``at``: the node whose store holds ``payload``, which is lost along with it; empty: the driver has it.
    """

    job: Job
    route: Route
    uses: Tuple[Use, ...]
    payload: Any
    stage: int = 0
    at: str = ""
    tried: Set[int] = field(default_factory=set)


@dataclass(eq=False)
class Call:
    """One stage of one batch at one worker.

    Attributes:
        number: of the call.
        track: what it is for; :attr:`Track.payload` is what it takes.
        stage: where.
        use: its turn at a worker.
        ready: it is not sent before.
        sent: whether it has been.
    """

    number: int
    track: Track
    stage: int
    use: Use
    ready: float
    sent: bool = False
    overdue: bool = False

    @property
    def worker(self) -> int:
        """Of the stage."""
        return self.use.worker

    @property
    def due(self) -> float:
        """When it is to end."""
        return self.use.end

    @property
    def takes(self) -> float:
        """Seconds."""
        return self.use.takes

    @property
    def table(self) -> StageTable:
        """Of its stage."""
        return self.track.route.stages[self.stage]


class Dispatcher:
    """Serves the requests of one network by its routes.

    Args:
        start: makes a call; :meth:`ended` or :meth:`failed` is called when it has.
        answer: takes a batch's requests and the outputs of its last stage.
        refuse: takes requests that are not computed, and why.
        slack_s: by so much, at most, batches are to end before the deadline: what calls and clocks cost. Less where
            batches are known to end nearer to their reserved ends.
        links: links are emulated: what goes from stage to stage is held for as long as was reserved for it.
    """

    def __init__(
        self,
        start: Callable[[Call], None],
        answer: Callable[[Tuple[int, ...], Any], None],
        refuse: Callable[[Sequence[int], str], None],
        slack_s: float = 0.0,
        links: bool = False,
    ) -> None:
        self._slack_s = self._most_slack_s = slack_s
        self.links = links
        #: Seconds from the reserved ends of the latest calls to their ends.
        self.late_s: Deque[float] = deque(maxlen=LATEST)
        #: The latest batches that could not go on where they were; how many requests did not, and of these in time.
        self.stranded: Deque[Stranded] = deque(maxlen=LATEST)
        self.moved = self.moved_in_time = 0
        self._behind_s: Deque[float] = deque(maxlen=LATEST)
        self._ended = 0
        self._start, self._answer, self._refuse = start, answer, refuse
        self._routes: List[Route] = []
        self._batcher = Batcher([])
        self._inputs: Dict[int, Tuple[Any, float]] = {}
        self._calls: Dict[int, Call] = {}
        self._of: Dict[int, Call] = {}
        self._held: List[Call] = []
        self._numbers = itertools.count(1)
        self._nodes: Dict[Tuple[int, int, int], str] = {}
        self._strikes: Dict[str, int] = {}
        #: Nodes that are out of the plan, since when.
        self.out: Dict[str, float] = {}
        self._absent: Set[Tuple[int, int, int]] = set()
        #: Nodes of which a worker has gone, or whose tensors were waited for in vain, and that have not answered since.
        self._doubted: Set[str] = set()

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
        self._reserve_elsewhere({key})

    def arrive(self, request: int, inputs: Any, deadline: float) -> None:
        """A request comes; deadlines rise with arrival."""
        self._inputs[request] = inputs, deadline
        self._batcher.arrive(request, deadline - self._slack_s)

    def step(self, now: float) -> float:
        """Let in what can be, look at what is overdue; when to come again at the latest."""
        for call in list(self._calls.values()):
            if call.sent and not call.overdue and now >= self._limit(call):
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
                job = Job(
                    dispatch.requests, min(deadline for _, deadline in given), [inputs for inputs, _ in given], now
                )
                job.promised = dispatch.way.end
                self._next(_track(job, dispatch.route, dispatch.way.uses), now)
            for request in dropped:
                del self._inputs[request]
            if dropped:
                self._refuse(dropped, "full: the pool cannot answer in time")
        again = min(again, self._send(now))
        limits = [self._limit(call) if not call.overdue else call.track.job.deadline + GRACE_S
                  for call in self._calls.values() if call.sent and not call.track.job.done]  # fmt: skip
        return min([again, *limits])

    def ended(self, number: int, payload: Any, now: float, stays: bool = False) -> None:
        """A call has ended; what it gave, and whether that stays in its node's store until somebody takes it."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        self.heard(self._node(call), now, stays)
        self.late_s.append(now - call.due)
        track, job = call.track, call.track.job
        job.running -= 1
        self._of.pop(id(call.use), None)
        if job.done or track.stage != call.stage:
            call.use.next = None
        track.route.used(call.stage, call.use, now)
        if job.done or track.stage != call.stage:
            self._refuse_stranded(job, "full: no member of the pool answered in time")
            return
        track.stage += 1
        track.payload, track.at = payload, self._node(call) if stays else ""
        track.tried = set()
        if track.stage < len(track.route.stages):
            self._next(track, now)
            return
        self._learn(now - job.promised)
        if job.stranded is not None:
            job.stranded.answered = now
            self.moved_in_time += len(job.requests) if now <= job.deadline else 0
        self._finish(job)
        self._answer(job.requests, payload)

    def failed(self, number: int, why: str, gone: bool, now: float) -> None:
        """A call has failed; ``gone``: since its worker is not there any more (until :meth:`present`)."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        job = call.track.job
        job.running -= 1
        self._of.pop(id(call.use), None)
        call.table.done(call.use, now)
        if gone:
            self._doubted.add(self._node(call))
            key = (id(call.track.route), call.stage, call.worker)
            self._absent.add(key)
            self._free(key, math.inf)
            self._reserve_elsewhere({key})
        self._elsewhere(call, now)
        self._refuse_stranded(job, f"full: a member of the pool failed: {why}"[:500])

    @property
    def unsure(self) -> Set[str]:
        """Nodes that are out, or of which an answer is wanted that says that their store is there."""
        return {*self.out, *self._doubted}

    def heard(self, node: str, now: float, stored: bool = True) -> None:
        """A node answers; whether that says that its store is there. Members live on without for a while."""
        if node in self._doubted and not stored:
            return
        self._strikes.pop(node, None)
        self._doubted.discard(node)
        if self.out.pop(node, None) is not None:
            for key, of in self._nodes.items():
                if of == node and key not in self._absent:
                    self._free(key, now)

    def node_lost(self, node: str, now: float) -> None:
        """A node is gone, or does not answer: what is under way there, or needs what it has, goes elsewhere."""
        if node not in self.out:
            self._take_out(node, now)
        for call in list(self._calls.values()):
            if call.sent and not call.overdue and node in (self._node(call), call.track.at):
                call.overdue = True
                self._elsewhere(call, now)

    def _next(self, track: Track, now: float) -> None:
        use = track.uses[track.stage]
        call = Call(next(self._numbers), track, track.stage, use, now)
        if not math.isfinite(float(call.table.free[use.worker])) or track.at in self.out:
            call.table.done(use)
            self._elsewhere(call, now)
            self._refuse_stranded(track.job, "full: no other member of the pool is there")
            return
        suspects = {*self._strikes, *self._doubted}
        if self._node(call) in suspects:  # by another one, if that is in time
            rest_s = _rest_s(track.route, call.stage + 1, len(track.job.requests))
            worker, end = self._soonest(call, suspects, rest_s, now)
            if worker is not None and self._nodes_of(call)[worker] not in suspects:
                self._again(call, worker, end - rest_s, now)
                call.table.done(use)
                return
            anew = None if track.job.anew else self._from_inputs(track, now, True, suspects)
            if anew is not None:  # from its inputs besides
                track.job.anew = True
                self._begin_anew(track.job, anew, now)
        if self.links and track.stage:
            call.ready = max(now, use.moved)
        self._call(call)

    def _call(self, call: Call) -> None:
        call.track.tried.add(call.worker)
        call.track.job.running += 1
        self._calls[call.number] = self._of[id(call.use)] = call
        self._held.append(call)

    def _send(self, now: float) -> float:
        """Begin calls whose turn it is; when the next one's may be."""
        again = math.inf
        while self._held:
            held, self._held = self._held, []
            tables, elsewhere = {}, False
            for call in held:
                if call.number not in self._calls:
                    continue
                wanted = not call.track.job.done and call.track.stage == call.stage
                there = math.isfinite(float(call.table.free[call.worker])) and call.track.at not in self.out
                if wanted and there:
                    tables[id(call.table), call.worker] = call.table
                    self._held.append(call)
                    continue
                del self._calls[call.number], self._of[id(call.use)]
                call.track.job.running -= 1
                call.table.done(call.use)
                if wanted:
                    elsewhere = True
                    self._elsewhere(call, now)
                    self._refuse_stranded(call.track.job, "full: no other member of the pool is there")
            again = min([math.inf, *(self._turns(table, worker, now) for (_, worker), table in tables.items())])
            before = len(self._held)
            self._held = [call for call in self._held if not call.sent]
            if before == len(self._held) and not elsewhere:
                break
        return again

    def _turns(self, table: StageTable, worker: int, now: float) -> float:
        """Send a worker what it is to do next, as far as that is here; when to look again at the latest."""
        again = until = math.inf
        at = now
        turns = table.turns[worker]
        for use in list(turns):
            call = self._of.get(id(use))
            if call is not None and call.sent:
                at = max(at, use.end)
            elif call is None or call.ready > now + _NEAR:
                if call is not None:
                    again = min(again, call.ready)
                elif now >= use.moved + GRACE_S:
                    continue  # it is late: others need not wait for it
                else:
                    again = min(again, use.moved + GRACE_S)
                until = min(until, use.moved)
            elif max(at, use.moved if self.links else now) + use.takes <= until + _NEAR:
                call.sent = True
                at = max(at, use.end)
                if math.isfinite(until):  # before one that has not come yet
                    turns.remove(use)
                    sent = [each for each in turns if (of := self._of.get(id(each))) is not None and of.sent]
                    turns.insert(len(sent), use)
                    table.settle(worker)
                self._start(call)
        return again

    def _refuse_stranded(self, job: Job, why: str) -> None:
        if not job.running and not job.done:
            self._finish(job)
            self._refuse(job.requests, why)

    def _elsewhere(self, call: Call, now: float) -> None:
        """From the last tensors at hand at another worker of the stage, or from the inputs by another route.

        The latter where that is sooner and the former may be late. Both where the tensors are on a node that may be
        gone, from the inputs alone where it is. By nodes that nothing speaks against, if these are in time.
        """
        track, job = call.track, call.track.job
        if job.done or track.stage != call.stage:
            return
        track.tried.add(call.worker)
        own, batch = self._node(call), len(job.requests)
        suspects = {node for node in (own, *self._strikes, *self._doubted) if node}
        nodes = self._nodes_of(call)
        others = [
            float(call.table.free[worker])
            for worker, node in enumerate(nodes)
            if worker not in track.tried and (node != own or not own)
        ]
        self._note(call, min(others, default=math.inf), now)
        doubtful = self._doubtful(track)
        rest_s = _rest_s(track.route, call.stage + 1, batch)
        worker, end = self._soonest(call, suspects, rest_s, now)
        sure = worker is not None and end + self._slack_s <= job.deadline
        anew = None
        if not sure or (doubtful and not job.anew):
            anew = self._from_inputs(track, now, doubtful, suspects) or self._from_inputs(track, now, doubtful, set())
        if worker is not None and (doubtful or anew is None or end <= anew[1].end):
            self._again(call, worker, end - rest_s, now)
            if not doubtful or job.anew:
                return
        if anew is not None:
            job.anew = job.anew or doubtful
            self._begin_anew(job, anew, now)

    def _nodes_of(self, call: Call) -> List[str]:
        """Of the workers of its stage."""
        key = id(call.track.route), call.stage
        return [self._nodes.get((*key, worker), "") for worker in range(len(call.table.free))]

    def _soonest(self, call: Call, suspects: Set[str], rest_s: float, now: float) -> Tuple[Optional[int], float]:
        """The worker by which the batch ends first, of those that were not tried, and when; None: it would be late."""
        track, nodes = call.track, self._nodes_of(call)
        if track.at in self.out:
            return None, math.inf
        moved = now + call.table.transfer_s * len(track.job.requests)
        ends = {}
        for worker in range(len(nodes)):
            if worker not in track.tried:
                place = self._place(call.table, worker, track.job.deadline, moved, call.takes, rest_s)
                ends[worker] = max(call.table.begins(worker, place), moved) + call.takes + rest_s
        in_time = [worker for worker, end in ends.items() if end <= track.job.deadline]
        soonest = min(in_time, key=lambda each: (nodes[each] in suspects, ends[each]), default=None)
        return soonest, math.inf if soonest is None else ends[soonest]

    def _place(self, table: StageTable, worker: int, deadline: float, moved: float, takes: float, rest_s: float) -> int:
        """Where in a worker's turns a batch comes that others did not do: before those that have more time than it.

        Not before what is under way, would wait for it (it is there at ``moved``), or would then be late: with
        ``rest_s`` of stages behind this one.
        """
        turns = table.turns[worker]
        place = len(turns)
        while place:
            other = turns[place - 1]
            call = self._of.get(id(other))
            if (call is not None and call.sent) or other.deadline <= deadline:
                break
            if moved > other.end - other.takes + _NEAR or other.end + takes + rest_s > other.deadline:
                break
            place -= 1
        return place

    def _again(self, call: Call, worker: int, end: float, now: float) -> None:
        """Make a call once more, or there instead; what follows it moves."""
        moved = now + call.table.transfer_s * len(call.track.job.requests)
        deadline = call.track.job.deadline
        use = Use(worker, now, moved, end, call.takes, call.use.next, deadline)
        rest_s = _rest_s(call.track.route, call.stage + 1, len(call.track.job.requests))
        place = self._place(call.table, worker, deadline, moved, call.takes, rest_s)
        if use.next is not None:
            after, of = use.next
            of.moved += max(0.0, use.end - call.use.end)
            after.settle(of.worker)
        call.use.next = None
        call.table.turns[use.worker].insert(place, use)
        call.table.settle(use.worker)
        self._call(Call(next(self._numbers), call.track, call.stage, use, now))

    def _from_inputs(self, track: Track, now: float, again: bool, avoid: Set[str]) -> Optional[Tuple[Route, Way]]:
        """The soonest way from the inputs by none of these nodes, by the same route only ``again``; None: too late."""
        batch = len(track.job.requests)
        routes = [route for route in self._routes if route.batch >= batch and (again or route is not track.route)]
        found = min(self._ways(routes, batch, now, avoid), key=lambda each: each[1].end, default=None)
        return found if found is not None and found[1].end <= track.job.deadline else None

    def _begin_anew(self, job: Job, by: Tuple[Route, Way], now: float) -> None:
        route, way = by
        route.reserve(way)
        self._next(_track(job, route, way.uses), now)

    def _ways(self, routes: Sequence[Route], batch: int, now: float, avoid: Set[str]) -> List[Tuple[Route, Way]]:
        """The earliest way through each route; by none of these nodes."""
        known = {id(route): route for route in routes}
        left_out = []
        for (route, stage, worker), node in self._nodes.items():
            if node in avoid and route in known:
                free = known[route].stages[stage].free
                left_out.append((free, worker, float(free[worker])))
                free[worker] = math.inf
        ways = [(route, route.probe(now, batch)) for route in routes]
        for free, worker, when in left_out:
            free[worker] = when
        return ways

    def _doubtful(self, track: Track) -> bool:
        """Whether what it goes on from is on a node that may be gone."""
        return bool(track.at) and (track.at in self._doubted or track.at in self._strikes or track.at in self.out)

    def _note(self, call: Call, free: float, now: float) -> None:
        """Keep how a batch stands that cannot go on where it is; the first time counts."""
        track, job = call.track, call.track.job
        if job.stranded is not None:
            return
        batch = len(job.requests)
        left_s = _rest_s(track.route, call.stage, batch)
        others = [route for route in self._routes if (track.stage or route is not track.route) and route.batch >= batch]
        own = {self._node(call)} - {""}
        anew_s = min((way.end - now for _, way in self._ways(others, batch, now, own)), default=math.inf)
        job.stranded = Stranded(
            job.began, now, call.due, call.takes, left_s, free, anew_s, track.at, job.deadline, batch
        )
        self.stranded.append(job.stranded)
        self.moved += batch

    def _limit(self, call: Call) -> float:
        return call.due + max(GRACE_S, call.takes / 2)

    def _finish(self, job: Job) -> None:
        job.done = True
        job.inputs = []
        for track in job.tracks:
            for table, use in zip(track.route.stages, track.uses):
                call = self._of.get(id(use))
                if call is None or not call.sent:
                    if call is not None:
                        del self._calls[call.number], self._of[id(use)]
                        job.running -= 1
                    table.done(use)

    def _refuse_all(self, why: str) -> None:
        requests = list(self._inputs)
        self._inputs.clear()
        interval_s, self._batcher = self._batcher.interval_s, Batcher(self._routes)
        self._batcher.interval_s = interval_s
        if requests:
            self._refuse(requests, why)

    def _learn(self, behind_s: float) -> None:
        self._behind_s.append(behind_s)
        self._ended += 1
        if self._ended % EVERY == 0:
            late_s = max(0.0, statistics.quantiles(self._behind_s, n=MOST_LATE)[-1])
            self._slack_s = min(self._most_slack_s, late_s)

    def _strike(self, call: Call, now: float) -> None:
        """A call is overdue: by its worker, or the node that has its tensors if that is doubted already."""
        at = call.track.at
        node = at if at in self._doubted or at in self._strikes else self._node(call)
        if at:
            self._doubted.add(at)
        self._strikes[node] = self._strikes.get(node, 0) + 1
        if self._strikes[node] >= STRIKES and node not in self.out:
            self.node_lost(node, now)

    def _take_out(self, node: str, now: float) -> None:
        self.out[node] = now
        keys = {key for key, of in self._nodes.items() if of == node}
        for key in keys:
            self._free(key, math.inf)
        self._reserve_elsewhere(keys)

    def _reserve_elsewhere(self, gone: Set[Tuple[int, int, int]]) -> None:
        """What batches under way are to do later at workers that are gone has its turn at others from now on."""
        for track in {id(call.track): call.track for call in self._calls.values() if not call.track.job.done}.values():
            uses = [call.use for call in self._calls.values() if call.track is track]
            for stage in range(track.stage + 1, len(track.route.stages)):
                use, table = track.uses[stage], track.route.stages[stage]
                worker = int(table.free.argmin())
                if (id(track.route), stage, use.worker) not in gone or not math.isfinite(float(table.free[worker])):
                    continue
                end = max(float(table.free[worker]), use.moved) + use.takes
                other = Use(worker, use.begin, use.moved, end, use.takes, use.next, use.deadline)
                rest_s = _rest_s(track.route, stage + 1, len(track.job.requests))
                place = self._place(table, worker, use.deadline, use.moved, use.takes, rest_s)
                for before in (track.uses[stage - 1], *uses):
                    if before.next is not None and before.next[1] is use:
                        before.next = table, other
                if use.next is not None:
                    after, of = use.next
                    of.moved += end - use.end
                    after.settle(of.worker)
                use.next = None
                table.done(use)
                table.turns[worker].insert(place, other)
                table.settle(worker)
                track.uses = (*track.uses[:stage], other, *track.uses[stage + 1 :])

    def _node(self, call: Call) -> str:
        return self._nodes.get((id(call.track.route), call.stage, call.worker), "")

    def _key(self, worker: Worker) -> Tuple[int, int, int]:
        route, stage, number = worker
        return id(self._routes[route]), stage, number

    def _free(self, key: Tuple[int, int, int], when: float) -> None:
        for route in self._routes:
            if id(route) == key[0]:
                route.stages[key[1]].occupy(key[2], when)


def _rest_s(route: Route, first: int, batch: int) -> float:
    """Seconds of the stages from ``first`` on when nothing waits."""
    return sum(float(stage.compute_s[batch - 1]) + stage.transfer_s * batch for stage in route.stages[first:])


def _track(job: Job, route: Route, uses: Tuple[Use, ...]) -> Track:
    for use in uses:
        use.deadline = job.deadline
    track = Track(job, route, uses, [parcel for inputs in job.inputs for parcel in inputs])
    job.tracks.append(track)
    return track
