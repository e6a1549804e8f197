"""Inferences of robots that have a promise are computed in the board's batches, at their times; others as before."""

from __future__ import annotations

import logging
import threading
from typing import Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.protocol.promises import ENDED, TURNS, PromiseReport, SlotSchedule
from edge_offload.server.promises.board import PERIOD_S
from edge_offload.server.services.promise.register import Register, Subject
from edge_offload.server.services.replica.service import Inference, Scheduler
from edge_offload.server.status import PromiseStatus
from edge_offload.server.worker import FairQueue, Job

#: A robot's frames that may wait for their batches.
MOST_WAITING = 8

_log = logging.getLogger(__name__)


class Notify(Protocol):
    """Sends a robot a notification."""

    def __call__(self, peer: Peer, kind: str, body: Dict[str, object]) -> None:
        """Return at once; nothing happens if the robot has disconnected."""


class Promises(Scheduler):
    """What is computed when, where robots have promises. Thread-safe.

    Args:
        others: computes what has no turn, or has missed it.
        register: who has a promise.
        queue: of the worker of the device; it is nudged when turns change, and knows what share other work takes.
        fail: answers a request with an error.
        notify: tells a robot its turns.
    """

    def __init__(
        self,
        others: Scheduler,
        register: Register,
        queue: FairQueue[Job],
        fail: Callable[[Request, BaseException], None],
        notify: Notify,
    ) -> None:
        self.register = register
        self._others = others
        self._queue = queue
        self._fail = fail
        self._notify = notify
        self._waiting: Dict[Tuple[str, int], Inference] = {}
        self._plans = self._batches = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._plan_ahead, name="edge-offload-promises", daemon=True)

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
        return self._batches, self.register.status()

    def leave(self, peer: Peer) -> bool:
        """End the promise of a robot; False: it has none on this connection."""
        with self.register.lock:
            if self.register.of(peer) is None:
                return False
            self.register.end(str(peer.key))
        self._release()
        return True

    def tick(self) -> None:
        """Make a new plan, and notify robots of their slots. Called every :data:`~.board.PERIOD_S`."""
        ended, turns = self.register.plan(self._queue.forced_share())
        self._plans += 1
        for peer, why in ended:
            self._notify(peer, ENDED, {"reason": why})
        for peer, ahead in turns:
            self._notify(peer, TURNS, SlotSchedule(self._plans, tuple(ahead)).to_wire())
        self._release()
        self._queue.nudge()

    def _plan_ahead(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self.tick()
            except Exception:  # a plan that fails must not end all plans
                _log.exception("planning failed")

    def submit(self, inference: Inference) -> None:
        """Implement :class:`~..replica.service.Scheduler`.

        Raises:
            ProtocolError: what it says of its turn cannot be.
            Refused: as :class:`~..replica.service.OneByOne`.
        """
        request = inference.request
        if "turn" in request.body and self._keep(inference, PromiseReport.parse(request.body["turn"])):
            self._queue.nudge()
            return
        self._others.submit(inference)

    def _keep(self, inference: Inference, report: PromiseReport) -> bool:
        """Let it wait for its batch; False: it has none, or none any more."""
        key = (str(inference.request.peer.key), report.frame)
        with self.register.lock:
            planned = self.register.came(inference, report)
            mine = sum(name == key[0] for name, _ in self._waiting)
            if not planned or key in self._waiting or mine >= MOST_WAITING:
                return False
            self._waiting[key] = inference
            return True

    def drop(self, peer: Peer) -> None:
        """Implement :class:`~..replica.service.Scheduler`."""
        with self.register.lock:
            for key in [key for key, one in self._waiting.items() if one.request.peer is peer]:
                del self._waiting[key]
            if self.register.of(peer) is not None:
                self.register.end(str(peer.key))
        self._others.drop(peer)

    def due_s(self) -> Optional[float]:
        """Implement :class:`~..replica.service.Scheduler`: at once when the next batch is complete."""
        with self.register.lock:
            batch = self.register.board.next_batch()
            if batch is None:
                return None
            there = all((turn.robot, turn.frame) in self._waiting for turn in batch.slots)
            return 0.0 if there else batch.latest

    def run(self) -> None:
        """Implement :class:`~..replica.service.Scheduler`."""
        with self.register.lock:
            due, batch, subject = self.due_s(), self.register.board.next_batch(), self.register.subject
            if due is None or batch is None or due > self.register.clock() or subject is None:
                return
            found = [self._waiting.pop((turn.robot, turn.frame), None) for turn in batch.slots]
            self.register.begin(batch, [inference is not None for inference in found])
            members = [(turn.robot, turn.frame, one) for turn, one in zip(batch.slots, found) if one is not None]
            if members:
                self._batches += 1
        self._release()
        self._compute(subject, members)

    def _compute(self, subject: Subject, members: Sequence[Tuple[str, int, Inference]]) -> None:
        frames, taken = [], []
        for name, frame, inference in members:
            try:
                frames.append(inference.take())
            except EdgeOffloadError as error:
                self._fail(inference.request, error)
            else:
                taken.append((name, frame, inference))
        if not taken:
            return
        try:
            executions = subject.run(frames)
        except Exception as error:
            for _, _, inference in taken:
                self._fail(inference.request, inference.failed(error))
            return
        for (name, frame, inference), execution in zip(taken, executions):
            self.register.computed(name, frame, len(taken))
            try:
                inference.answer(execution, shared_by=len(taken))
            except Exception as error:  # the answer of one robot that cannot be sent costs the others nothing
                self._fail(inference.request, error)
        if subject.judges:
            for (name, frame, _), execution in zip(taken, executions):
                self.register.judge(name, frame, execution.outputs)

    def _release(self) -> None:
        """Submit inferences that wait for a batch that was removed to the other scheduler."""
        with self.register.lock:
            planned = {(turn.robot, turn.frame) for batch in self.register.board.list_batches() for turn in batch.slots}
            left = [self._waiting.pop(key) for key in list(self._waiting) if key not in planned]
        for inference in left:
            try:
                self._others.submit(inference)
            except EdgeOffloadError as error:
                self._fail(inference.request, error)
