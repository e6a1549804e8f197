"""The plans that a driver serves by: made for the members that are there, and followed once these have begun."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from edge_offload.errors import EdgeOffloadError
from edge_offload.server.pool import cluster, profile
from edge_offload.server.pool.choose import steady
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.dispatch import Call, Dispatcher, Route, Worker, routes_of
from edge_offload.server.pool.member import Part
from edge_offload.server.pool.plan import Plan
from edge_offload.server.pool.profile import Network
from edge_offload.server.pool.seats import Seat, Seats
from edge_offload.server.pool.settings import Settings

#: From a member's end to the plan without it, while others serve and while nobody does; from a new member to a plan
#: with it, while others begin (seconds).
REPLAN_S, NOBODY_S, GROW_S = 3.0, 0.3, 5.0
#: Seconds for which the next plan waits for a member that is to run its stage once.
ABSENT_S = 30.0
_log = logging.getLogger(__name__)


@dataclass
class Course:
    """A plan with its routes and members.

    Attributes:
        plan: what runs where.
        routes: its queues.
        seats: of each worker.
        parts: what each worker runs.
        pending: workers that have not run their stage yet, since when.
    """

    plan: Plan
    routes: List[Route]
    seats: Dict[Worker, Seat]
    parts: Dict[Worker, Part]
    pending: Dict[Worker, float]

    def serves(self) -> bool:
        """Whether a route has a worker in every stage."""
        return any(route.weight > 0 for route in self.routes)

    def worker(self, call: Call) -> Optional[Worker]:
        """Who makes a call; None: nobody of this plan."""
        for number, route in enumerate(self.routes):
            if route is call.route:
                return number, call.stage, call.worker
        return None


class Courses:
    """Plans of one network.

    Args:
        settings: of the front.
        network: its profile.
        seats: members.
        dispatcher: serves by the plan.

    Attributes:
        course: the plan that is served by; None: there is none yet.
        why: it is that, in words.
        plans: how many there were.
        emulated: whether members are.
    """

    def __init__(self, settings: Settings, network: Network, seats: Seats, dispatcher: Dispatcher) -> None:
        self._settings, self._network, self._seats, self._dispatcher = settings, network, seats, dispatcher
        self.course: Optional[Course] = None
        self.why = "no member has joined"
        self.plans = 0
        self.emulated = False
        #: The next one while its members begin, and those whose calls are still under way.
        self._next: Optional[Course] = None
        self._old: List[Tuple[float, Course]] = []
        self._planned: Tuple[Seat, ...] = ()
        self._served_s = -math.inf

    def explain(self, why: str, always: bool = False) -> None:
        """Why nobody serves, if that is so, or what is to be known ``always``."""
        if always or self.course is None:
            self.why = why

    def of(self, call: Call) -> Tuple[Optional[Seat], Optional[Part]]:
        """Who makes a call, and what that runs; None: nobody."""
        for course in self._all():
            worker = course.worker(call)
            if worker is not None:
                return course.seats[worker], course.parts[worker]
        return None, None

    def consider(self, nodes: Mapping[str, cluster.Node], now: float) -> float:
        """Plan for those who are there, where they are not those of the last plan; when to look again at the latest."""
        self._switch(now)
        serves = self.course is not None and self.course.serves()
        if serves:
            self._served_s = now
        here: List[Seat] = []
        again_s, grows = math.inf, False
        for seat, found in self._seats.sitting.items():
            if seat[3]:
                continue
            out_s = self._dispatcher.members.out.get(seat[0])
            if found.here and out_s is None:
                here.append(seat)
                grows = grows or (seat not in self._planned and now - found.since_s > GROW_S)
                continue
            away_s = found.since_s if not found.here else out_s or now
            if serves and seat in self._planned and now - away_s < REPLAN_S:
                here.append(seat)  # it may come back
                again_s = min(again_s, away_s + REPLAN_S)
        # GPUs of one machine do not follow each other, so that no stage is on a single machine if it need not be
        wanted = tuple(sorted(here, key=lambda seat: (seat[1], seat[2], seat[0])))
        if not wanted or wanted == self._planned:
            return again_s
        if self.course is not None and not serves and now - self._served_s < NOBODY_S:
            return self._served_s + NOBODY_S
        if serves and set(wanted) >= set(self._planned) and not grows:
            begins = any(not found.here and not found.prepared for found in self._seats.sitting.values())
            if begins:  # one plan for all who come
                return now + 0.5
        self._replan(wanted, nodes, now)
        return again_s

    def bring(self, seat: Seat, now: float) -> None:
        """A member is there (again): it prepares what plans have for it, and then it serves."""
        for course in filter(None, (self.course, self._next)):
            for worker in [worker for worker in course.pending if course.seats[worker] == seat]:
                batch = course.plan.pipelines[worker[0]].stages[0].batch
                if self._seats.prepare(seat, course.parts[worker], batch):
                    del course.pending[worker]
                    if course is self.course:
                        self._dispatcher.members.present(worker)
        self._switch(now)

    def clear(self, now: float) -> None:
        """Forget plans whose calls are through, and shares of GPUs that no plan has."""
        self._old = [(until, course) for until, course in self._old if now < until]
        used = {seat for course in self._all() for seat in course.seats.values()}
        self._seats.forget([seat for seat in self._seats.sitting if seat[3] and seat not in used], True)

    def lost(self, seat: Seat, now: float) -> None:
        """A member is lost."""
        for course in filter(None, (self.course, self._next)):
            for worker, of in course.seats.items():
                if of == seat:
                    course.pending.setdefault(worker, now)
                    if course is self.course:
                        self._dispatcher.absent(worker)

    def _all(self) -> List[Course]:
        return [*filter(None, (self.course, self._next)), *(course for _, course in self._old)]

    def _replan(self, wanted: Tuple[Seat, ...], nodes: Mapping[str, cluster.Node], now: float) -> None:
        settings = self._settings
        self._planned = wanted
        times = {nodes[seat[0]].times for seat in wanted if seat[0] in nodes}
        if len(times) != 1:
            self.why = "some members are emulated and others are not, or otherwise dilated; nothing is planned"
            return
        (dilation,) = times
        self.emulated = dilation > 0
        taking_turns = {seat[1] for seat in wanted if seat[0] in nodes and not nodes[seat[0]].shares}
        network = profile.undivided(profile.dilated(self._network, dilation or 1.0), taking_turns)
        own: Dict[str, List[Seat]] = {}
        for seat in wanted:
            own.setdefault(seat[1], []).append(seat)
        gpus = {gpu: len(of) for gpu, of in own.items()}
        together = {gpu: math.gcd(*Counter(seat[0] for seat in of).values()) for gpu, of in own.items()}
        # links are dilated like the members, or else an emulated pool would have another plan
        rate = settings.bandwidth * 1e9 / 8 / (dilation or 1.0)
        pool = Cluster(gpus, rate, together, settings.link_share)
        try:
            plan = steady([Demand(network, settings.slo_s)], pool, settings.margin, settings.partitions)
        except EdgeOffloadError as error:
            self.why = str(error)
            return
        self.plans += 1
        self.why = f"plan {self.plans} for {', '.join(f'{count} {gpu}' for gpu, count in gpus.items())}"
        undivided = [gpu for gpu in sorted(taking_turns) if set(self._network.latency_s[gpu]) - {1}]
        if undivided:
            self.why += f"; no shares of {', '.join(undivided)}: begin CUDA MPS there, or join with --share-gpu"
        _log.info("%s", self.why)
        names = sorted({seat[0] for seat in wanted})
        machines = {gpu: [names.index(seat[0]) for seat in of] for gpu, of in own.items()}
        routes = routes_of(plan, {network.name: network}, pool, machines).get(network.name, [])
        if self._next is not None:
            self._old.append((now, self._next))
        self._next = self._prepared(plan, routes, own, now)
        self._switch(now)

    def _prepared(self, plan: Plan, routes: List[Route], own: Mapping[str, List[Seat]], now: float) -> Course:
        """A plan's members; those that have not run their stage yet begin to."""
        course = Course(plan, routes, {}, {}, {})
        taken = dict.fromkeys(own, 0)
        for number, pipeline in enumerate(plan.pipelines):
            for at, stage in enumerate(pipeline.stages):
                for each in range(stage.gpus * stage.parts):
                    node, gpu, place, _ = own[stage.gpu][taken[stage.gpu] + each // stage.parts]
                    seat, worker = (node, gpu, place, each % stage.parts), (number, at, each)
                    course.seats[worker] = seat
                    course.parts[worker] = (stage.parts, stage.first, stage.end)
                    self._seats.want(seat, now)
                    if not self._seats.prepare(seat, course.parts[worker], stage.batch):
                        course.pending[worker] = now
                taken[stage.gpu] += stage.gpus
        return course

    def _switch(self, now: float) -> None:
        """Serve by the next plan once its members are there; at once where nobody serves."""
        course = self._next
        if course is None:
            return
        serves = self.course is not None and self.course.serves()
        if serves and not all(now - since > ABSENT_S for since in course.pending.values()):
            return
        busy = {}
        if self.course is not None:
            self._old.append((now + self._settings.slo_s + 1.0, self.course))
            for worker, seat in self.course.seats.items():
                busy[seat] = self.course.routes[worker[0]].stages[worker[1]].free_s[worker[2]]
        self.course, self._next = course, None
        for worker, seat in course.seats.items():  # what a member has begun goes first
            course.routes[worker[0]].stages[worker[1]].free_s[worker[2]] = busy.get(seat, 0.0)
        nodes = {worker: seat[0] for worker, seat in course.seats.items()}
        self._dispatcher.use(course.routes, nodes, list(course.pending), self.emulated)
