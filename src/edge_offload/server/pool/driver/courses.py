"""Plans of a driver: made for the present members, and used once these are ready."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from edge_offload.errors import EdgeOffloadError
from edge_offload.server.pool import cluster, profile
from edge_offload.server.pool.choose import plan_steady
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.dispatch import Dispatcher, Route, StageCall, Worker, routes_of
from edge_offload.server.pool.member import Part
from edge_offload.server.pool.plan import PoolPlan
from edge_offload.server.pool.profile import BlockProfile
from edge_offload.server.pool.seats import ActorPool, Seat
from edge_offload.server.pool.settings import PoolSettings

#: Delay of a new plan after a member's end, with and without other service (seconds).
REPLAN_S, NO_SERVICE_S = 3.0, 0.3
_log = logging.getLogger(__name__)


@dataclass
class ActivePlan:
    """A plan with its routes and members.

    Attributes:
        plan: stages and their GPUs.
        routes: its queues.
        seats: seat of each worker.
        parts: blocks of each worker.
        pending: workers that have not run their stage yet, with the time since then.
    """

    plan: PoolPlan
    routes: List[Route]
    seats: Dict[Worker, Seat]
    parts: Dict[Worker, Part]
    pending: Dict[Worker, float]

    def can_serve(self) -> bool:
        """True if a route has a worker in every stage."""
        return any(route.weight > 0 for route in self.routes)

    def worker_of(self, call: StageCall) -> Optional[Worker]:
        """Return the worker of a call; None: it belongs to another plan."""
        for number, route in enumerate(self.routes):
            if route is call.route:
                return number, call.stage, call.worker
        return None


class PlanSwitcher:
    """Plans of one network.

    Args:
        settings: of the front.
        network: its profile.
        seats: members.
        dispatcher: serves by the plan.

    Attributes:
        active: the plan in use; None: there is none yet.
        reason: explanation of the plan, or of its absence.
        plans: number of plans so far.
        emulated: True if members are emulated.
    """

    def __init__(self, settings: PoolSettings, network: BlockProfile, seats: ActorPool, dispatcher: Dispatcher) -> None:
        self._settings, self._network, self._seats, self._dispatcher = settings, network, seats, dispatcher
        self.active: Optional[ActivePlan] = None
        self.reason = "no member has joined"
        self.plans = 0
        self.emulated = False
        #: The next one while its members prepare, and those with calls in flight.
        self._next: Optional[ActivePlan] = None
        self._old: List[Tuple[float, ActivePlan]] = []
        self._planned: Tuple[Seat, ...] = ()
        self._served_s = -math.inf

    def set_reason(self, reason: str, always: bool = False) -> None:
        """Set the reason if nothing serves, or ``always``."""
        if always or self.active is None:
            self.reason = reason

    def member_of(self, call: StageCall) -> Tuple[Optional[Seat], Optional[Part]]:
        """Return the seat and the blocks of a call; None: no plan has it."""
        for plan in self._all_plans():
            worker = plan.worker_of(call)
            if worker is not None:
                return plan.seats[worker], plan.parts[worker]
        return None, None

    def update_plan(self, nodes: Mapping[str, cluster.PoolNode], now: float) -> float:
        """Make a plan if the present members differ from those of the last one; return the next check's time."""
        self._switch_plan(now)
        serves = self.active is not None and self.active.can_serve()
        if serves:
            self._served_s = now
        present: List[Seat] = []
        next_s, grows = math.inf, False
        for seat, member in self._seats.actors.items():
            if seat[3]:
                continue
            excluded_s = self._dispatcher.members.excluded.get(seat[0])
            if member.present and excluded_s is None:
                present.append(seat)
                grows = grows or (seat not in self._planned and now - member.since_s > 5.0)  # s after a new member
                continue
            absent_since_s = member.since_s if not member.present else excluded_s or now
            if serves and seat in self._planned and now - absent_since_s < REPLAN_S:
                present.append(seat)  # it may come back
                next_s = min(next_s, absent_since_s + REPLAN_S)
        # GPUs of one machine do not follow each other, so that a stage is on several machines if it can be
        chosen = tuple(sorted(present, key=lambda seat: (seat[1], seat[2], seat[0])))
        if not chosen or chosen == self._planned:
            return next_s
        if self.active is not None and not serves and now - self._served_s < NO_SERVICE_S:
            return self._served_s + NO_SERVICE_S
        if serves and set(chosen) >= set(self._planned) and not grows:
            preparing = any(not member.present and not member.prepared for member in self._seats.actors.values())
            if preparing:  # one plan for all that join
                return now + 0.5
        self._make_plan(chosen, nodes, now)
        return next_s

    def bring_member(self, seat: Seat, now: float) -> None:
        """Have a member that is present (again) prepare its stages; then it serves."""
        for plan in filter(None, (self.active, self._next)):
            for worker in [worker for worker in plan.pending if plan.seats[worker] == seat]:
                batch = plan.plan.pipelines[worker[0]].stages[0].batch
                if self._seats.prepare_stage(seat, plan.parts[worker], batch):
                    del plan.pending[worker]
                    if plan is self.active:
                        self._dispatcher.members.mark_present(worker)
        self._switch_plan(now)

    def remove_old(self, now: float) -> None:
        """Remove plans whose calls have ended, and shares of GPUs that no plan uses."""
        self._old = [(until, plan) for until, plan in self._old if now < until]
        used = {seat for plan in self._all_plans() for seat in plan.seats.values()}
        self._seats.remove_seats([seat for seat in self._seats.actors if seat[3] and seat not in used], True)

    def lose_member(self, seat: Seat, now: float) -> None:
        """Mark a member absent in all plans."""
        for plan in filter(None, (self.active, self._next)):
            for worker, other in plan.seats.items():
                if other == seat:
                    plan.pending.setdefault(worker, now)
                    if plan is self.active:
                        self._dispatcher.mark_absent(worker)

    def _all_plans(self) -> List[ActivePlan]:
        return [*filter(None, (self.active, self._next)), *(plan for _, plan in self._old)]

    def _make_plan(self, seats: Tuple[Seat, ...], nodes: Mapping[str, cluster.PoolNode], now: float) -> None:
        settings = self._settings
        self._planned = seats
        times = {nodes[seat[0]].times for seat in seats if seat[0] in nodes}
        if len(times) != 1:
            self.reason = "some members are emulated and others are not, or otherwise dilated; nothing is planned"
            return
        (dilation,) = times
        self.emulated = dilation > 0
        taking_turns = {seat[1] for seat in seats if seat[0] in nodes and not nodes[seat[0]].shares}
        network = profile.without_shares(profile.dilate_network(self._network, dilation or 1.0), taking_turns)
        by_class: Dict[str, List[Seat]] = {}
        for seat in seats:
            by_class.setdefault(seat[1], []).append(seat)
        gpus = {gpu: len(members) for gpu, members in by_class.items()}
        per_machine = {
            gpu: math.gcd(*Counter(seat[0] for seat in members).values()) for gpu, members in by_class.items()
        }
        # links are dilated like the members, or else an emulated pool would have another plan
        rate = settings.bandwidth * 1e9 / 8 / (dilation or 1.0)
        pool = Cluster(gpus, rate, per_machine, settings.link_share)
        try:
            plan = plan_steady([Demand(network, settings.slo_s)], pool, settings.margin, settings.partitions)
        except EdgeOffloadError as error:
            self.reason = str(error)
            return
        self.plans += 1
        self.reason = f"plan {self.plans} for {', '.join(f'{count} {gpu}' for gpu, count in gpus.items())}"
        undivided = [gpu for gpu in sorted(taking_turns) if set(self._network.latency_s[gpu]) - {1}]
        if undivided:
            self.reason += f"; no shares of {', '.join(undivided)}: begin CUDA MPS there, or join with --share-gpu"
        _log.info("%s", self.reason)
        names = sorted({seat[0] for seat in seats})
        machines = {gpu: [names.index(seat[0]) for seat in members] for gpu, members in by_class.items()}
        routes = routes_of(plan, {network.name: network}, pool, machines).get(network.name, [])
        if self._next is not None:
            self._old.append((now, self._next))
        self._next = self._prepare_members(plan, routes, by_class, now)
        self._switch_plan(now)

    def _prepare_members(
        self, plan: PoolPlan, routes: List[Route], by_class: Mapping[str, List[Seat]], now: float
    ) -> ActivePlan:
        """Assign members to a plan; those that have not run their stage yet prepare it."""
        active = ActivePlan(plan, routes, {}, {}, {})
        used = dict.fromkeys(by_class, 0)
        for number, pipeline in enumerate(plan.pipelines):
            for at, stage in enumerate(pipeline.stages):
                for share in range(stage.gpus * stage.parts):
                    node, gpu, place, _ = by_class[stage.gpu][used[stage.gpu] + share // stage.parts]
                    seat, worker = (node, gpu, place, share % stage.parts), (number, at, share)
                    active.seats[worker] = seat
                    active.parts[worker] = (stage.parts, stage.first, stage.end)
                    self._seats.find_or_start(seat, now)
                    if not self._seats.prepare_stage(seat, active.parts[worker], stage.batch):
                        active.pending[worker] = now
                used[stage.gpu] += stage.gpus
        return active

    def _switch_plan(self, now: float) -> None:
        """Use the next plan once its members are ready, or at once if nothing serves."""
        plan = self._next
        if plan is None:
            return
        serves = self.active is not None and self.active.can_serve()
        # the next plan waits at most 30 s for a member to run its stage once
        if serves and not all(now - since > 30.0 for since in plan.pending.values()):
            return
        busy = {}
        if self.active is not None:
            self._old.append((now + self._settings.slo_s + 1.0, self.active))
            for worker, seat in self.active.seats.items():
                busy[seat] = self.active.routes[worker[0]].stages[worker[1]].free_s[worker[2]]
        self.active, self._next = plan, None
        for worker, seat in plan.seats.items():  # calls in flight go first
            plan.routes[worker[0]].stages[worker[1]].free_s[worker[2]] = busy.get(seat, 0.0)
        nodes = {worker: seat[0] for worker, seat in plan.seats.items()}
        self._dispatcher.use_routes(plan.routes, nodes, list(plan.pending), self.emulated)
