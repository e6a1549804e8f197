"""Inferences of robots that have a promise are computed in the board's batches, at their times; others as before."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, List, Optional, Protocol, Sequence, Tuple, Union

import torch

from edge_offload.errors import BadInput, EdgeOffloadError, Refused
from edge_offload.execute.module import Execution
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.protocol.promises import ENDED, SETTLE_S, TURNS, Ask, Report, Turns
from edge_offload.server.promises.board import Board
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.settings import Wish
from edge_offload.server.services.promise.ages import Ages
from edge_offload.server.services.promise.evidence import Evidence
from edge_offload.server.services.replica.service import Inference, Opened, Scheduler
from edge_offload.server.status import PromiseStatus, StatusBook

#: A robot that sends nothing for so long, and none of so many turns, loses its promise.
SILENT_S, SILENT_TURNS = 3.0, 4
#: What is planned with is the slope that a robot tells and so many of its standard deviations.
SIGMAS = 0.25
#: A robot's frames that may wait for their batches.
MOST_WAITING = 8

_log = logging.getLogger(__name__)
Run = Callable[[Sequence[Sequence[torch.Tensor]]], List[Execution]]


class Notify(Protocol):
    """Tells a robot something that it did not ask for."""

    def __call__(self, peer: Peer, kind: str, body: Dict[str, object]) -> None:
        """Returns at once; nothing happens if the robot has gone."""


@dataclass
class _Promised:
    """A robot with a promise."""

    peer: Peer
    opened: Opened
    largest: int
    heard: float
    #: Turns since then whose frame did not come in time.
    missed: int = 0
    ages: Ages = field(default_factory=Ages)
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True)
class Subject:
    """What promises are made for: a model and a shape.

    Attributes:
        opened: both.
        run: computes a batch, on the device's thread.
        latencies: of its batches.
        judges: whether outputs are those of the frames, so that robots are judged by them.
    """

    opened: Opened
    run: Run
    latencies: Latencies
    judges: bool = True


class Promises:
    """Who has a promise and what is computed when. Thread-safe.

    Args:
        others: computes what has no turn, or has missed it.
        book: counts.
        fail: answers a request with an error.
        notify: tells a robot its turns.
        nudge: has the worker of the device look at the timetable.
        clock: monotonic seconds.
        forced: share of the device's time that other work takes though there was no room for it.
    """

    def __init__(
        self,
        others: Scheduler,
        book: StatusBook,
        fail: Callable[[Request, BaseException], None],
        notify: Notify,
        nudge: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        forced: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._others, self._forced = others, forced
        self._book = book
        self._fail = fail
        self._notify = notify
        self._nudge = nudge
        self._clock = clock
        self._lock = threading.RLock()
        self._subject: Optional[Subject] = None
        self._board = Board(Latencies((1.0,)))
        self._robots: Dict[str, _Promised] = {}
        self._waiting: Dict[Tuple[str, int], Inference] = {}
        self._plans = 0
        self._batches = 0

    # ------------------------------------------------------------------ who has a promise

    def check(self, opened: Opened) -> None:
        """Promises can be made for this model and shape.

        Raises:
            Refused: they are made for another one now.
        """
        with self._lock:
            now = self._subject
            if self._robots and now is not None and _what(now.opened) != _what(opened):
                raise Refused(
                    f"full: promises are made for model {now.opened.replica.name!r} at "
                    f"{', '.join(map(str, now.opened.specs))} here",
                    remedy="use the same model and shape as the other robots, or another server",
                )

    def join(self, peer: Peer, ask: Ask, subject: Subject, largest: int, received: float) -> None:
        """Make a robot a promise; its first turns are told with the next plan.

        Args:
            peer: the connection of the robot.
            ask: what it asked for.
            subject: what it is about.
            largest: batch that is exact enough for it.
            received: when its request came.

        Raises:
            BadInput: the robot has one, on another connection.
            Refused: there is no room, or promises are made for something else.
        """
        name = str(peer.key)
        with self._lock:
            found = self._robots.get(name)
            if found is not None:
                if found.peer is not peer and not found.peer.gone and found.peer.session != peer.session:
                    raise BadInput("this robot has a promise already", remedy="give it back there first")
                self._end(name)
            now = self._clock()
            if not self._robots:
                self._subject, self._board = subject, Board(subject.latencies)
            self.check(subject.opened)
            wish = _wish(ask, ask.bound, ask.frame_interval, largest)
            self._board.join(now, name, wish, ask.frame, received - ask.age)
            self._robots[name] = _Promised(peer, subject.opened, largest, now)

    def leave(self, peer: Peer) -> bool:
        """A robot gives its promise back; False: it has none on this connection."""
        with self._lock:
            found = self._robots.get(str(peer.key))
            if found is None or found.peer is not peer:
                return False
            self._end(str(peer.key))
        self._release()
        return True

    def status(self) -> Tuple[int, List[PromiseStatus]]:
        """Batches so far, and how each robot with a promise is served."""
        with self._lock:
            now, found = self._clock(), []
            for name, robot in self._robots.items():
                wish = self._board.wish(name)
                if wish is not None:
                    ages = robot.ages
                    found.append(
                        PromiseStatus(
                            robot.peer.name, robot.opened.replica.name, wish.bound,
                            ages.drop(now, self._board.latencies), ages.interval(now), ages.batch(now),
                            ages.late(now), ages.turns, robot.evidence.note,
                        )
                    )  # fmt: skip
            return self._batches, found

    def tick(self) -> None:
        """Plan anew, and tell robots their turns. Called every :data:`~.board.PERIOD_S`."""
        told: List[Tuple[Peer, str, Dict[str, object]]] = []
        with self._lock:
            now = self._clock()
            for name, robot in list(self._robots.items()):
                silent = now - robot.heard
                if silent > SILENT_S and robot.missed >= SILENT_TURNS:
                    told.append((robot.peer, ENDED, {"reason": f"none of its frames came for {silent:.1f} s"}))
                    self._end(name)
            self._board.other = self._forced()
            for name, why in self._board.replan(now):
                gone = self._robots.pop(name)
                told.append((gone.peer, ENDED, {"reason": why}))
            self._plans += 1
            for name, robot in self._robots.items():
                ahead = tuple((frame, start - now) for frame, start in self._board.turns(name))
                told.append((robot.peer, TURNS, Turns(self._plans, ahead).to_wire()))
        for peer, kind, body in told:
            self._notify(peer, kind, body)
        self._release()
        self._nudge()

    def _end(self, name: str) -> None:
        self._robots.pop(name, None)
        self._board.leave(name)

    # ------------------------------------------------------------------ what is computed when

    def submit(self, inference: Inference) -> None:
        """See :class:`~..replica.service.Scheduler`.

        Raises:
            ProtocolError: what it says of its turn cannot be.
            Refused: as :class:`~..replica.service.OneByOne`.
        """
        request = inference.request
        if "turn" in request.body and self._keep(inference, Report.parse(request.body["turn"])):
            self._nudge()
            return
        self._others.submit(inference)

    def _keep(self, inference: Inference, report: Report) -> bool:
        """Let it wait for its batch; False: it has none, or none any more."""
        name = str(inference.request.peer.key)
        with self._lock:
            robot, wish = self._robots.get(name), self._board.wish(name)
            if robot is None or wish is None or robot.peer is not inference.request.peer:
                return False
            if _what(robot.opened) != _what(inference.opened):
                return False
            robot.heard, robot.missed = self._clock(), 0
            said = _wish(report, wish.bound, wish.frame_interval, robot.largest)
            self._board.told(name, self._believed(robot, said))
            self._board.arrived(name, report.frame, robot.heard)  # from then on a batch can have it
            key = (name, report.frame)
            mine = sum(one == name for one, _ in self._waiting)
            planned = any(frame == report.frame for frame, _ in self._board.turns(name))
            if not planned or key in self._waiting or mine >= MOST_WAITING:
                return False
            self._waiting[key] = inference
            return True

    def _believed(self, robot: _Promised, said: Wish) -> Wish:
        before = robot.evidence.note
        believed = robot.evidence.believed(said)
        if robot.evidence.note and not before:
            _log.warning("robot %s %s", robot.peer.name, robot.evidence.note)
        return believed

    def drop(self, peer: Peer) -> None:
        """See :class:`~..replica.service.Scheduler`."""
        with self._lock:
            for key in [key for key, one in self._waiting.items() if one.request.peer is peer]:
                del self._waiting[key]
            found = self._robots.get(str(peer.key))
            if found is not None and found.peer is peer:
                self._end(str(peer.key))
        self._others.drop(peer)

    def due_s(self) -> Optional[float]:
        """See :class:`~edge_offload.server.worker.Timetable`: at once when all frames of the next batch have come."""
        with self._lock:
            batch = self._board.due()
            if batch is None:
                return None
            there = all((turn.robot, turn.frame) in self._waiting for turn in batch.turns)
            return 0.0 if there else batch.latest

    def run(self) -> None:
        """See :class:`~edge_offload.server.worker.Timetable`."""
        members: List[Tuple[str, int, Inference]] = []
        with self._lock:
            now, due = self._clock(), self.due_s()
            if due is None or due > now or self._subject is None:
                return
            batch = self._board.due()
            assert batch is not None
            for turn in batch.turns:
                inference = self._waiting.pop((turn.robot, turn.frame), None)
                robot = self._robots[turn.robot]
                robot.ages.turn(now, late=inference is None)
                robot.missed += inference is None
                if inference is not None:
                    members.append((turn.robot, turn.frame, inference))
            self._board.take(now, len(members))
            subject = self._subject
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
            with self._lock:
                robot, wish = self._robots.get(name), self._board.wish(name)
                captured = self._board.captured(name, frame)
                if robot is not None and wish is not None and captured is not None:
                    robot.ages.result(self._clock(), frame, captured, wish, len(taken))
                    self._board.done(name, frame, self._clock())
            try:
                inference.answer(execution, shared_by=len(taken))
            except Exception as error:  # the answer of one robot that cannot be sent costs the others nothing
                self._fail(inference.request, error)
        if subject.judges:
            self._judge((name, frame, execution) for (name, frame, _), execution in zip(taken, executions))

    def _judge(self, results: Iterable[Tuple[str, int, Execution]]) -> None:
        """What robots say of themselves is held against this."""
        for name, frame, execution in results:
            with self._lock:
                robot = self._robots.get(name)
                if robot is not None:
                    robot.evidence.result(frame, execution.outputs)

    def _release(self) -> None:
        """What waits for a batch that there is not any more is computed with all others."""
        with self._lock:
            planned = {(turn.robot, turn.frame) for batch in self._board.planned() for turn in batch.turns}
            left = [self._waiting.pop(key) for key in list(self._waiting) if key not in planned]
        for inference in left:
            try:
                self._others.submit(inference)
            except EdgeOffloadError as error:
                self._fail(inference.request, error)


def _wish(told: Union[Ask, Report], bound: float, frame_interval: float, batch: int) -> Wish:
    """What to plan with."""
    slope = told.slope + SIGMAS * told.slope_error
    return Wish(
        bound,
        slope,
        frame_interval,
        told.up,
        told.down,
        batch,
        told.usual,
        told.flicker,
        SETTLE_S / frame_interval,
        told.noise,
    )


def _what(opened: Opened) -> Tuple[object, ...]:
    return opened.replica.key, opened.specs
