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
ABSENT_S = 20.0
#: Share of the SLO by which batches are to end early.
SLACK = 0.1
#: Weight of the latest interval between requests in their mean.
LATEST = 0.1
#: A driver without word from its front for so long ends.
ORPHAN_S = 10.0
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
        self._pending: Dict[Worker, float] = {}
        self._asked: Set[Worker] = set()
        self._homes: Dict[Worker, str] = {}
        self._arrived_s = self._interval_s = math.inf
        self._actors: Dict[Tuple[str, str, int, int, int, int], Any] = {}
        self._places: Dict[Tuple[int, int, int], Any] = {}
        self._routes: List[Route] = []
        self._nodes: List[cluster.Node] = []
        self._planned: Tuple[Tuple[str, int], ...] = ()
        self._plan: Optional[Plan] = None
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
        for pipeline, route in zip(self._plan.pipelines if self._plan else (), self._routes):
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
            "rate": float(self._plan.objective) if self._plan else 0.0, "stages": stages, "why": self._why,
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
        for key, actor in self._actors.items():
            if key[0] in self._dispatcher.out and key[0] in names:
                self._when(actor.ready.remote(), "heard", key[0])
        for worker, since in self._pending.items():
            if now - since > ABSENT_S:
                self._dispatcher.node_lost(self._homes[worker], now)
            self._ask(worker)
        for name in self._dispatcher.out:
            self._gone_s.setdefault(name, now)
        self._gone_s = {name: since for name, since in self._gone_s.items() if name in self._dispatcher.out}
        usable = [node for node in found if not node.problem]
        staying = [node for node in usable if now - self._gone_s.get(node.name, now) < REPLAN_S]
        wanted = tuple((node.name, node.gpus) for node in staying)
        if wanted and wanted != self._planned:
            self._replan(staying, wanted)
        elif not wanted and not self._planned:
            self._why = next((node.problem for node in found if node.problem), "no member has joined")

    def _replan(self, staying: Sequence[cluster.Node], wanted: Tuple[Tuple[str, int], ...]) -> None:
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
        self._plan = plan
        self._counts["plans"] += 1
        self._why = f"plan {self._counts['plans']} for {', '.join(f'{count} {gpu}' for gpu, count in gpus.items())}"
        _log.info("%s", self._why)
        self._routes = routes_of(plan, {network.name: network}, pool).get(network.name, [])
        self._place(plan, own)

    def _place(self, plan: Plan, own: Dict[str, List[cluster.Node]]) -> None:
        """Keep the actors that the plan wants, end the others, begin those that are missing."""
        slots = {gpu: [node for node in of for _ in range(node.gpus)] for gpu, of in own.items()}
        taken = dict.fromkeys(slots, 0)
        wanted: Dict[Tuple[str, str, int, int, int, int], Worker] = {}
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
        for key in [key for key in self._actors if key not in wanted]:
            self._ray.kill(self._actors.pop(key), no_restart=True)
        missing = [key for key in wanted if key not in self._actors]
        for key in missing:
            self._actors[key] = self._begin(key, plan.pipelines[wanted[key][0]].stages[0].batch)
        self._places = {}
        for key, (number, at, worker) in wanted.items():
            self._places[id(self._routes[number]), at, worker] = self._actors[key]
        self._dispatcher.use(self._routes, nodes, [wanted[key] for key in missing])
        self._homes, self._asked = nodes, set()
        self._pending = {wanted[key]: time.monotonic() for key in missing}
        for each in self._pending:
            self._ask(each)

    def _ask(self, worker: Worker) -> None:
        """Have a member say that it is there, once it is."""
        if worker not in self._asked:
            self._asked.add(worker)
            actor = self._places[id(self._routes[worker[0]]), worker[1], worker[2]]
            self._when(actor.ready.remote(), "present", (self._counts["plans"], worker))

    def _begin(self, key: Tuple[str, str, int, int, int, int], batches: int) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from edge_offload.server.pool.member import Member

        node, gpu, parts, first, end, _ = key
        actor = self._ray.remote(Member).options(
            num_cpus=0,
            resources={f"{cluster.RESOURCE}{gpu}": math.floor(1e4 / parts) / 1e4},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            max_restarts=-1,
        )
        return actor.remote(self._model, gpu, parts, first, end, self._settings.threads, batches)

    # ------------------------------------------------------------------ calls

    def _start(self, call: Call) -> None:
        key = (id(call.track.route), call.stage, call.worker)
        actor = self._places.get(key)
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
            for place, route in enumerate(self._routes):
                if gone and id(route) == key[0]:
                    self._pending.setdefault((place, key[1], key[2]), now)
        elif what == "present":
            (plan, worker), _ = about
            if plan == self._counts["plans"]:
                self._pending.pop(worker, None)
                self._asked.discard(worker)
                self._dispatcher.heard(self._homes[worker], now)
                self._dispatcher.present(worker, now)
        elif what == "heard":
            self._dispatcher.heard(about[0], now)
        elif what == "absent":
            plan, worker, words = about
            if plan == self._counts["plans"]:
                self._asked.discard(worker)  # it is asked again with the next survey
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
