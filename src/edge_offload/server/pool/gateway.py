"""The pool's driver, a process of its own behind a front: it plans, keeps the actors, and serves what the front sends.

Ray ends a driver a minute after the head's store has died, and takes its actors from it when its own node dies; the
front outlives both, and begins another one. Front and driver speak the link's messages over an ipc socket.

Run as ``python -m edge_offload.server.pool.gateway SETTINGS`` with the settings as JSON.
"""

from __future__ import annotations

import json
import logging
import math
import os
import pathlib
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Deque, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import zmq

from edge_offload.errors import BadInput, EdgeOffloadError, Refused
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Message
from edge_offload.server.pool import cluster, profile
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.dispatch import Call, Dispatcher, Worker
from edge_offload.server.pool.plan import Plan, most
from edge_offload.server.pool.reserve import Route, routes_of

#: Seconds between looks at who is there, and from a node's end to the plan without it.
SURVEY_S, REPLAN_S = 1.0, 3.0
#: Seconds that a member's process may take to be there, before the plan is made without its node.
ABSENT_S = 30.0
#: Seconds after which a node that was left out for that is tried again, beside what serves.
RETRY_S = 60.0
#: Share of the SLO by which batches are to end early.
SLACK = 0.1
#: Weight of the latest interval between requests in their mean.
LATEST = 0.1
#: A driver without word from its front for so long ends.
ORPHAN_S = 10.0
#: Node, class, parts, first and end block, and which of these.
_Kind = Tuple[str, str, int, int, int, int]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What the front tells its driver.

    Attributes:
        address: of the pool.
        endpoint: ipc socket of the front.
        model: name in the profiles.
        slo_s: seconds from a request to its answer.
        profiles: folder with latencies, bytes and cuts.
        folder: with the token.
        margin, partitions, bandwidth, link_share: as ``pool plan`` takes them; the bandwidth in Gbit/s.
        threads: of each member.
    """

    address: str
    endpoint: str
    model: str
    slo_s: float
    profiles: str
    folder: str
    margin: float = 0.4
    partitions: int = 3
    bandwidth: float = 10.0
    link_share: float = 0.8
    threads: int = 1

    def to_json(self) -> str:
        """What :meth:`parse` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Settings:
        """The settings in what :meth:`to_json` wrote."""
        return cls(**json.loads(text))


def network_of(settings: Settings) -> Tuple[profile.Network, Dict[str, Any]]:
    """The profile of the model, and what members build.

    Raises:
        BadInput: the folder has no such network, or says not where it is cut.
    """
    folder = pathlib.Path(settings.profiles)
    known = profile.load(folder)
    if settings.model not in known:
        raise BadInput(f"{folder} has no network {settings.model}", remedy=f"it has {', '.join(sorted(known))}")
    try:
        raw = json.loads((folder / "blocks.json").read_text(encoding="utf-8"))[settings.model]
        return known[settings.model], {"name": settings.model, **raw}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder} does not say where {settings.model} is cut", remedy="measure with 'edge-offload pool profile'"
        ) from error


def dilated(network: profile.Network, times: float) -> profile.Network:
    """The network on members that take so many times as long."""
    return profile.Network(
        network.name,
        {gpu: {parts: table * times for parts, table in of.items()} for gpu, of in network.latency_s.items()},
        network.cut_bytes,
    )


@dataclass
class _Course:
    """A plan with its routes and members.

    Attributes:
        number: counts plans.
        actors: by what they run and where.
        places: who they are in the routes.
        homes: node of each worker.
        pending: workers that are not there yet, since when.
    """

    number: int
    plan: Plan
    routes: List[Route]
    actors: Dict[_Kind, Any]
    places: Dict[Tuple[int, int, int], Any]
    homes: Dict[Worker, str]
    pending: Dict[Worker, float]


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
        self._dispatcher = Dispatcher(self._start, self._answer, self._refuse, SLACK * settings.slo_s)
        self._asked: Set[Tuple[int, Worker]] = set()
        self._arrived_s = self._interval_s = math.inf
        #: The plan that is served by, the next one while its members begin, and those whose calls are still under way.
        self._course: Optional[_Course] = None
        self._next: Optional[_Course] = None
        self._old: List[Tuple[float, _Course]] = []
        self._nodes: List[cluster.Node] = []
        self._planned: Tuple[Tuple[str, int], ...] = ()
        self._why = "no member has joined"
        self._gone_s: Dict[str, float] = {}
        self._slo_s = settings.slo_s
        self._counts = {"requests": 0, "answered": 0, "in_time": 0, "refused": 0, "plans": 0}
        self._deadlines: Dict[int, float] = {}
        self._epochs: Dict[int, int] = {}
        self._began_s = time.monotonic()
        self._emulated = False
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
        while True:
            now = time.monotonic()
            if now - surveyed_s >= SURVEY_S:
                surveyed_s = now
                self._survey(now)
                self._tell()
            if now - heard_s > ORPHAN_S:
                return
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
            again_s = self._dispatcher.step(time.monotonic())

    # ------------------------------------------------------------------ the front

    def _take(self, message: Message, parts: Sequence[Any]) -> None:
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
            "address": self._settings.address, "model": self._settings.model, "slo_s": self._slo_s,
            "nodes": [
                {
                    "id": node.name[:8], "class": node.gpu, "gpus": node.gpus, "emulated": node.times,
                    "problem": node.problem or ("does not answer" if node.name in self._dispatcher.out else ""),
                }
                for node in self._nodes
            ],
            "rate": float(course.plan.objective) if course else 0.0, "stages": stages, "why": self._why,
            **self._counts,
        }  # fmt: skip

    # ------------------------------------------------------------------ members

    def _survey(self, now: float) -> None:
        """Who is there; a plan for them where they are not those of the last one."""
        try:
            found = cluster.nodes(self._ray)
        except Exception as error:  # the head is away: what is known goes on
            self._why = f"the head does not answer: {type(error).__name__}"
            return
        names = {node.name for node in found}
        for node in self._nodes:
            if node.name not in names:
                self._dispatcher.node_lost(node.name, now)
        self._nodes = found
        if self._course is not None:
            for key, actor in self._course.actors.items():
                if key[0] in self._dispatcher.out and key[0] in names:
                    self._when(actor.ready.remote(), "heard", key[0])
        for course in filter(None, (self._course, self._next)):
            for worker, since in course.pending.items():
                if now - since > ABSENT_S:
                    self._dispatcher.node_lost(course.homes[worker], now)
                self._ask(course, worker)
        busy = {key[0] for course in filter(None, (self._course, self._next)) for key in course.actors}
        for name, since in list(self._gone_s.items()):
            if name in names and name not in busy and now - since > RETRY_S:
                self._dispatcher.heard(name, now)
        self._switch(now)
        self._clear(now)
        for name in self._dispatcher.out:
            self._gone_s.setdefault(name, now)
        self._gone_s = {name: since for name, since in self._gone_s.items() if name in self._dispatcher.out}
        usable = [node for node in found if not node.problem]
        staying = [node for node in usable if now - self._gone_s.get(node.name, now) < REPLAN_S]
        wanted = tuple((node.name, node.gpus) for node in staying)
        if wanted and wanted != self._planned:
            self._replan(staying, wanted, now)
        elif not wanted and not self._planned:
            self._why = next((node.problem for node in found if node.problem), "no member has joined")

    def _replan(self, staying: Sequence[cluster.Node], wanted: Tuple[Tuple[str, int], ...], now: float) -> None:
        settings = self._settings
        self._planned = wanted
        times = {node.times for node in staying}
        if len(times) > 1:
            self._why = "some members are emulated and others are not, or otherwise dilated; nothing is planned"
            return
        (dilation,) = times
        self._emulated = dilation > 0
        network = dilated(self._network, dilation or 1.0)
        gpus: Dict[str, int] = {}
        own: Dict[str, List[cluster.Node]] = {}
        for node in staying:
            gpus[node.gpu] = gpus.get(node.gpu, 0) + node.gpus
            own.setdefault(node.gpu, []).append(node)
        together = {gpu: math.gcd(*(node.gpus for node in of)) for gpu, of in own.items()}
        pool = Cluster(gpus, settings.bandwidth * 1e9 / 8, together, settings.link_share)
        try:
            plan = most([Demand(network, settings.slo_s)], pool, settings.margin, settings.partitions)
        except EdgeOffloadError as error:
            self._why = str(error)
            return
        self._counts["plans"] += 1
        self._why = f"plan {self._counts['plans']} for {', '.join(f'{count} {gpu}' for gpu, count in gpus.items())}"
        _log.info("%s", self._why)
        routes = routes_of(plan, {network.name: network}, pool).get(network.name, [])
        if self._next is not None:
            self._old.append((now, self._next))
        self._next = self._begin_all(plan, routes, own, now)
        self._switch(now)

    def _begin_all(self, plan: Plan, routes: List[Route], own: Dict[str, List[cluster.Node]], now: float) -> _Course:
        """The members of a plan: those that are there already, and others that begin now."""
        slots = {gpu: [node for node in of for _ in range(node.gpus)] for gpu, of in own.items()}
        taken = dict.fromkeys(slots, 0)
        wanted: Dict[_Kind, Worker] = {}
        nodes: Dict[Worker, str] = {}
        counts: Dict[Tuple[str, str, int, int, int], int] = {}
        for number, pipeline in enumerate(plan.pipelines):
            for at, stage in enumerate(pipeline.stages):
                for worker in range(stage.gpus * stage.parts):
                    node = slots[stage.gpu][taken[stage.gpu] + worker // stage.parts]
                    kind = (node.name, stage.gpu, stage.parts, stage.first, stage.end)
                    counts[kind] = counts.get(kind, 0) + 1
                    wanted[(*kind, counts[kind])] = (number, at, worker)
                    nodes[number, at, worker] = node.name
                taken[stage.gpu] += stage.gpus
        present = {} if self._course is None else self._course.actors
        actors = {
            key: present[key] if key in present else self._begin(key, plan.pipelines[number].stages[0].batch)
            for key, (number, _, _) in wanted.items()
        }
        places = {(id(routes[number]), at, worker): actors[key] for key, (number, at, worker) in wanted.items()}
        # a member that is there already may be one that is lost: it is asked like the others
        pending = dict.fromkeys(wanted.values(), now)
        made = _Course(self._counts["plans"], plan, routes, actors, places, nodes, pending)
        for each in pending:
            self._ask(made, each)
        return made

    def _ask(self, course: _Course, worker: Worker) -> None:
        """Have a member say that it is there, once it is."""
        if (course.number, worker) not in self._asked:
            self._asked.add((course.number, worker))
            actor = course.places[id(course.routes[worker[0]]), worker[1], worker[2]]
            self._when(actor.ready.remote(), "present", (course.number, worker))

    def _switch(self, now: float) -> None:
        """Serve by the next plan once its members are there; at once where nobody serves."""
        course = self._next
        if course is None:
            return
        serves = self._course is not None and any(
            all(np.isfinite(stage.free).any() for stage in route.stages) for route in self._course.routes
        )
        late = all(now - since > ABSENT_S for since in course.pending.values())
        if serves and not late:
            return
        if self._course is not None:
            self._old.append((now + self._slo_s + 1.0, self._course))
        self._course, self._next = course, None
        self._dispatcher.use(course.routes, course.homes, list(course.pending))

    def _clear(self, now: float) -> None:
        """End members of earlier plans whose calls are through."""
        for until, course in list(self._old):
            if now < until:
                continue
            self._old.remove((until, course))
            staying = [actor for kept in (self._course, self._next) if kept for actor in kept.actors.values()]
            staying += [actor for _, kept in self._old for actor in kept.actors.values()]
            for actor in course.actors.values():
                if not any(actor is other for other in staying):
                    self._ray.kill(actor, no_restart=True)

    def _begin(self, key: _Kind, batches: int) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from edge_offload.server.pool.member import Member

        node, gpu, parts, first, end, _ = key
        # half of what there is: the members of the next plan begin beside those of this one
        share = math.floor(1e4 / (2 * parts)) / 1e4
        actor = self._ray.remote(Member).options(
            num_cpus=0,
            resources={f"{cluster.RESOURCE}{gpu}": share},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            max_restarts=-1,
        )
        return actor.remote(self._model, gpu, parts, first, end, self._settings.threads, batches)

    # ------------------------------------------------------------------ calls

    def _start(self, call: Call) -> None:
        key = (id(call.track.route), call.stage, call.worker)
        courses = [*filter(None, (self._course, self._next)), *(course for _, course in self._old)]
        actor = next((course.places[key] for course in courses if key in course.places), None)
        last = call.stage == len(call.track.route.stages) - 1
        if actor is None:  # of a plan before this one
            self._happened.append(("failed", (call.number, key, "the plan has changed", True)))
            self._wakeup.wake()
            return
        ran = actor.run.options(num_returns=2).remote(len(call.track.job.requests), call.track.payload)
        # the tensors go from stage to stage as a reference; only the last stage's are fetched
        self._when(ran[1] if last else ran[0], "ended", (call.number, None if last else ran[1]), key)

    def _when(self, reference: Any, what: str, about: Any, key: Any = None) -> None:
        """Note it on this thread when ``reference`` is there."""

        def done(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._happened.append((what, (about, future.result())))
            elif what == "ended":
                words = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"[:300]
                gone = type(error).__name__ in ("ActorDiedError", "ActorUnavailableError", "RayActorError")
                self._happened.append(("failed", (about[0], key, words, gone)))
            elif what == "present":
                self._happened.append(("absent", (*about, str(error)[-300:])))
            self._wakeup.wake()

        reference.future().add_done_callback(done)

    def _note(self, what: str, about: Any) -> None:
        now = time.monotonic()
        if what == "ended":
            (number, reference), value = about
            self._dispatcher.ended(number, value if reference is None else reference, now)
        elif what == "failed":
            number, key, words, gone = about
            self._dispatcher.failed(number, words, gone, now)
            for place, route in enumerate(self._course.routes if self._course else ()):
                if gone and id(route) == key[0] and self._course is not None:
                    self._course.pending.setdefault((place, key[1], key[2]), now)
        elif what == "present":
            (plan, worker), _ = about
            self._asked.discard((plan, worker))
            for course in filter(None, (self._course, self._next)):
                if course.number == plan:
                    course.pending.pop(worker, None)
                    self._dispatcher.heard(course.homes[worker], now)
                    if course is self._course:
                        self._dispatcher.present(worker, now)
            self._switch(now)
        elif what == "heard":
            self._dispatcher.heard(about[0], now)
        elif what == "absent":
            plan, worker, words = about
            self._asked.discard((plan, worker))  # it is asked again with the next survey
            if plan == self._counts["plans"]:
                self._why = f"a member is not there: {' '.join(words.split())}"
                _log.warning("%s", self._why)


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
