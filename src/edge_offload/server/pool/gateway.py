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
from collections import deque
from dataclasses import replace
from typing import Any, Deque, Dict, List, Mapping, Sequence, Tuple

import zmq

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.transport.messages import Message
from edge_offload.server.pool import cluster
from edge_offload.server.pool.accelerators import CPU_LABEL
from edge_offload.server.pool.dispatch import Call, Dispatcher
from edge_offload.server.pool.driver.courses import Courses
from edge_offload.server.pool.driver.front import Front
from edge_offload.server.pool.seats import GONE, Seat, Seats, shared
from edge_offload.server.pool.settings import Settings, network_of

#: Seconds between looks at who is there.
SURVEY_S = 1.0
#: Members hear from their driver so often (seconds).
PING_S = 10.0
#: Before a member ends a batch it is sent the next one: what a call takes to get there (seconds).
LEAD_S = 0.005
#: Share of the SLO by which batches are to end early.
SLACK = 0.1
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
        ray = cluster.connect(settings.address, pathlib.Path(settings.folder))
        self._wakeup = Wakeup()
        self._happened: Deque[Tuple[str, Any]] = deque()
        batches = max(table.shape[1] for of in self._network.latency_s.values() for table in of.values())
        name = f"{socket.gethostname()}{pathlib.Path(settings.endpoint).parent.name}"
        self._seats = Seats(ray, self._model, settings.threads, batches, self._post, name)
        self._front = Front(settings)
        self._dispatcher = Dispatcher(self._start, self._answer, self._front.refuse, SLACK * settings.slo_s, LEAD_S)
        self._courses = Courses(settings, self._network, self._seats, self._dispatcher)
        self._nodes: Dict[str, cluster.Node] = {}
        self._drivers: List[str] = []
        self._pinged_s = -math.inf
        self._began_s = time.monotonic()

    def run(self) -> None:
        """Serve until the front is gone."""
        poller = zmq.Poller()
        poller.register(self._front.socket, zmq.POLLIN)
        poller.register(self._wakeup.descriptor, zmq.POLLIN)
        surveyed_s, again_s = -math.inf, 0.0
        front = os.getppid()  # one that was killed says nothing, and other servers' drivers want its GPUs
        while not self._front.ended and os.getppid() == front and time.monotonic() - self._front.heard_s <= ORPHAN_S:
            now = time.monotonic()
            if now - surveyed_s >= SURVEY_S:
                surveyed_s = now
                self._survey(now)
                self._tell()
            wait_s = max(0.0, min(again_s, surveyed_s + SURVEY_S) - time.monotonic())
            poller.poll(math.ceil(wait_s * 1e3))
            self._wakeup.clear()
            for request, inputs, deadline in self._front.receive():
                self._dispatcher.arrive(request, inputs, deadline)
            while self._happened:
                self._note(*self._happened.popleft())
            now = time.monotonic()
            again_s = self._dispatcher.step(now)
            again_s = min(again_s, self._courses.consider(self._nodes, now))
            if self._dispatcher.members.changed:  # by another plan
                again_s = now
        self._seats.end(os.getppid() == front)

    # ------------------------------------------------------------------ the front

    def _answer(self, requests: Tuple[int, ...], payload: Any) -> None:
        self._front.answer(requests, payload, self._courses.emulated)

    def _tell(self) -> None:
        status = self.status()
        cluster.tell(pathlib.Path(self._settings.folder), status)
        self._front.send(Message("notify", 0, 0, "pool", status))

    def status(self) -> Dict[str, Any]:
        """Nodes, plan, how well and how busy, for people and JSON."""
        seconds = max(time.monotonic() - self._began_s, 1e-9)
        stages: List[Dict[str, Any]] = []
        late_s = sorted(self._dispatcher.outcomes.late_s) or [0.0]
        course = self._courses.course
        for pipeline, route in zip(course.plan.pipelines if course else (), course.routes if course else ()):
            for stage, table in zip(pipeline.stages, route.stages):
                there = len(table.there)
                stages.append({
                    "class": stage.gpu, "blocks": [stage.first, stage.end], "share": 1 / stage.parts,
                    "batch": stage.batch, "gpus": stage.gpus, "workers_there": there, "workers": len(table.machines),
                    "busy": float(table.busy_s / seconds / max(len(table.machines), 1)),
                })  # fmt: skip
        return {
            "address": self._settings.address, "pid": os.getpid(), "model": self._settings.model,
            "slo_s": self._settings.slo_s,
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
            "why": self._courses.why,
            "late_s": {"mean": sum(late_s) / len(late_s), "p50": late_s[len(late_s) // 2], "max": late_s[-1]},
            "stranded": [
                {name: None if value == math.inf else value for name, value in vars(each).items()}
                for each in list(self._dispatcher.outcomes.stranded)[-TOLD:]
            ],
            "moved": self._dispatcher.outcomes.moved, "moved_in_time": self._dispatcher.outcomes.moved_in_time,
            **self._front.counts, "plans": self._courses.plans,
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
        self._courses.clear(now)

    def _found(self, found: Sequence[cluster.Node], drivers: Sequence[str], now: float) -> None:
        """Nodes that the head knows: each GPU of theirs has a member, of the driver whose turn it is."""
        nodes = {node.name: replace(node, problem=node.problem or self._problem(node)) for node in found}
        for name in [name for name in self._nodes if name not in nodes]:
            self._dispatcher.node_lost(name, now)
            self._seats.forget([seat for seat in self._seats.sitting if seat[0] == name], False)
        self._nodes = nodes
        self._courses.explain(next((node.problem for node in nodes.values() if node.problem), self._courses.why))
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

    # ------------------------------------------------------------------ calls

    def _start(self, call: Call) -> None:
        seat, part = self._courses.of(call)
        sitting = self._seats.sitting.get(seat) if seat is not None else None
        if part is None or sitting is None or sitting.actor is None:
            self._post("failed", (call.number, seat, None, "its member is not there", True))
            return
        last = call.stage == len(call.route.stages) - 1
        run = sitting.actor.run.options(num_returns=1 if last else 2)
        ran = run.remote(part, len(call.job.requests), call.payload)
        actor = sitting.actor
        reference, kept = (ran, None) if last else ran
        crossing = 0.0 if last else float(self._network.cut_bytes[part[2] - 1])
        stays = crossing * len(call.job.requests) >= INLINE_SHARE * cluster.INLINE_BYTES

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
            self._courses.explain(f"the head does not answer: {about}", always=True)
        elif what == "seated":
            self._seats.seated(*about)
            self._courses.bring(about[0], now)
        elif what == "here":
            self._dispatcher.members.heard(about[0])
            if self._seats.answered(about, now):
                self._courses.bring(about, now)
        elif what == "prepared":
            seat, part, batch = about
            self._seats.prepared(seat, part, batch)
            self._dispatcher.members.heard(seat[0], False)
            self._courses.bring(seat, now)
        elif what == "lost":
            seat, actor, words = about
            self._lose(seat, actor, words, now)

    def _lose(self, seat: Seat, actor: Any, words: str, now: float) -> None:
        """A member is lost."""
        if not self._seats.lost(seat, actor, now):
            return
        _log.warning("a member on %s is not there: %s", seat[0][:8], words)
        self._courses.explain(f"a member is not there: {words}")
        self._courses.lost(seat, now)


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
