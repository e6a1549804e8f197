"""Scheduler of promises: computes inferences of robots with a promise in planned batches, others one by one."""

from __future__ import annotations

import logging
import threading
from typing import Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.protocol.promises import ENDED, SCHEDULE, PromiseReport, SlotSchedule
from edge_offload.server.promises.board import PERIOD_S
from edge_offload.server.services.promise.register import PromiseRegister, PromiseSubject
from edge_offload.server.services.replica.service import Scheduler, ServerInference
from edge_offload.server.status import PromiseStatus
from edge_offload.server.worker import FairQueue, Job

_log = logging.getLogger(__name__)


class NotifyRobot(Protocol):
    """Sends a robot a notification."""

    def __call__(self, peer: Peer, kind: str, body: Dict[str, object]) -> None:
        """Return at once; nothing happens if the robot has disconnected."""


class PromiseScheduler(Scheduler):
    """Decides when inferences are computed while robots have promises. Thread-safe.

    Args:
        others: computes inferences without a slot, or that missed it.
        register: robots with promises.
        queue: of the device's worker; it is nudged when slots change, and measures the share of other work.
        fail, notify: answer a request with an error, send a robot its slots.
    """

    def __init__(
        self,
        others: Scheduler,
        register: PromiseRegister,
        queue: FairQueue[Job],
        fail: Callable[[Request, BaseException], None],
        notify: NotifyRobot,
    ) -> None:
        self.register = register
        self._others = others
        self._queue = queue
        self._fail = fail
        self._notify = notify
        self._waiting: Dict[Tuple[str, int], ServerInference] = {}
        self._plans = self._batches = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_plans, name="edge-offload-promises", daemon=True)

    def start(self) -> None:
        """Start planning."""
        self._thread.start()

    def close(self) -> None:
        """Plan no more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def status(self) -> Tuple[int, List[PromiseStatus]]:
        """Implement :class:`~..replica.service.Scheduler`."""
        return self._batches, self.register.list_statuses()

    def end_promise(self, peer: Peer) -> bool:
        """End the promise of a robot; False: it has none on this connection."""
        with self.register.lock:
            if self.register.promise_of(peer) is None:
                return False
            self.register.end_promise(str(peer.key))
        self._submit_unplanned()
        return True

    def update_plan(self) -> None:
        """Make a new plan, and notify robots of their slots. Called every :data:`~.board.PERIOD_S`."""
        ended, slots = self.register.update_plan(self._queue.forced_share())
        self._plans += 1
        for peer, reason in ended:
            self._notify(peer, ENDED, {"reason": reason})
        for peer, ahead in slots:
            self._notify(peer, SCHEDULE, SlotSchedule(self._plans, tuple(ahead)).to_wire())
        self._submit_unplanned()
        self._queue.nudge()

    def _run_plans(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.update_plan()
            except Exception:  # a plan that fails must not end all plans
                _log.exception("planning failed")

    def schedule_inference(self, inference: ServerInference) -> None:
        """Implement :class:`~..replica.service.Scheduler`.

        Raises:
            ProtocolError: the report on its slot is malformed.
            Refused: as :class:`~..replica.service.FairScheduler`.
        """
        request = inference.request
        if "turn" in request.body and self._hold_inference(inference, PromiseReport.parse(request.body["turn"])):
            self._queue.nudge()
            return
        self._others.schedule_inference(inference)

    def _hold_inference(self, inference: ServerInference, report: PromiseReport) -> bool:
        """Hold an inference until its batch is due; False: it has no slot, or its batch has started."""
        key = (str(inference.request.peer.key), report.frame)
        with self.register.lock:
            planned = self.register.record_arrival(inference, report)
            waiting = sum(name == key[0] for name, _ in self._waiting)
            # a robot's frames that may wait for their batches
            if not planned or key in self._waiting or waiting >= 8:
                return False
            self._waiting[key] = inference
            return True

    def remove_peer(self, peer: Peer) -> None:
        """Implement :class:`~..replica.service.Scheduler`."""
        with self.register.lock:
            for key in [key for key, inference in self._waiting.items() if inference.request.peer is peer]:
                del self._waiting[key]
            if self.register.promise_of(peer) is not None:
                self.register.end_promise(str(peer.key))
        self._others.remove_peer(peer)

    def due_s(self) -> Optional[float]:
        """Implement :class:`~..replica.service.Scheduler`: at once when the next batch is complete."""
        with self.register.lock:
            batch = self.register.board.next_batch()
            if batch is None:
                return None
            complete = all((slot.robot, slot.frame) in self._waiting for slot in batch.slots)
            return 0.0 if complete else batch.latest

    def run_due_work(self) -> None:
        """Implement :class:`~..replica.service.Scheduler`."""
        with self.register.lock:
            due, batch, subject = self.due_s(), self.register.board.next_batch(), self.register.subject
            if due is None or batch is None or due > self.register.clock() or subject is None:
                return
            inferences = [self._waiting.pop((slot.robot, slot.frame), None) for slot in batch.slots]
            self.register.start_batch(batch, [inference is not None for inference in inferences])
            pairs = zip(batch.slots, inferences)
            members = [(slot.robot, slot.frame, item) for slot, item in pairs if item is not None]
            if members:
                self._batches += 1
        self._submit_unplanned()
        self._compute_batch(subject, members)

    def _compute_batch(self, subject: PromiseSubject, members: Sequence[Tuple[str, int, ServerInference]]) -> None:
        frames, accepted = [], []
        for name, frame, inference in members:
            try:
                frames.append(inference.decode_inputs())
            except EdgeOffloadError as error:
                self._fail(inference.request, error)
            else:
                accepted.append((name, frame, inference))
        if not accepted:
            return
        try:
            executions = subject.run(frames)
        except Exception as error:
            for _, _, inference in accepted:
                self._fail(inference.request, inference.explain_failure(error))
            return
        for (name, frame, inference), execution in zip(accepted, executions):
            self.register.record_result(name, frame, len(accepted))
            try:
                inference.send_result(execution, shared_by=len(accepted))
            except Exception as error:  # the answer of one robot that cannot be sent costs the others nothing
                self._fail(inference.request, error)
        if subject.judges:
            for (name, frame, _), execution in zip(accepted, executions):
                self.register.add_evidence(name, frame, execution.outputs)

    def _submit_unplanned(self) -> None:
        """Submit inferences that wait for a batch that was removed to the other scheduler."""
        with self.register.lock:
            planned = {(slot.robot, slot.frame) for batch in self.register.board.list_batches() for slot in batch.slots}
            unplanned = [self._waiting.pop(key) for key in list(self._waiting) if key not in planned]
        for inference in unplanned:
            try:
                self._others.schedule_inference(inference)
            except EdgeOffloadError as error:
                self._fail(inference.request, error)
