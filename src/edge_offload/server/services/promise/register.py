"""Register of robots with a promise of accuracy: what was promised, and how each of them is served."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from edge_offload.errors import BadInput, Refused
from edge_offload.execute.module import Execution
from edge_offload.link.transport.peers import Peer
from edge_offload.protocol.promises import SETTLE_S, PromiseReport, PromiseRequest
from edge_offload.server.promises.board import Board, PlannedBatch
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.promises.settings import Wish
from edge_offload.server.services.promise.ages import AgeStatistics
from edge_offload.server.services.promise.evidence import LossEvidence
from edge_offload.server.services.replica.service import OpenedModel, ServerInference
from edge_offload.server.status import PromiseStatus

#: A robot loses its promise after so many seconds without a frame, if so many of its slots passed meanwhile.
SILENT_S, SILENT_SLOTS = 3.0, 4
#: Plans use the slope that a robot reports plus so many of its standard deviations.
SIGMAS = 0.25

_log = logging.getLogger(__name__)
RunBatch = Callable[[Sequence[Sequence[torch.Tensor]]], List[Execution]]


@dataclass
class PromisedRobot:
    """A robot with a promise.

    Attributes:
        peer: its connection.
        opened: the model and shape that it was made for.
        largest: batch that is exact enough for it.
        received_at: when a frame of it came last.
        missed: slots since then whose frame did not come in time.
        ages, evidence: how it was served, and which losses its results confirm.
    """

    peer: Peer
    opened: OpenedModel
    largest: int
    received_at: float
    missed: int = 0
    ages: AgeStatistics = field(default_factory=AgeStatistics)
    evidence: LossEvidence = field(default_factory=LossEvidence)

    def limit_report(self, report: PromiseReport, promised: Wish) -> Wish:
        """Return the declaration to plan with after a report."""
        before = self.evidence.note
        wish = _make_wish(report, promised.bound, promised.frame_interval, self.largest)
        limited = self.evidence.limit_wish(wish)
        if self.evidence.note and not before:
            _log.warning("robot %s %s", self.peer.name, self.evidence.note)
        return limited


@dataclass(frozen=True)
class PromiseSubject:
    """Model and input shape that promises are made for.

    Attributes:
        opened: both.
        run: computes a batch, on the device's thread.
        latencies: of its batches.
        judges: whether outputs are those of the frames, so that robots are judged by them.
    """

    opened: OpenedModel
    run: RunBatch
    latencies: Latencies
    judges: bool = True


class PromiseRegister:
    """The robots with a promise and the board that has their slots. Thread-safe.

    Args:
        clock: monotonic seconds.

    Attributes:
        lock: held while anything changes; so does who looks at several things.
        board: plans slots.
        subject: what promises are made for; None before the first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.board = Board(Latencies((1.0,)))
        self.subject: Optional[PromiseSubject] = None
        self._robots: Dict[str, PromisedRobot] = {}

    def promise_of(self, peer: Peer) -> Optional[PromisedRobot]:
        """Return the promise of the robot at this connection; None: it has none, or on another one."""
        entry = self._robots.get(str(peer.key))
        return entry if entry is not None and entry.peer is peer else None

    def check_subject(self, opened: OpenedModel) -> None:
        """Promises can be made for this model and shape.

        Raises:
            Refused: they are made for another one now.
        """
        with self.lock:
            current = self.subject
            if self._robots and current is not None and _subject_key(current.opened) != _subject_key(opened):
                raise Refused(
                    f"full: promises are made for model {current.opened.replica.name!r} at "
                    f"{', '.join(map(str, current.opened.specs))} here",
                    remedy="use the same model and shape as the other robots, or another server",
                )

    def admit_robot(
        self, peer: Peer, ask: PromiseRequest, subject: PromiseSubject, largest: int, received: float
    ) -> None:
        """Make a robot a promise; it gets its first slots with the next plan.

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
        with self.lock:
            entry = self._robots.get(name)
            if entry is not None:
                if entry.peer is not peer and not entry.peer.disconnected and entry.peer.session != peer.session:
                    raise BadInput("this robot has a promise already", remedy="give it back there first")
                self.end_promise(name)
            now = self.clock()
            if not self._robots:
                self.subject, self.board = subject, Board(subject.latencies)
            self.check_subject(subject.opened)
            wish = _make_wish(ask, ask.bound, ask.frame_interval, largest)
            self.board.admit_robot(now, name, wish, ask.frame, received - ask.age)
            self._robots[name] = PromisedRobot(peer, subject.opened, largest, now)

    def end_promise(self, name: str) -> None:
        """End the promise of a robot, if it has one."""
        with self.lock:
            self._robots.pop(name, None)
            self.board.remove_robot(name)

    def list_statuses(self) -> List[PromiseStatus]:
        """Return the service of each robot with a promise."""
        with self.lock:
            now, statuses = self.clock(), []
            for name, robot in self._robots.items():
                wish = self.board.wish_of(name)
                if wish is not None:
                    ages = robot.ages
                    statuses.append(
                        PromiseStatus(
                            robot.peer.name, robot.opened.replica.name, wish.bound,
                            ages.mean_drop(now, self.board.latencies), ages.mean_interval(now), ages.mean_batch(now),
                            ages.late_share(now), ages.slots, robot.evidence.note,
                        )
                    )  # fmt: skip
            return statuses

    def update_plan(
        self, other_share: float
    ) -> Tuple[List[Tuple[Peer, str]], List[Tuple[Peer, List[Tuple[int, float]]]]]:
        """Plan anew, with a share ``other_share`` of the device's time for other work.

        Returns:
            Those whose promise has ended, and why; and of all others (frame, seconds until its slot).
        """
        with self.lock:
            now, ended = self.clock(), []
            for name, robot in list(self._robots.items()):
                silence_s = now - robot.received_at
                if silence_s > SILENT_S and robot.missed >= SILENT_SLOTS:
                    ended.append((robot.peer, f"none of its frames came for {silence_s:.1f} s"))
                    self.end_promise(name)
            self.board.other_share = other_share
            ended += [(self._robots.pop(name).peer, reason) for name, reason in self.board.update_plan(now)]
            return ended, [
                (robot.peer, [(frame, start - now) for frame, start in self.board.slots_of(name)])
                for name, robot in self._robots.items()
            ]

    def record_arrival(self, inference: ServerInference, report: PromiseReport) -> bool:
        """Record a frame with its robot's report; return True if it has a slot."""
        name = str(inference.request.peer.key)
        with self.lock:
            robot, wish = self.promise_of(inference.request.peer), self.board.wish_of(name)
            if robot is None or wish is None or _subject_key(robot.opened) != _subject_key(inference.opened):
                return False
            robot.received_at, robot.missed = self.clock(), 0
            self.board.update_wish(name, robot.limit_report(report, wish))
            self.board.record_arrival(name, report.frame, robot.received_at)  # from then on a batch can have it
            return any(frame == report.frame for frame, _ in self.board.slots_of(name))

    def start_batch(self, batch: PlannedBatch, present: Sequence[bool]) -> None:
        """Start a batch without its absent members."""
        with self.lock:
            now = self.clock()
            for slot, arrived in zip(batch.slots, present):
                robot = self._robots[slot.robot]
                robot.ages.record_slot(now, late=not arrived)
                robot.missed += not arrived
            self.board.start_next_batch(now, sum(present))

    def record_result(self, name: str, frame: int, batch: int) -> None:
        """Record that the result of a frame is sent now, computed in a batch of this size."""
        with self.lock:
            robot, wish = self._robots.get(name), self.board.wish_of(name)
            captured = self.board.capture_time(name, frame)
            if robot is not None and wish is not None and captured is not None:
                robot.ages.record_result(self.clock(), frame, captured, wish, batch)
                self.board.record_result(name, frame, self.clock())

    def add_evidence(self, name: str, frame: int, outputs: Sequence[torch.Tensor]) -> None:
        """Record a result as evidence for its robot's declarations."""
        with self.lock:
            robot = self._robots.get(name)
            if robot is not None:
                robot.evidence.add_result(frame, outputs)


def _make_wish(report: Union[PromiseRequest, PromiseReport], bound: float, frame_interval: float, batch: int) -> Wish:
    """Return the declaration to plan with."""
    slope = report.slope + SIGMAS * report.slope_error
    return Wish(
        bound,
        slope,
        frame_interval,
        report.up,
        report.down,
        batch,
        report.usual,
        report.flicker,
        SETTLE_S / frame_interval,
        report.noise,
    )


def _subject_key(opened: OpenedModel) -> Tuple[object, ...]:
    return opened.replica.key, opened.specs
