"""The pool's driver, a process of its own behind a front: it plans, keeps the actors, and serves what the front sends.

Ray ends a driver a minute after the head's store has died, and takes its actors from it when its own node dies; the
front outlives both, and begins another one. Front and driver speak the link's messages over an ipc socket.

Run as ``python -m edge_offload.server.pool.gateway SETTINGS`` with the settings as JSON.
"""

from __future__ import annotations

import logging
import math
import os
import pathlib
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import zmq

from edge_offload.errors import EdgeOffloadError, Refused
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Message
from edge_offload.server.pool import cluster, profile
from edge_offload.server.pool.accelerators import CPU_LABEL
from edge_offload.server.pool.choose import steady
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.dispatch import Call, Dispatcher, Worker
from edge_offload.server.pool.member import Part
from edge_offload.server.pool.plan import Plan
from edge_offload.server.pool.reserve import Route, routes_of
from edge_offload.server.pool.seats import GONE, Seat, Seats, shared
from edge_offload.server.pool.settings import Settings, network_of

#: Seconds between looks at who is there; from a member's end to the plan without it, while others serve and while
#: nobody does; from a new member to a plan with it, while others begin.
SURVEY_S, REPLAN_S, NOBODY_S, GROW_S = 1.0, 3.0, 0.3, 5.0
#: Seconds for which the next plan waits for a member that is to run its stage once.
ABSENT_S = 30.0
#: Members hear from their driver so often (seconds).
PING_S = 10.0
#: Share of the SLO by which batches are to end early.
SLACK = 0.1
#: Weight of the latest interval between requests in their mean.
LATEST = 0.1
#: Tensors of so many of the bytes that travel with a call may be too many, with what tells of them.
INLINE_SHARE = 0.9
#: So many batches that could not go on where they were are told.
TOLD = 64
#: A driver without word from its front for so long ends.
ORPHAN_S = 10.0
_log = logging.getLogger(__name__)


def _unknown(gpu: str, known: Mapping[str, Any]) -> str:
    return f"the profile has no class {gpu}, but {', '.join(sorted(known))}: see 'edge-offload pool profile'"


def unlike(node: cluster.Node, measured: Mapping[str, str]) -> str:
    """Why a member is not of the class that it joined as, in words; empty: it is, or it is emulated.

    Args:
        node: the member's machine.
        measured: label of the device on which each class was measured; the CPU where nothing is said.
    """
    label = measured.get(node.gpu, CPU_LABEL)
    if node.times or node.device == label:
        return ""
    return (
        f"it computes on {node.device}, and class {node.gpu} was measured on {label}: join with --device, or measure "
        "a class of its own with 'edge-offload pool profile --device'"
    )


@dataclass
class _Course:
    """A plan with its routes and members.

    Attributes:
        plan: what runs where.
        routes: its reservation tables.
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
        return any(all(np.isfinite(stage.free).any() for stage in route.stages) for route in self.routes)

    def worker(self, call: Call) -> Optional[Worker]:
        """Who makes a call; None: nobody of this plan."""
        for number, route in enumerate(self.routes):
            if route is call.track.route:
                return number, call.stage, call.worker
        return None


class Gateway:
    """Plans and actors of one network, and the requests of one front.

    Args:
        settings: of the front.

    Raises:
        EdgeOffloadError: no pool, no profile, or none that fits.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._network, self._model = network_of(settings)
        self._ray = cluster.connect(settings.address, pathlib.Path(settings.folder))
        self._wakeup = Wakeup()
        self._happened: Deque[Tuple[str, Any]] = deque()
        batches = max(table.shape[1] for of in self._network.latency_s.values() for table in of.values())
        name = f"{socket.gethostname()}{pathlib.Path(settings.endpoint).parent.name}"
        self._seats = Seats(self._ray, self._model, settings.threads, batches, self._post, name)
        self._dispatcher = Dispatcher(self._start, self._answer, self._refuse, SLACK * settings.slo_s)
        self._arrived_s = self._interval_s = math.inf
        #: The plan that is served by, the next one while its members begin, and those whose calls are still under way.
        self._course: Optional[_Course] = None
        self._next: Optional[_Course] = None
        self._old: List[Tuple[float, _Course]] = []
        self._nodes: Dict[str, cluster.Node] = {}
        self._drivers: List[str] = []
        self._planned: Tuple[Seat, ...] = ()
        self._looks, self._served_s, self._pinged_s = True, -math.inf, -math.inf
        self._why = "no member has joined"
        self._slo_s = settings.slo_s
        self._counts = {"requests": 0, "answered": 0, "in_time": 0, "refused": 0, "plans": 0}
        self._deadlines: Dict[int, float] = {}
        self._began_s = time.monotonic()
        self._emulated = self._ended = False
        context: zmq.Context[Any] = zmq.Context.instance()
        self._front: zmq.Socket[Any] = context.socket(zmq.DEALER)
        self._front.linger = 0
        self._front.sndhwm = 0
        self._front.connect(settings.endpoint)

    def run(self) -> None:
        """Serve until the front is gone."""
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        poller.register(self._wakeup.descriptor, zmq.POLLIN)
        surveyed_s, heard_s, again_s = -math.inf, time.monotonic(), 0.0
        front = os.getppid()  # one that was killed says nothing, and other servers' drivers want its GPUs
        while not self._ended and os.getppid() == front and time.monotonic() - heard_s <= ORPHAN_S:
            now = time.monotonic()
            if now - surveyed_s >= SURVEY_S:
                surveyed_s = now
                self._survey(now)
                self._tell()
            wait_s = max(0.0, min(again_s, surveyed_s + SURVEY_S) - time.monotonic())
            poller.poll(math.ceil(wait_s * 1e3))
            self._wakeup.clear()
            while True:
                try:
                    frames = self._front.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                heard_s = time.monotonic()
                self._take(messages.unpack_header(frames[0].buffer), frames[1:])
            while self._happened:
                self._note(*self._happened.popleft())
            now = time.monotonic()
            again_s = self._dispatcher.step(now)
            again_s = min(again_s, self._consider(now))
        self._seats.end(os.getppid() == front)

    # ------------------------------------------------------------------ the front

    def _take(self, message: Message, parts: Sequence[Any]) -> None:
        self._ended = self._ended or message.type == "notify"
        if message.type != "request":
            return
        inputs = [
            (str(spec["dtype"]), tuple(spec["shape"]), tuple(range(len(spec["shape"]))), np.frombuffer(part, np.uint8))
            for spec, part in zip(message.body["inputs"], parts)
        ]
        self._counts["requests"] += 1
        now = time.monotonic()
        since_s, self._arrived_s = now - self._arrived_s, now
        if math.isfinite(since_s):
            since_s = min(since_s, 10.0)
            known = math.isfinite(self._interval_s)
            self._interval_s += LATEST * (since_s - self._interval_s) if known else since_s - self._interval_s
        self._dispatcher.every(self._interval_s if math.isfinite(self._interval_s) else 10.0)
        deadline = now + self._slo_s
        self._deadlines[message.id] = deadline
        self._dispatcher.arrive(message.id, inputs, deadline)

    def _answer(self, requests: Tuple[int, ...], payload: Any) -> None:
        now = time.monotonic()
        each = len(payload) // len(requests)
        for place, request in enumerate(requests):
            outputs = [] if self._emulated else payload[place * each : (place + 1) * each]
            self._counts["answered"] += 1
            self._counts["in_time"] += now <= self._deadlines.pop(request, 0.0)
            body = {
                "outputs": [
                    {"dtype": dtype, "shape": list(shape), "order": list(order)} for dtype, shape, order, _ in outputs
                ],
                "batch": len(requests), "emulated": self._emulated,
            }  # fmt: skip
            self._send(Message("reply", 0, request, "", body), [raw for _, _, _, raw in outputs])

    def _refuse(self, requests: Sequence[int], why: str) -> None:
        for request in requests:
            self._counts["refused"] += 1
            self._deadlines.pop(request, None)
            self._send(Message("error", 0, request, "", messages.error_body(Refused(why))), [])

    def _send(self, message: Message, buffers: Sequence[Any]) -> None:
        self._front.send_multipart([messages.pack_header(message), *messages.byte_views(buffers)], copy=True)

    def _tell(self) -> None:
        status = self.status()
        cluster.tell(pathlib.Path(self._settings.folder), status)
        self._send(Message("notify", 0, 0, "pool", status), [])

    def status(self) -> Dict[str, Any]:
        """Nodes, plan, how well and how busy, for people and JSON."""
        seconds = max(time.monotonic() - self._began_s, 1e-9)
        stages: List[Dict[str, Any]] = []
        late_s = sorted(self._dispatcher.outcomes.late_s) or [0.0]
        course = self._course
        for pipeline, route in zip(course.plan.pipelines if course else (), course.routes if course else ()):
            for stage, table in zip(pipeline.stages, route.stages):
                there = int(np.isfinite(table.free).sum())
                stages.append({
                    "class": stage.gpu, "blocks": [stage.first, stage.end], "share": 1 / stage.parts,
                    "batch": stage.batch, "gpus": stage.gpus, "workers_there": there, "workers": len(table.free),
                    "busy": float(table.busy_s / seconds / max(len(table.free), 1)),
                })  # fmt: skip
        return {
            "address": self._settings.address, "pid": os.getpid(), "model": self._settings.model, "slo_s": self._slo_s,
            "nodes": [
                {
                    "id": node.name[:8], "class": node.gpu, "gpus": node.gpus, "emulated": node.times,
                    "device": node.device,
                    "problem": node.problem or ("does not answer" if node.name in self._dispatcher.members.out else ""),
                }
                for node in self._nodes.values()
            ],
            "drivers": len(self._drivers), "rate": float(course.plan.objective) if course else 0.0, "stages": stages,
            "passed_over": float(course.plan.passed_over) if course else 0.0,
            "why": self._why,
            "late_s": {"mean": sum(late_s) / len(late_s), "p50": late_s[len(late_s) // 2], "max": late_s[-1]},
            "stranded": [
                {name: None if value == math.inf else value for name, value in vars(each).items()}
                for each in list(self._dispatcher.outcomes.stranded)[-TOLD:]
            ],
            "moved": self._dispatcher.outcomes.moved, "moved_in_time": self._dispatcher.outcomes.moved_in_time,
            **self._counts,
        }  # fmt: skip

    # ------------------------------------------------------------------ members

    def _survey(self, now: float) -> None:
        """Ask who is there, and members of nodes that are out, or doubted, whether they are."""
        self._seats.look()
        self._seats.again(now)
        pings, unsure = now - self._pinged_s >= PING_S, self._dispatcher.members.unsure
        if pings:
            self._pinged_s = now
        for seat in self._seats.sitting:
            if pings or seat[0] in unsure:
                self._seats.ask(seat)
        self._clear(now)

    def _found(self, found: Sequence[cluster.Node], drivers: Sequence[str], now: float) -> None:
        """Nodes that the head knows: each GPU of theirs has a member, of the driver whose turn it is."""
        nodes = {node.name: replace(node, problem=node.problem or self._problem(node)) for node in found}
        for name in [name for name in self._nodes if name not in nodes]:
            self._dispatcher.node_lost(name, now)
            self._seats.forget([seat for seat in self._seats.sitting if seat[0] == name], False)
        self._nodes = nodes
        if not self._course:
            self._why = next((node.problem for node in nodes.values() if node.problem), self._why)
        own = {
            (node.name, node.gpu, number, 0)
            for node in nodes.values()
            for number in range(0 if node.problem else node.gpus)
        }
        self._drivers = list(drivers)
        own = set(shared(own, self._seats.others.own, drivers))
        self._seats.forget([seat for seat in self._seats.sitting if (*seat[:3], 0) not in own], False)
        for seat in own:
            self._seats.want(seat, now)

    def _problem(self, node: cluster.Node) -> str:
        known = self._network.latency_s
        return unlike(node, self._model.get("devices", {})) if node.gpu in known else _unknown(node.gpu, known)

    def _consider(self, now: float) -> float:
        """Plan for those who are there, where they are not those of the last plan; when to look again at the latest."""
        self._switch(now)
        serves = self._course is not None and self._course.serves()
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
        if self._course is not None and not serves and now - self._served_s < NOBODY_S:
            return self._served_s + NOBODY_S
        if serves and set(wanted) >= set(self._planned) and not grows:
            begins = any(not found.here and not found.prepared for found in self._seats.sitting.values())
            if begins:  # one plan for all who come
                return now + 0.5
        self._replan(wanted, now)
        return again_s

    def _replan(self, wanted: Tuple[Seat, ...], now: float) -> None:
        settings = self._settings
        self._planned = wanted
        times = {self._nodes[seat[0]].times for seat in wanted if seat[0] in self._nodes}
        if len(times) != 1:
            self._why = "some members are emulated and others are not, or otherwise dilated; nothing is planned"
            return
        (dilation,) = times
        self._emulated = dilation > 0
        taking_turns = {seat[1] for seat in wanted if seat[0] in self._nodes and not self._nodes[seat[0]].shares}
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
            self._why = str(error)
            return
        self._counts["plans"] += 1
        self._why = f"plan {self._counts['plans']} for {', '.join(f'{count} {gpu}' for gpu, count in gpus.items())}"
        undivided = [gpu for gpu in sorted(taking_turns) if set(self._network.latency_s[gpu]) - {1}]
        if undivided:
            self._why += f"; no shares of {', '.join(undivided)}: begin CUDA MPS there, or join with --share-gpu"
        _log.info("%s", self._why)
        names = sorted({seat[0] for seat in wanted})
        machines = {gpu: [names.index(seat[0]) for seat in of] for gpu, of in own.items()}
        routes = routes_of(plan, {network.name: network}, pool, machines).get(network.name, [])
        if self._next is not None:
            self._old.append((now, self._next))
        self._next = self._prepared(plan, routes, own, now)
        self._switch(now)

    def _prepared(self, plan: Plan, routes: List[Route], own: Mapping[str, List[Seat]], now: float) -> _Course:
        """A plan's members; those that have not run their stage yet begin to."""
        course = _Course(plan, routes, {}, {}, {})
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
        serves = self._course is not None and self._course.serves()
        if serves and not all(now - since > ABSENT_S for since in course.pending.values()):
            return
        busy = {}
        if self._course is not None:
            self._old.append((now + self._slo_s + 1.0, self._course))
            for worker, seat in self._course.seats.items():
                busy[seat] = float(self._course.routes[worker[0]].stages[worker[1]].free[worker[2]])
        self._course, self._next = course, None
        for worker, seat in course.seats.items():  # what a member has begun goes first
            until = busy.get(seat, 0.0)
            course.routes[worker[0]].stages[worker[1]].occupy(worker[2], until if math.isfinite(until) else 0.0)
        nodes = {worker: seat[0] for worker, seat in course.seats.items()}
        self._dispatcher.use(course.routes, nodes, list(course.pending), self._emulated)

    def _clear(self, now: float) -> None:
        """Forget plans whose calls are through, and shares of GPUs that no plan has."""
        self._old = [(until, course) for until, course in self._old if now < until]
        courses = [*filter(None, (self._course, self._next)), *(course for _, course in self._old)]
        used = {seat for course in courses for seat in course.seats.values()}
        self._seats.forget([seat for seat in self._seats.sitting if seat[3] and seat not in used], True)

    # ------------------------------------------------------------------ calls

    def _start(self, call: Call) -> None:
        courses = [*filter(None, (self._course, self._next)), *(course for _, course in self._old)]
        found = next(((course, worker) for course in courses if (worker := course.worker(call)) is not None), None)
        seat = found[0].seats[found[1]] if found is not None else None
        sitting = self._seats.sitting.get(seat) if seat is not None else None
        if found is None or seat is None or sitting is None or sitting.actor is None:
            self._post("failed", (call.number, seat, None, "its member is not there", True))
            return
        last = call.stage == len(call.track.route.stages) - 1
        run = sitting.actor.run.options(num_returns=1 if last else 2)
        ran = run.remote(found[0].parts[found[1]], len(call.track.job.requests), call.track.payload)
        actor = sitting.actor
        reference, kept = (ran, None) if last else ran
        crossing = 0.0 if last else float(self._network.cut_bytes[found[0].parts[found[1]][2] - 1])
        stays = crossing * len(call.track.job.requests) >= INLINE_SHARE * cluster.INLINE_BYTES

        def done(future: Any) -> None:
            error = future.exception()
            if error is None:
                # the tensors go from stage to stage as a reference; only the last stage's are fetched
                self._post("ended", (call.number, future.result()[1] if last else kept, stays))
            else:
                words = cluster.plain(error)
                self._post("failed", (call.number, seat, actor, words, type(error).__name__ in GONE))

        reference.future().add_done_callback(done)

    def _post(self, what: str, about: Any) -> None:
        """Note it on the driver's thread."""
        self._happened.append((what, about))
        self._wakeup.wake()

    def _note(self, what: str, about: Any) -> None:
        now = time.monotonic()
        if what == "ended":
            number, payload, stays = about
            self._dispatcher.ended(number, payload, now, stays)
        elif what == "failed":
            number, seat, actor, words, gone = about
            self._dispatcher.failed(number, words, gone, now)
            if gone and seat is not None:
                self._lose(seat, actor, words, now)
        elif what == "nodes":
            found, drivers = about
            self._found(found, drivers, now)
        elif what == "away":  # what is known goes on
            self._why = f"the head does not answer: {about}"
        elif what == "seated":
            self._seats.seated(*about)
            self._bring(about[0], now)
        elif what == "here":
            self._dispatcher.members.heard(about[0], now)
            if self._seats.answered(about, now):
                self._bring(about, now)
        elif what == "prepared":
            seat, part, batch = about
            self._seats.prepared(seat, part, batch)
            self._dispatcher.members.heard(seat[0], now, False)
            self._bring(seat, now)
        elif what == "lost":
            seat, actor, words = about
            self._lose(seat, actor, words, now)

    def _bring(self, seat: Seat, now: float) -> None:
        """A member is there (again): it prepares what plans have for it, and then it serves."""
        for course in filter(None, (self._course, self._next)):
            for worker in [worker for worker in course.pending if course.seats[worker] == seat]:
                batch = course.plan.pipelines[worker[0]].stages[0].batch
                if self._seats.prepare(seat, course.parts[worker], batch):
                    del course.pending[worker]
                    if course is self._course:
                        self._dispatcher.members.present(worker, now)
        self._switch(now)

    def _lose(self, seat: Seat, actor: Any, words: str, now: float) -> None:
        """A member is lost."""
        if not self._seats.lost(seat, actor, now):
            return
        _log.warning("a member on %s is not there: %s", seat[0][:8], words)
        if self._course is None:
            self._why = f"a member is not there: {words}"
        for course in filter(None, (self._course, self._next)):
            for worker, of in course.seats.items():
                if of == seat:
                    course.pending.setdefault(worker, now)
                    if course is self._course:
                        self._dispatcher.absent(worker)


def main() -> int:
    """See the module."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s pool: %(message)s")
    try:
        Gateway(Settings.parse(sys.argv[1])).run()
    except EdgeOffloadError as error:
        _log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # Ray's own threads wait for a head that may be away
