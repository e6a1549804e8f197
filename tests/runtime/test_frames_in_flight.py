"""Calls of a module that are under way at once: which of them overlap, and what counts as late."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future

import pytest
import torch
from torch import nn

from edge_offload.link.estimate.estimator import LinkReading, Transfer
from edge_offload.link.transport.replies import Reply
from edge_offload.manager.policy import LatencyPolicy
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt, Runner
from edge_offload.modes.server import _EarlierRequests
from edge_offload.runtime.module import OffloadedModule
from edge_offload.timing import InferenceReport

FOREVER_S, NEVER = 30.0, math.inf


class Twice(nn.Module):
    def forward(self, x):
        return x * 2


class Remote(Runner):
    """A mode that answers each of its inputs (by their first number) when it is let."""

    def __init__(self, mode):
        self.mode = mode
        self.begun = [threading.Event() for _ in range(4)]
        self.answer = [threading.Event() for _ in range(4)]
        self.order, self.ahead, self.sent_ahead = [], [], threading.Event()

    def send_ahead(self, inputs):
        self.ahead.append(int(inputs[0][0]))
        self.sent_ahead.set()

    def unavailable_reason(self, inputs):
        return None

    def attempt_inference(self, inputs, meta, budget):
        number = int(inputs[0][0])
        self.order.append(number)
        self.begun[number].set()
        assert self.answer[number].wait(FOREVER_S)
        return Attempt((inputs[0] * 2,), {"compute_server": 0.001, "queue": 0.5}, 100, 100, 1, behind_s={"queue": 0.5},
                       part_s=0.25)  # fmt: skip

    def state(self):
        return ""


@pytest.fixture
def calls():
    """A module, its remote mode, and calls on threads of their own."""
    made = []

    def make(mode):
        module = OffloadedModule("twice", Twice(), in_flight=2)
        remote = Remote(mode)
        module.add_runner(remote)
        results, threads = {}, []

        def call(number, ticket):
            results[number] = module.run_inference([torch.full((1,), float(number))], mode, ticket=ticket)

        def start(number, ticket):
            threads.append(threading.Thread(target=call, args=(number, ticket)))
            threads[-1].start()

        made.append((module, threads))
        return module, remote, results, threads, start

    yield make
    for module, threads in made:
        for thread in threads:
            thread.join(FOREVER_S)
        module.close()


def set_limits(monkeypatch, module, limits_s):
    """Give each frame what it usually takes, how much more that may be, and when it is due."""
    usual = module._lateness.limit_frame

    def frame(*facts):
        late = usual(*facts)
        late._usual_s, late._slack_s, late._due_s = limits_s.pop(0)
        return late

    monkeypatch.setattr(module._lateness, "limit_frame", frame)


def end(remote, threads):
    for answer in remote.answer:
        answer.set()
    for thread in threads:
        thread.join(FOREVER_S)


def test_in_mode_server_the_second_frame_is_sent_while_the_first_is_computed(calls):
    module, remote, results, threads, start = calls(Mode.SERVER)
    first, second = module.frames.take_ticket(), module.frames.take_ticket()
    start(0, first)
    assert remote.begun[0].wait(FOREVER_S)
    start(1, second)
    assert remote.begun[1].wait(FOREVER_S), "it does not wait for the first one"
    remote.answer[1].set()
    threads[1].join(FOREVER_S)
    end(remote, threads)
    assert [int(results[number][0][0]) for number in range(2)] == [0, 2]
    assert remote.ahead == [], "its request goes at once"


@pytest.mark.parametrize("mode", [Mode.REPLAY, Mode.SPLIT])
def test_other_modes_preserve_the_order_of_their_inferences(calls, mode):
    module, remote, results, threads, start = calls(mode)
    first, second = module.frames.take_ticket(), module.frames.take_ticket()
    start(1, second)
    start(0, first)
    assert remote.begun[0].wait(FOREVER_S)
    assert not remote.begun[1].is_set()
    assert remote.sent_ahead.wait(FOREVER_S)
    end(remote, threads)
    assert remote.order == [0, 1]
    assert remote.ahead == [1], "the inputs of the one that waits, and of no other"
    report = results[1][1]
    assert report.behind_s >= 0.5, "what it waited for the first one, and what its own attempt did"
    assert report.part_s == 0.25
    assert report.stages_s["queue"] >= 0.5
    assert sorted(results) == [0, 1]


def test_a_wait_behind_earlier_frames_is_not_learned_as_time_of_the_mode(calls):
    module, remote, results, threads, start = calls(Mode.SERVER)
    start(0, None)
    end(remote, threads)
    forecast = module.situation([torch.zeros(1)]).forecasts[Mode.SERVER]
    assert forecast.measured
    assert forecast.latency_s < max(0.4, results[0][1].total_s), (
        "half a second in the queue was behind the robot's own frame"
    )


def test_behind_an_earlier_frame_nothing_is_late_that_otherwise_would_be(calls, monkeypatch):
    module, remote, results, threads, start = calls(Mode.SERVER)
    set_limits(monkeypatch, module, [(NEVER, NEVER, NEVER), (0.0, 0.0, NEVER), (0.0, 0.0, NEVER)])
    start(0, module.frames.take_ticket())
    assert remote.begun[0].wait(FOREVER_S)
    start(1, module.frames.take_ticket())
    assert remote.begun[1].wait(FOREVER_S)
    remote.answer[1].set()
    threads[1].join(FOREVER_S)
    assert not results[1][1].hedged, "it is late from its begin on, but for the frame before it"
    assert not results[1][1].fallback_reason
    remote.answer[0].set()
    threads[0].join(FOREVER_S)
    start(2, module.frames.take_ticket())
    threads[2].join(FOREVER_S)
    assert results[2][1].hedged
    assert results[2][1].mode is Mode.LOCAL
    end(remote, threads)


def test_a_deadline_holds_behind_an_earlier_frame_too(calls, monkeypatch):
    module, remote, results, threads, start = calls(Mode.SERVER)
    set_limits(monkeypatch, module, [(NEVER, NEVER, NEVER), (9.0, 9.0, 0.0)])
    start(0, module.frames.take_ticket())
    assert remote.begun[0].wait(FOREVER_S)
    start(1, module.frames.take_ticket())
    threads[1].join(FOREVER_S)
    assert results[1][1].mode is Mode.LOCAL
    end(remote, threads)
    assert sorted(results) == [0, 1]


def test_the_former_name_of_run_inference_warns_and_takes_a_place(calls):
    module, _, _, _, _ = calls(Mode.SERVER)
    ticket = module.frames.take_ticket()
    behind = module.frames.take_ticket()
    with pytest.warns(DeprecationWarning, match="run_inference"):
        (output,), _ = module.run(torch.ones(1), Mode.LOCAL, place=ticket)
    assert output.item() == 2.0
    assert module.frames.first_since_s(behind) < math.inf, "the place is given up"


def test_a_frame_that_fails_releases_its_ticket(calls):
    module, _, _, _, _ = calls(Mode.SERVER)
    ticket = module.frames.take_ticket()
    behind = module.frames.take_ticket()
    with pytest.raises(TypeError):
        module.run_inference(["no tensor"], ticket=ticket)
    assert module.frames.first_since_s(behind) < math.inf


# ------------------------------------------------------------------------------------- what a request waits behind


def transfer(sent, received, answered, back):
    return Transfer(sent, sent, received, answered, back, 0.0, 1000, 1000)


def done(transfer_done):
    future: Future = Future()
    future.set_result(Reply({}, [], transfer_done))
    return future


def test_each_stage_gets_its_wait_behind_the_request_before():
    earlier = _EarlierRequests()
    transferred = transfer(1.0, 1.06, 1.5, 1.58)
    assert earlier.behind_s(transferred, 0.2) == {}, "there was none before"
    earlier.add_finished(done(transfer(0.0, 0.1, 0.3, 0.4)))
    assert earlier.behind_s(transferred, 0.2) == {}, "it was through"
    earlier.add_finished(done(transfer(0.9, 1.02, 1.2, 1.52)))
    waits = earlier.behind_s(transferred, 0.2)
    assert waits["uplink"] == pytest.approx(0.02), "the link was its own until then"
    assert waits["queue"] == pytest.approx(0.14)
    assert waits["downlink"] == pytest.approx(0.02)
    assert earlier.behind_s(transferred, 0.05)["queue"] == 0.05, "no more than it waited"
    earlier.add_finished(done(transfer(1.1, 1.4, 1.9, 2.0)))
    assert earlier.behind_s(transferred, 0.2) == waits, "one that was sent later held nothing up"


def test_a_failed_request_delayed_nothing_measurable():
    earlier = _EarlierRequests()
    failed: Future = Future()
    failed.set_exception(OSError("gone"))
    cancelled: Future = Future()
    cancelled.cancel()
    for each in (failed, cancelled):
        earlier.add_finished(each)
    assert earlier.behind_s(transfer(1.0, 1.1, 1.2, 1.3), 0.1) == {}


@pytest.mark.parametrize(
    ("interval_s", "replay_part_s", "chosen"),
    [(0.2, 0.1, Mode.REPLAY), (0.09, 0.1, Mode.SERVER), (0.09, 0.06, Mode.REPLAY)],
)
def test_a_policy_counts_the_wait_of_frames_that_do_not_overlap(interval_s, replay_part_s, chosen):
    """Frames of replay overlap where a frame's input goes ahead of its turn: then a part of its way spaces them."""
    module = OffloadedModule("twice", Twice(), in_flight=2, candidates=(Mode.REPLAY, Mode.SERVER))
    now = time.monotonic()
    for mode, total_s, part_s in (
        (Mode.LOCAL, 0.3, 0.3), (Mode.REPLAY, 0.1, replay_part_s), (Mode.SERVER, 0.1, 0.06)
    ):  # fmt: skip
        if mode is not Mode.LOCAL:
            module.add_runner(Remote(mode))
        for number in range(20):
            one = InferenceReport(mode, "", total_s, {"compute_server": 0.06}, round_trips=1, part_s=part_s)
            module.costs.forecaster.learn_report(now - 2 + 0.1 * number, one, LinkReading())
            module.frames.learn_costs(one)
    for number in range(20):
        module.frames.record_frame_arrival(now + number * interval_s)
    assert LatencyPolicy().decide(module.situation(torch.zeros(1))).mode is chosen
    module.close()
