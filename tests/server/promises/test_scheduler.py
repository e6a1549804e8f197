"""Batches at their times: who is computed with whom, what becomes of late frames and of robots that misbehave."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Dict, List, Tuple

import pytest
import torch

from edge_offload.errors import BadInput, ProtocolError, Refused
from edge_offload.execute.module import Execution, ModuleExecutor
from edge_offload.execute.tensors import TensorSpec, pack_tensors
from edge_offload.link.transport.messages import Message
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.protocol.promises import ENDED, SCHEDULE, PromiseReport, PromiseRequest
from edge_offload.server.promises.board import FAILED_PLANS, PERIOD_S
from edge_offload.server.promises.latencies import Latencies
from edge_offload.server.results import ResultFeed
from edge_offload.server.services.promise.register import SILENT_S, SILENT_SLOTS, PromiseRegister, PromiseSubject
from edge_offload.server.services.promise.scheduler import PromiseScheduler
from edge_offload.server.services.replica.replicas import Replica
from edge_offload.server.services.replica.service import OpenedModel, ServerInference
from edge_offload.server.status import StatusBook

GPU = Latencies((0.0125, 0.0185, 0.0245, 0.031, 0.0375, 0.044, 0.051, 0.058))
FRAME_S = 1 / 30
INPUT = torch.arange(4.0)


class Others:
    """Best effort."""

    def __init__(self) -> None:
        self.taken: List[ServerInference] = []
        self.full = False

    def schedule_inference(self, inference: ServerInference) -> None:
        if self.full:
            raise Refused("full")
        self.taken.append(inference)

    def remove_peer(self, peer: Peer) -> None:
        self.taken = [one for one in self.taken if one.request.peer is not peer]


class Queue:
    """Of a device that does so much other work."""

    forced = 0.0

    def forced_share(self) -> float:
        return self.forced

    def nudge(self) -> None:
        pass


class Rig:
    """A scheduler on a clock of its own, whose device takes no time of ours."""

    def __init__(self) -> None:
        self.now = 100.0
        self.others = Others()
        self.failed: List[Tuple[Request, BaseException]] = []
        self.notifications: List[Tuple[Peer, str, Dict[str, Any]]] = []
        self.sizes: List[int] = []
        self.answers: List[Tuple[Peer, Message]] = []
        self.broken = False
        self.queue = Queue()
        book = StatusBook(clock=lambda: self.now)
        self.register = PromiseRegister(lambda: self.now)
        self.promises = PromiseScheduler(
            self.others, self.register, self.queue, self._fail, lambda *told: self.notifications.append(told)
        )
        module = torch.nn.Identity()
        self.opened = OpenedModel(Replica("net", {}, ModuleExecutor(module), "hash"), (TensorSpec("float32", (4,)),))
        self.subject = PromiseSubject(self.opened, self._run, GPU)
        self.feed = ResultFeed()
        self.book = book

    def _fail(self, request: Request, error: BaseException) -> None:
        self.failed.append((request, error))
        request.fail(error)

    def _run(self, frames: Any) -> List[Execution]:
        if self.broken:
            raise RuntimeError("the device is broken")
        self.sizes.append(len(frames))
        self.now += GPU.batch_latency(len(frames))
        return [Execution(tuple(frame), GPU.batch_latency(len(frames)), f"batch {len(frames)}") for frame in frames]

    def robot(self, number: int, bound: float = 0.05, session: str = "s", **more: Any) -> Robot:
        return Robot(self, number, bound, session, **more)


class Robot:
    """A camera of 30 frames per second that follows its turns; its first frame was taken at ``phase``."""

    def __init__(self, rig: Rig, number: int, bound: float, session: str, slope: float = 0.006) -> None:
        self.rig, self.phase, self.slope = rig, 99.0 + 0.004 * (number % 8), slope
        self.peer = Peer(f"robot{number}", f"key{number}", session, ready=True)
        self.sent: Dict[int, ServerInference] = {}
        self.still = False
        self.request = PromiseRequest(1, bound, FRAME_S, True, self.frame(), 0.0, slope, 0.0, 0.012, 0.006)

    def frame(self) -> int:
        return int((self.rig.now - self.phase) / FRAME_S)

    def join(self) -> None:
        arrived = self.phase + self.request.frame * FRAME_S + 0.012
        self.rig.register.admit_robot(self.peer, self.request, self.rig.subject, 8, arrived)

    def turns(self) -> List[Tuple[int, float]]:
        for peer, kind, body in reversed(self.rig.notifications):
            if peer is self.peer and kind == SCHEDULE:
                return [(frame, begin) for frame, begin in body["turns"]]
        return []

    def arrives(self, frame: int) -> float:
        return self.phase + frame * FRAME_S + 0.012

    def send(self, frame: int, turn: Any = None, late: float = 0.0) -> ServerInference:
        descriptors, buffers = pack_tensors([INPUT if self.still else INPUT + frame % 7], "raw")
        body: Dict[str, Any] = {"handle": 1, "inputs": descriptors, "codec": "raw"}
        body["turn"] = PromiseReport(frame, self.slope, 0.0, 0.012, 0.006).to_wire() if turn is None else turn
        message = Message("request", 0, frame, "infer", body, (), [memoryview(one).cast("B") for one in buffers])
        received = self.arrives(frame) + late
        request = Request(self.peer, message, received, 10, lambda *answer: self.rig.answers.append(answer))
        inference = ServerInference(request, self.rig.opened, None, 1 << 20, self.rig.book, self.rig.feed)
        self.sent[frame] = inference
        self.rig.promises.schedule_inference(inference)
        return inference


def joined(rig: Rig, count: int) -> List[Robot]:
    robots = []
    for number in range(count):
        robot = rig.robot(number)
        try:
            robot.join()
            robots.append(robot)
        except Refused:
            pass
    return robots


def drive(rig: Rig, robots: List[Robot], seconds: float, source: random.Random, lost: float = 0.0) -> None:
    """Robots send the frames of their turns when they are told; the device runs what is due."""
    end, tick = rig.now + seconds, rig.now
    while rig.now < end:
        coming: List[Tuple[float, Robot, int]] = []
        for robot in robots:
            for frame, _ in robot.turns():
                if frame not in robot.sent:
                    coming.append((max(rig.now, robot.arrives(frame)), robot, frame))
                    break
        due = rig.promises.due_s()
        arrival = min(coming, key=lambda one: one[0], default=None)
        at = min(tick, arrival[0] if arrival else end, max(rig.now, due) if due is not None else end)
        rig.now = max(rig.now, at)
        if at == tick:
            rig.promises.update_plan()
            tick = max(tick + PERIOD_S, rig.now)
        elif arrival is not None and at == arrival[0]:
            late = source.uniform(0.03, 0.3) if source.random() < lost else 0.0
            if late:
                arrival[1].sent[arrival[2]] = None  # type: ignore[assignment]
                continue
            arrival[1].send(arrival[2])
        else:
            rig.promises.run_due_work()


def test_robots_that_follow_their_turns_are_computed_together_and_promises_hold() -> None:
    rig = Rig()
    robots = joined(rig, 64)
    drive(rig, robots, 12.0, random.Random(1))
    batches, status = rig.promises.status()
    assert len(status) == len(robots) > 8
    assert batches == len(rig.sizes) > 100
    assert max(rig.sizes) > 3
    assert not rig.others.taken
    assert not rig.failed
    assert all(one.late == 0.0 and one.turns > 5 for one in status)
    assert all(one.drop <= one.bound for one in status), [one.drop for one in status]
    answered = [message for _, message in rig.answers]
    assert all(message.type == "reply" for message in answered)
    assert len(answered) == sum(rig.sizes), "one answer for each frame"
    assert rig.book.make_status(0, 0).load > 0.5


def test_a_refused_robot_gets_a_feasible_promise() -> None:
    rig = Rig()
    joined(rig, 64)
    with pytest.raises(Refused, match=r"full: .* could be promised now"):
        rig.robot(99, 0.0005).join()


def test_absent_frames_are_omitted_and_counted() -> None:
    rig = Rig()
    robots = joined(rig, 10)
    drive(rig, robots, 6.0, random.Random(2), lost=0.2)
    _, status = rig.promises.status()
    assert len(status) == 10
    assert sum(one.late > 0 for one in status) > 5
    assert not rig.failed


def test_a_frame_that_is_late_or_has_no_turn_is_computed_with_all_others() -> None:
    rig = Rig()
    (robot,) = joined(rig, 1)
    rig.promises.update_plan()
    (frame, begin), *_ = robot.turns()
    rig.now += begin + 0.1
    assert rig.promises.due_s() is not None
    assert rig.promises.due_s() < rig.now
    rig.promises.run_due_work()
    assert rig.sizes == [], "nobody was there"
    assert rig.others.taken == [robot.send(frame, late=0.1)]
    assert robot.send(frame + 1000) in rig.others.taken, "not in the plan"
    assert rig.promises.status()[1][0].late == 1.0


def test_a_robot_without_a_promise_gains_nothing_by_a_turn() -> None:
    rig = Rig()
    (robot,) = joined(rig, 1)
    rig.promises.update_plan()
    stranger = rig.robot(7)
    assert rig.others.taken == [stranger.send(robot.turns()[0][0])]
    other = rig.robot(0, session="another connection of the same robot")
    assert other.send(robot.turns()[0][0]) in rig.others.taken


def test_frames_wait_for_no_cancelled_batch() -> None:
    rig = Rig()
    robot, other = joined(rig, 2)
    rig.promises.update_plan()
    waiting = robot.send(robot.turns()[0][0])
    assert not rig.others.taken
    assert rig.promises.end_promise(robot.peer)
    assert rig.others.taken == [waiting]
    assert not rig.promises.end_promise(robot.peer)
    rig.others.full = True
    refused = other.send(other.turns()[0][0])
    assert rig.promises.end_promise(other.peer)
    assert [request for request, _ in rig.failed] == [refused.request], "it is told at once"


def test_a_disconnected_robot_has_no_request_and_no_promise() -> None:
    rig = Rig()
    robot, _ = joined(rig, 2)
    rig.promises.update_plan()
    robot.send(robot.turns()[0][0])
    rig.promises.remove_peer(robot.peer)
    assert len(rig.promises.status()[1]) == 1
    rig.now += 5
    while (due := rig.promises.due_s()) is not None and due < rig.now:
        rig.promises.run_due_work()
    assert not rig.answers
    assert not rig.others.taken


def test_a_silent_robot_loses_its_promise_and_gets_the_reason() -> None:
    rig = Rig()
    robots = joined(rig, 3)
    silent = robots.pop()
    drive(rig, robots, SILENT_S + 3.0, random.Random(3))
    assert [(peer, body["reason"][:27]) for peer, kind, body in rig.notifications if kind == ENDED] == [
        (silent.peer, "none of its frames came for")
    ]
    assert len(rig.promises.status()[1]) == 2


def test_a_robot_whose_turns_are_rare_is_not_silent_when_one_was_missed() -> None:
    rig = Rig()
    robots = joined(rig, 1)
    rig.promises.update_plan()
    for missed in range(SILENT_SLOTS):
        rig.now += SILENT_S / 2  # so far apart are its turns
        rig.promises.update_plan()
        assert len(rig.promises.status()[1]) == 1, f"{missed} missed"
        due = rig.promises.due_s()
        assert due is not None
        rig.now = max(rig.now, due)
        rig.promises.run_due_work()
    rig.promises.update_plan()
    assert [(peer, kind) for peer, kind, _ in rig.notifications if kind == ENDED] == [(robots[0].peer, ENDED)]


def test_one_promise_for_each_robot_and_a_new_connection_inherits_it() -> None:
    rig = Rig()
    (robot,) = joined(rig, 1)
    with pytest.raises(BadInput, match="has a promise already"):
        rig.robot(0, session="another program").join()
    back = rig.robot(0)  # the same session: its connection broke
    back.join()
    assert len(rig.promises.status()[1]) == 1
    assert not rig.promises.end_promise(robot.peer)
    assert rig.promises.end_promise(back.peer)


def test_promises_are_made_for_one_model_and_shape_at_a_time() -> None:
    rig = Rig()
    (robot,) = joined(rig, 1)
    other = PromiseSubject(OpenedModel(rig.opened.replica, (TensorSpec("float32", (5,)),)), rig._run, GPU)
    newcomer = rig.robot(1)
    with pytest.raises(Refused, match="promises are made for model 'net'"):
        rig.register.admit_robot(newcomer.peer, newcomer.request, other, 8, rig.now)
    with pytest.raises(Refused, match="promises are made for model 'net'"):
        rig.register.check_subject(other.opened)
    rig.promises.end_promise(robot.peer)
    rig.register.admit_robot(newcomer.peer, newcomer.request, other, 8, rig.now)
    rig.register.check_subject(other.opened)


@pytest.mark.parametrize(
    "turn", [7, {}, {"frame": 1}, {"frame": 1, "slope": float("nan")}, {"frame": 1, "slope": -1}, {"frame": 2**70}]
)
def test_invalid_turn_fields_are_refused(turn: Any) -> None:
    rig = Rig()
    (robot,) = joined(rig, 1)
    with pytest.raises(ProtocolError):
        robot.send(1, turn=turn)


def test_a_robot_that_lies_loses_only_its_promise() -> None:
    """It says that its scene has become wild: it takes most of the device then, so it is the one that goes."""
    rig = Rig()
    robots = joined(rig, 64)
    liar = robots[3]
    before = len(robots)
    liar.slope = 1.0
    drive(rig, robots, 4.0, random.Random(4))
    assert [peer for peer, kind, _ in rig.notifications if kind == ENDED] == [liar.peer]
    _, status = rig.promises.status()
    assert len(status) == before - 1
    assert all(one.drop <= one.bound for one in status)


def test_a_robot_that_lies_is_compared_with_its_results() -> None:
    """Its results are always the same: they cannot be outdated, whatever it says."""
    rig = Rig()
    robots = joined(rig, 12)
    honest, liar = robots[0], robots[3]
    liar.slope, liar.still = 0.12, True
    drive(rig, robots, 6.0, random.Random(4))
    assert not [peer for peer, kind, _ in rig.notifications if kind == ENDED]
    by_name = {one.robot: one for one in rig.promises.status()[1]}
    assert "is believed" in by_name[liar.peer.name].note
    assert by_name[honest.peer.name].note == ""
    assert by_name[liar.peer.name].interval > 0.5 * by_name[honest.peer.name].interval, "it gains little"


def test_an_emulated_device_has_no_notes_on_robots() -> None:
    rig = Rig()
    rig.subject = replace(rig.subject, judges=False)
    robots = joined(rig, 4)
    robots[3].slope, robots[3].still = 0.12, True
    drive(rig, robots, 6.0, random.Random(4))
    assert all(one.note == "" for one in rig.promises.status()[1])


def test_robots_that_understate_their_loss_are_evicted_before_honest_ones() -> None:
    room = len(joined(Rig(), 64))
    rig = Rig()
    rig.subject = replace(rig.subject, judges=False)
    robots = joined(rig, room - 8)
    late = [robot for robot in (rig.robot(100 + number, slope=1e-5) for number in range(32)) if _joined(robot)]
    assert late, "there is room for who says that it loses nothing"
    for robot in late:
        robot.slope = robots[0].slope * 0.98  # a little less than anybody else says
    drive(rig, [*robots, *late], 8.0, random.Random(4))
    evicted = {peer.name for peer, kind, _ in rig.notifications if kind == ENDED}
    assert evicted, "there is no room for all"
    assert evicted <= {robot.peer.name for robot in late}


def _joined(robot: Robot) -> bool:
    try:
        robot.join()
    except Refused:
        return False
    return True


def test_work_without_room_is_counted_in_plans() -> None:
    rig = Rig()
    robots = joined(rig, 64)
    rig.promises.update_plan()
    rig.queue.forced = 0.3
    for _ in range(FAILED_PLANS + 1):
        rig.promises.update_plan()
    evicted = [body["reason"] for _, kind, body in rig.notifications if kind == ENDED]
    assert 0 < len(evicted) < len(robots), "promises that cannot be kept beside it are taken back, and no other"
    assert all("cannot be kept beside" in why for why in evicted)


def test_jumping_frame_numbers_cost_other_robots_nothing() -> None:
    rig = Rig()
    robots = joined(rig, 12)
    source = random.Random(5)
    for _ in range(10):
        robots[0].send(source.randrange(-(2**52), 2**52))
        drive(rig, robots[1:], 0.3, source)
    _, status = rig.promises.status()
    others = [one for one in status if one.robot != robots[0].peer.name]
    assert len(others) == 11
    assert all(one.late == 0.0 and one.drop <= one.bound for one in others)


def test_a_device_that_fails_answers_everybody() -> None:
    rig = Rig()
    robots = joined(rig, 4)
    rig.broken = True
    drive(rig, robots, 1.0, random.Random(6))
    sent = sum(len(robot.sent) for robot in robots)
    waiting = sum(one is not None and not one.request.answered for robot in robots for one in robot.sent.values())
    assert sent - waiting == len(rig.failed) > 4
    assert "the device is broken" in str(rig.failed[0][1])
