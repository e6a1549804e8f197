"""A network of the chaos robot: frames are taken up, a policy chooses the mode, each result is one line of JSON.

Where results are carried along every frame leaves at once; where there are several networks they take turns.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from edge_offload.execute.threads import pin
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.link.transport.client import Client
from edge_offload.manager.drop import Habits
from edge_offload.manager.policy import Decision, FixedPolicy, LatencyPolicy, Manager, Situation, chooses
from edge_offload.manager.promise import PromisePolicy
from edge_offload.manager.tuning import FRAMES, WAITING
from edge_offload.manager.turn_taker import Claim
from edge_offload.mode import Mode
from edge_offload.modes.server import CAPTURED
from edge_offload.nodes.inference.latest_frame_queue import FramePipeline, LatestFrameQueue
from edge_offload.runtime.carrying import NONE, Along, Carrying, Events, FrameLoop
from edge_offload.runtime.module import OffloadedModule
from edge_offload.runtime.promise import Promise
from edge_offload.timing import InferenceReport
from edge_offload_benchmarks.chaos.turns import Turns

#: Largest difference of a result of ``split``, as a share of the largest value.
TOLERANCE = 1e-5
#: What results of a robot that asks for a promise lose with age: its pictures stand still, so that it would learn that
#: nothing is lost.
LOSES = Habits(0.0, 1e-6, 0.5, 1e-6, alike=1e12, mean_gain=0.0)
#: Planning a split takes the time of a busy machine.
READY_S = 120.0
#: Frames before the first one that counts: what is done once is done in them.
WARM = 20


class Shot(NamedTuple):
    """A frame: its number, and when it was captured (monotonic seconds)."""

    number: int
    at_s: float


@dataclass(frozen=True)
class Ways:
    """Settings of how a network's frames are worked on.

    Attributes:
        fps: of its camera.
        remote: mode of the frames that go to the server.
        slowdown: of what the robot computes.
        managers: how many ask for modes, frame by frame; above 1 they want different ones.
        in_flight: frames under way at once.
        carry: every frame leaves at once, with the newest result there is.
        accuracy: bound of the promise that is asked for; None: none is.
    """

    fps: float
    remote: Mode
    slowdown: float
    managers: int = 1
    in_flight: int = 1
    carry: bool = False
    accuracy: Optional[float] = None


_saying = threading.Lock()


def write_record(**record: Any) -> None:
    """One line."""
    line = json.dumps(record)
    with _saying:
        print(line, flush=True)


class StaticCarrier:
    """Carries results as they are: the pictures of a chaos run stand still."""

    degraded = ""

    def carry(self, result: Any, source: int, target: int) -> Any:
        """See :class:`~edge_offload.perception.carry.carrier.Carrier`."""
        return result

    def steps(self, result: Any, source: int, target: int) -> Iterator[None]:
        """Yield no step: nothing is to be computed."""
        return iter(())


class Carried:
    """Every frame leaves at once with the newest result there is, as in a node with ``carry``.

    Args:
        queue: of the frames for the network.
        period_s: between frames.
        right: whether the outputs are those of the frame.
    """

    def __init__(self, queue: LatestFrameQueue[Shot], period_s: float, right: Callable[[Any, int], bool]) -> None:
        self._queue, self._period_ns, self._right = queue, round(period_s * 1e9), right
        self.frames: LatestFrameQueue[Shot] = LatestFrameQueue(capacity=WAITING)
        self.departed: List[Dict[str, Any]] = []
        self.failed: List[str] = []
        self.loop: FrameLoop[Shot, Any] = FrameLoop(Carrying(StaticCarrier(), lambda *_: 0.0), self._record_departure)
        self.events = Events(lambda: self.loop.due_s, self.loop.flush, lambda error: self.failed.append(repr(error)))

    def offer_frame(self, shot: Shot) -> bool:
        """A frame comes."""
        taken = self.frames.offer_frame(shot)
        self.events.post(self._take, first=True)
        return taken

    def _take(self) -> None:
        shot = self.frames.take_next_frame(0.0)
        if shot is None:
            return
        self._queue.offer_frame(shot)
        self.loop.arrived(shot, self._stamp_of(shot), shot.at_s)

    def add_result(self, shot: Shot, outputs: Any, taken_s: float) -> None:
        """The network's result for a frame that it took at ``taken_s``."""
        self.events.post(lambda: self.loop.add_result(outputs, self._stamp_of(shot), taken_s))

    def _stamp_of(self, shot: Shot) -> int:
        return (shot.number + 1) * self._period_ns

    def _record_departure(self, shot: Shot, along: Along[Any]) -> None:
        seen = along.source // self._period_ns - 1
        self.departed.append(
            {
                "frame": shot.number,
                "origin": along.origin,
                "at_s": shot.at_s,
                "late_s": time.monotonic() - shot.at_s,
                "equal": along.origin == NONE or (seen <= shot.number and self._right(along.result, seen)),
            }
        )


class _Decided(NamedTuple):
    """A frame that was prepared: where it is to run, and what that was decided by."""

    ticket: int
    picture: torch.Tensor
    taken_s: float
    situation: Situation
    decision: Decision
    mode: Mode
    refresh: bool
    claim: Optional[Claim]
    meta: Dict[str, Any]
    reading: LinkReading


class _Ran(NamedTuple):
    """Results of a frame, and from when to when they were waited for."""

    outputs: Tuple[torch.Tensor, ...]
    report: InferenceReport
    started_s: float
    ended_s: float


class Network:
    """One network, from a camera's frames to lines of results.

    Args:
        task: its name; empty where there is only one.
        name, module: the network.
        pictures: what its frames show in turn.
        client: its own; :meth:`link_changed` and :meth:`notified` are told what it hears.
        ways: of working on frames.
        turns: at the server, which it shares with the other networks; None: it is the only one.
    """

    def __init__(
        self,
        task: str,
        name: str,
        module: torch.nn.Module,
        pictures: Sequence[torch.Tensor],
        client: Client,
        ways: Ways,
        turns: Optional[Turns] = None,
    ) -> None:
        self.task, self._pictures, self.client, self._ways, self._turns = task, pictures, client, ways, turns
        self.offloaded = OffloadedModule(
            name,
            module,
            client,
            robot_slowdown=ways.slowdown,
            example=[pictures[0]] if ways.remote is Mode.SERVER else None,
            candidates=(Mode.LOCAL, ways.remote),
            in_flight=ways.in_flight,
        )
        self._expected: List[Tuple[torch.Tensor, ...]] = []
        self._requested_mode, self._results, self._local_frames = ways.remote, 0, 0
        self.failed: List[str] = []
        self._managers = [Manager(LatencyPolicy())]
        if ways.managers > 1:
            self._managers += [
                Manager(FixedPolicy(Mode.LOCAL, "another manager")),
                Manager(FixedPolicy(ways.remote, "a third")),
            ]
        self._queue: LatestFrameQueue[Shot] = LatestFrameQueue(admit_frame=self._wants_frame)
        self._carried = Carried(self._queue, 1 / ways.fps, self._check_carried) if ways.carry else None
        self._promise: Optional[Promise] = None
        self._pipeline: FramePipeline[Shot] = FramePipeline(
            self._queue,
            self,
            self.offloaded.frames,
            self._wait_s,
            ways.in_flight,
            "frames",
            lambda: pin(threads=1),
        )

    def link_changed(self, *state: Any) -> None:
        """The client's state has changed."""
        self.offloaded.link_changed(*state)
        if self._promise is not None:
            self._promise.link_changed(*state)

    def notified(self, *told: Any) -> None:
        """The server says something that was not asked for."""
        if self._promise is not None:
            self._promise.notified(*told)

    def measure_local(self) -> List[float]:
        """Learn what is right, and run everything once; seconds that local computations take."""
        local_s: List[float] = []
        for turn in range(3):
            self._expected = []
            for picture in self._pictures:
                outputs, report = self.offloaded.run_inference([picture], Mode.LOCAL)
                self._expected.append(outputs)
                if turn:  # the first ones choose kernels and take memory
                    local_s.append(report.total_s)
        ends, remote = time.monotonic() + READY_S, self._ways.remote
        while self.offloaded.unavailable_reason(remote, [self._pictures[0]]) is not None and time.monotonic() < ends:
            time.sleep(0.02)
        for turn in range(WARM):
            self.offloaded.run_inference([self._pictures[turn % len(self._pictures)]], remote)
        return local_s

    def start(self) -> None:
        """Take frames up from now on."""
        if self._ways.accuracy is not None:
            assert self._carried is not None, "a promise is of results that are carried along"
            self._promise = self.offloaded.follow(PromisePolicy(self._ways.accuracy, habits=LOSES))
        if self._turns is not None:
            self._turns.wake[self.task] = self._queue.wake_takers
        self._pipeline.start()
        if self._carried is not None:
            self._carried.events.start()

    def offer_frame(self, shot: Shot) -> bool:
        """A frame comes."""
        return (self._carried or self._queue).offer_frame(shot)

    def _wants_frame(self, shot: Shot) -> bool:
        return self._promise is None or self._promise.wants_frame(shot.at_s)

    def _wait_s(self, taken_s: List[float]) -> float:
        if self._turns is not None and self._requested_mode is not Mode.LOCAL:
            # a turn is one frame's
            return float("inf") if taken_s else self._turns.wait_s(self.task)
        return self.offloaded.frames.frame_wait_s(time.monotonic(), self._requested_mode, taken_s)

    def prepare_frame(self, shot: Shot, ticket: int) -> _Decided:
        """Implement :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        picture, number = self._pictures[shot.number % len(self._pictures)], shot.number
        taken = time.monotonic()
        situation = self.offloaded.situation([picture])
        decision = self._managers[number % len(self._managers)].decide(situation)
        meta: Dict[str, Any] = {}
        if self._promise is not None:
            meta[CAPTURED] = shot.at_s
            if not self._promise.fallback_reason:
                decision = self._promise.policy.decide(situation)
        self._requested_mode, mode, refresh, claim = decision.mode, decision.mode, chooses(decision.policy), None
        forecast, reading = situation.forecasts.get(decision.mode), self.offloaded.reading(taken)
        if self._turns is not None:
            # one that stays on the robot has a turn now and then to see how the server is
            self._local_frames = self._local_frames + 1 if mode is Mode.LOCAL else 0
            if mode is not Mode.LOCAL or (refresh and self._local_frames > FRAMES):
                latency_s = forecast.latency_s if forecast is not None and forecast.measured else float("nan")
                self._turns.report_latency(self.task, latency_s, 1 / self._ways.fps)
                claim = self._turns.begin_turn(self.task)
            else:
                self._turns.leave_turns(self.task)
            if claim is not None and mode is Mode.LOCAL:
                self._local_frames = 0
                self.offloaded.explorer.allow()
            if claim is None:
                # nothing goes to the server without a turn, not even to see how it is
                mode, refresh = Mode.LOCAL, False
        return _Decided(ticket, picture, taken, situation, decision, mode, refresh, claim, meta, reading)

    def infer_frame(self, shot: Shot, decided: _Decided) -> _Ran:
        """Run a decided frame; see :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        started_s, picture, mode = time.monotonic(), [decided.picture], decided.mode
        try:
            outputs, report = self.offloaded.run_inference(
                picture, mode, None, decided.meta, refresh=decided.refresh, ticket=decided.ticket
            )  # fmt: skip
        finally:
            ended = time.monotonic()
            if self._turns is not None and decided.claim is not None:
                self._turns.end_turn(self.task, decided.claim, shot.at_s)
        return _Ran(outputs, report, started_s, ended)

    def finish_frame(self, shot: Shot, decided: _Decided, ran: _Ran) -> None:
        """Record a frame's result; see :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        decision, claim, taken, reading = decided.decision, decided.claim, decided.taken_s, decided.reading
        situation, forecast = decided.situation, decided.situation.forecasts.get(decision.mode)
        number, outputs, report, started_s = shot.number, ran.outputs, ran.report, ran.started_s
        # results leave in their order: the wait for that is part of the frame's time
        total_s = max(report.total_s, time.monotonic() - started_s)
        self.offloaded.frames.learn_costs(report)
        if self._carried is not None:
            self._carried.add_result(shot, outputs, taken)
        write_record(
            frame=number,
            task=self.task,
            turn=None if claim is None else [claim.number, started_s, ran.ended_s],
            t=taken,
            total_s=total_s,
            mode=report.mode.value,
            asked=decision.mode.value,
            why=decision.reason,
            hedged=report.hedged,
            round_trips=report.round_trips,
            way_s=[report.stages_s["uplink"], report.stages_s["downlink"]],
            behind_s=report.behind_s,
            equal=self._is_right(outputs, number, report.mode is not Mode.SPLIT),
            compute_s=report.stages_s["compute_robot"],
            reason=report.fallback_reason,
            forecast_s=forecast.latency_s if forecast is not None and forecast.measured else None,
            forecast_error_s=forecast.error_s if forecast is not None and forecast.measured else None,
            worst_s=max((other.latency_s for other in situation.forecasts.values() if other.measured), default=None),
            uplink=reading.uplink,
            downlink=reading.downlink,
            scheduling_s=self.client.scheduling_s,
        )
        self._results += 1

    def fail_frame(self, shot: Shot, error: BaseException) -> None:
        """Record an error; see :class:`~edge_offload.nodes.inference.latest_frame_queue.FrameStages`."""
        self.failed.append(f"frame {shot.number}: {error!r}")

    def _check_carried(self, outputs: Any, number: int) -> bool:
        return self._is_right(outputs, number, self._ways.remote is not Mode.SPLIT)

    def _is_right(self, outputs: Any, number: int, exact: bool) -> bool:
        expected = self._expected[number % len(self._pictures)]
        if len(outputs) != len(expected):
            return False
        if exact:
            return all(torch.equal(one, other) for one, other in zip(outputs, expected))
        return all(
            bool((one - other).abs().max() <= TOLERANCE * other.abs().max()) for one, other in zip(outputs, expected)
        )

    def end(self) -> Tuple[bool, Dict[str, Any]]:
        """Finish what waits, and say what left; whether that was done in time, and what became of the frames."""
        drained, queue_counts = self._pipeline.drain(READY_S), self._queue.counts
        counts: Dict[str, Any] = {
            "published": queue_counts.offered,
            "taken": queue_counts.taken,
            "superseded": queue_counts.superseded,
            "results": self._results,
        }
        if self._carried is not None:
            drained = self._carried.events.drain(READY_S) and drained
            carried_counts = self._carried.frames.counts
            write_record(
                carried=self._carried.departed,
                task=self.task,
                offered=carried_counts.offered,
                taken=carried_counts.taken,
                superseded=carried_counts.superseded,
            )
            self.failed += self._carried.failed
        return drained, counts

    @property
    def followed(self) -> int:
        """Turns of the server's that were followed."""
        return 0 if self._promise is None else self._promise.policy.followed


class Camera:
    """Gives a network frames at a fixed rate.

    Args:
        fps: frames per second.
        put: takes one.
    """

    def __init__(self, fps: float, put: Callable[[Shot], Any]) -> None:
        self._period_s, self._put = 1 / fps, put
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No more frames; what waits is still taken."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due, number = time.monotonic(), 0
        while not self._stop.is_set():
            self._put(Shot(number, time.monotonic()))
            number += 1
            # frames that a suspended robot did not take are not taken later
            due = max(due + self._period_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
