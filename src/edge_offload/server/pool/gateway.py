"""The pool's driver, a process behind a front: it plans, manages the actors, and serves the front's requests.

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
from edge_offload.server.pool.dispatch import Dispatcher, StageCall
from edge_offload.server.pool.driver.courses import PlanSwitcher
from edge_offload.server.pool.driver.front import FrontSocket
from edge_offload.server.pool.seats import GONE_ERRORS, ActorPool, Seat, share_seats
from edge_offload.server.pool.settings import PoolSettings, load_network

#: Time of a call to its member: the next batch is sent so long before the last one ends (seconds).
LEAD_S = 0.005
#: Share of the SLO by which batches end early.
SLACK = 0.1
_log = logging.getLogger(__name__)


def _explain_unknown(gpu: str, classes: Mapping[str, Any]) -> str:
    return f"the profile has no class {gpu}, but {', '.join(sorted(classes))}: see 'edge-offload pool profile'"


def explain_mismatch(node: cluster.PoolNode, measured: Mapping[str, str]) -> str:
    """Explain why a member is not of the class that it joined as; empty if it is, or if it is emulated.

    Args:
        node: the member's machine.
        measured: label of the device on which each class was measured; the CPU by default.
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

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._network, self._model = load_network(settings)
        ray = cluster.connect_ray(settings.address, pathlib.Path(settings.folder))
        self._wakeup = Wakeup()
        self._events: Deque[Tuple[str, Any]] = deque()
        batches = max(table.shape[1] for shares in self._network.latency_s.values() for table in shares.values())
        name = f"{socket.gethostname()}{pathlib.Path(settings.endpoint).parent.name}"
        self._seats = ActorPool(ray, self._model, settings.threads, batches, self._post_event, name)
        self._front = FrontSocket(settings)
        self._dispatcher = Dispatcher(
            self._start_call, self._answer_batch, self._front.refuse, SLACK * settings.slo_s, LEAD_S
        )
        self._plans = PlanSwitcher(settings, self._network, self._seats, self._dispatcher)
        self._nodes: Dict[str, cluster.PoolNode] = {}
        self._drivers: List[str] = []
        self._pinged_s = -math.inf
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Serve until the front is gone."""
        poller = zmq.Poller()
        poller.register(self._front.socket, zmq.POLLIN)
        poller.register(self._wakeup.descriptor, zmq.POLLIN)
        surveyed_s, next_s = -math.inf, 0.0
        front = os.getppid()  # a killed one sends no message, and other servers' drivers need its GPUs
        survey_s = 1.0  # between surveys of members
        while not self._front.ended and os.getppid() == front and time.monotonic() - self._front.received_s <= 10.0:
            now = time.monotonic()
            if now - surveyed_s >= survey_s:
                surveyed_s = now
                self._survey_members(now)
                self._report_status()
            wait_s = max(0.0, min(next_s, surveyed_s + survey_s) - time.monotonic())
            poller.poll(math.ceil(wait_s * 1e3))
            self._wakeup.clear_wakeups()
            for request, inputs, deadline in self._front.receive():
                self._dispatcher.add_request(request, inputs, deadline)
            while self._events:
                self._handle_event(*self._events.popleft())
            now = time.monotonic()
            next_s = self._dispatcher.step(now)
            next_s = min(next_s, self._plans.update_plan(self._nodes, now))
            if self._dispatcher.members.changed:  # by another plan
                next_s = now
        self._seats.end_actors(os.getppid() == front)

    # ------------------------------------------------------------------ the front

    def _answer_batch(self, requests: Tuple[int, ...], payload: Any) -> None:
        self._front.answer(requests, payload, self._plans.emulated)

    def _report_status(self) -> None:
        status = self.make_status()
        cluster.write_status(pathlib.Path(self._settings.folder), status)
        self._front.send(Message("notify", 0, 0, "pool", status))

    def make_status(self) -> Dict[str, Any]:
        """Return nodes, plan, attainment and utilisation, for people and JSON."""
        seconds = max(time.monotonic() - self._started_s, 1e-9)
        stages: List[Dict[str, Any]] = []
        late_s = sorted(self._dispatcher.outcomes.late_s) or [0.0]
        excluded = self._dispatcher.members.excluded
        active = self._plans.active
        for pipeline, route in zip(active.plan.pipelines if active else (), active.routes if active else ()):
            for stage, table in zip(pipeline.stages, route.stages):
                present = len(table.present)
                stages.append({
                    "class": stage.gpu, "blocks": [stage.first, stage.end], "share": 1 / stage.parts,
                    "batch": stage.batch, "gpus": stage.gpus, "workers_there": present, "workers": len(table.machines),
                    "busy": float(table.busy_s / seconds / max(len(table.machines), 1)),
                })  # fmt: skip
        return {
            "address": self._settings.address, "pid": os.getpid(), "model": self._settings.model,
            "slo_s": self._settings.slo_s,
            "nodes": [
                {
                    "id": node.name[:8], "class": node.gpu, "gpus": node.gpus, "emulated": node.times,
                    "device": node.device,
                    "problem": node.problem or ("does not answer" if node.name in excluded else ""),
                }
                for node in self._nodes.values()
            ],
            "drivers": len(self._drivers), "rate": float(active.plan.objective) if active else 0.0, "stages": stages,
            "passed_over": float(active.plan.passed_over) if active else 0.0,
            "why": self._plans.reason,
            "late_s": {"mean": sum(late_s) / len(late_s), "p50": late_s[len(late_s) // 2], "max": late_s[-1]},
            "stranded": [
                {name: None if value == math.inf else value for name, value in vars(batch).items()}
                for batch in list(self._dispatcher.outcomes.stranded)[-64:]  # moved batches in a status
            ],
            "moved": self._dispatcher.outcomes.moved, "moved_in_time": self._dispatcher.outcomes.moved_in_time,
            **self._front.counts, "plans": self._plans.plans,
        }  # fmt: skip

    # ------------------------------------------------------------------ members

    def _survey_members(self, now: float) -> None:
        """Ask for members, and ping those of nodes that are excluded or doubted."""
        self._seats.survey_nodes()
        self._seats.retry_due(now)
        pings, unsure = now - self._pinged_s >= 10.0, self._dispatcher.members.unconfirmed
        if pings:
            self._pinged_s = now
        for seat in self._seats.actors:
            if pings or seat[0] in unsure:
                self._seats.ping_actor(seat)
        self._plans.remove_old(now)

    def _update_nodes(self, reported: Sequence[cluster.PoolNode], drivers: Sequence[str], now: float) -> None:
        """Update the nodes that the head lists: each of their GPUs has a member of one driver."""
        nodes = {node.name: replace(node, problem=node.problem or self._explain_problem(node)) for node in reported}
        for name in [name for name in self._nodes if name not in nodes]:
            self._dispatcher.lose_node(name, now)
            self._seats.remove_seats([seat for seat in self._seats.actors if seat[0] == name], False)
        self._nodes = nodes
        self._plans.set_reason(next((node.problem for node in nodes.values() if node.problem), self._plans.reason))
        seats = {
            (node.name, node.gpu, number, 0)
            for node in nodes.values()
            for number in range(0 if node.problem else node.gpus)
        }
        self._drivers = list(drivers)
        seats = set(share_seats(seats, self._seats.beats.name, drivers))
        self._seats.remove_seats([seat for seat in self._seats.actors if (*seat[:3], 0) not in seats], False)
        for seat in seats:
            self._seats.find_or_start(seat, now)

    def _explain_problem(self, node: cluster.PoolNode) -> str:
        classes = self._network.latency_s
        return (
            explain_mismatch(node, self._model.get("devices", {}))
            if node.gpu in classes
            else _explain_unknown(node.gpu, classes)
        )

    # ------------------------------------------------------------------ calls

    def _start_call(self, call: StageCall) -> None:
        seat, part = self._plans.member_of(call)
        sitting = self._seats.actors.get(seat) if seat is not None else None
        if part is None or sitting is None or sitting.actor is None:
            self._post_event("failed", (call.number, seat, None, "its member is not there", True))
            return
        last = call.stage == len(call.route.stages) - 1
        run = sitting.actor.run.options(num_returns=1 if last else 2)
        references = run.remote(part, len(call.job.requests), call.payload)
        actor = sitting.actor
        reference, tensors = (references, None) if last else references
        frame_bytes = 0.0 if last else float(self._network.cut_bytes[part[2] - 1])
        stays = frame_bytes * len(call.job.requests) >= 0.9 * cluster.INLINE_BYTES  # descriptions travel, too

        def post_result(future: Any) -> None:
            error = future.exception()
            if error is None:
                # the tensors go from stage to stage as a reference; only the last stage's are fetched
                self._post_event("ended", (call.number, future.result()[1] if last else tensors, stays))
            else:
                message = cluster.explain_failure(error)
                self._post_event("failed", (call.number, seat, actor, message, type(error).__name__ in GONE_ERRORS))

        reference.future().add_done_callback(post_result)

    def _post_event(self, kind: str, details: Any) -> None:
        """Queue an event for the driver's thread."""
        self._events.append((kind, details))
        self._wakeup.wake_thread()

    def _handle_event(self, kind: str, details: Any) -> None:
        now = time.monotonic()
        if kind == "ended":
            number, payload, stays = details
            self._dispatcher.end_call(number, payload, now, stays)
        elif kind == "failed":
            number, seat, actor, message, gone = details
            self._dispatcher.fail_call(number, message, gone, now)
            if gone and seat is not None:
                self._lose_member(seat, actor, message, now)
        elif kind == "nodes":
            reported, drivers = details
            self._update_nodes(reported, drivers, now)
        elif kind == "away":  # the last plan continues
            self._plans.set_reason(f"the head does not answer: {details}", always=True)
        elif kind == "seated":
            self._seats.set_actor(*details)
            self._plans.bring_member(details[0], now)
        elif kind == "here":
            self._dispatcher.members.record_answer(details[0])
            if self._seats.record_answer(details, now):
                self._plans.bring_member(details, now)
        elif kind == "prepared":
            seat, part, batch = details
            self._seats.record_prepared(seat, part, batch)
            self._dispatcher.members.record_answer(seat[0], False)
            self._plans.bring_member(seat, now)
        elif kind == "lost":
            seat, actor, message = details
            self._lose_member(seat, actor, message, now)

    def _lose_member(self, seat: Seat, actor: Any, message: str, now: float) -> None:
        """Remove a lost member, and report it."""
        if not self._seats.lose_actor(seat, actor, now):
            return
        _log.warning("a member on %s is not there: %s", seat[0][:8], message)
        self._plans.set_reason(f"a member is not there: {message}")
        self._plans.lose_member(seat, now)


def main() -> int:
    """Serve with the settings in the first argument until the front ends."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s pool: %(message)s")
    try:
        Gateway(PoolSettings.parse(sys.argv[1])).run()
    except EdgeOffloadError as error:
        _log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # Ray's own threads wait for a head that may be away
