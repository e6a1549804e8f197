"""A late remote result gets a local rival: first valid one wins, the other is dropped, nobody waits for the dead."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from edge_offload.errors import LinkLost
from edge_offload.manager.explore import worth_joining
from edge_offload.manager.forecast import Forecast
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.manager.tuning import GIVE_UP_S, POLL_S
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt, FailedAttempt, Runner
from edge_offload.runtime.hedge import Hedge
from edge_offload.runtime.module import OffloadedModule

LOCAL_OUTPUTS, REMOTE_OUTPUTS = (torch.tensor([0]),), (torch.tensor([1]),)
FOREVER_S = 30.0


@pytest.fixture
def hedge():
    made = Hedge()
    yield made
    made.close()


class After:
    """A result is late after so many seconds, or when the link has stopped."""

    def __init__(self, seconds, stopped=lambda: False):
        self.at, self.link_stopped = time.monotonic() + seconds, stopped

    def hedge_at(self):
        return self.at

    def next_check_at(self):
        return min(self.at, time.monotonic() + POLL_S)


def local(cancelled):
    return Attempt(LOCAL_OUTPUTS, {"compute_robot": 0.0})


def test_a_result_in_time_starts_no_local_computation(hedge):
    outcome = hedge.race_attempts(
        lambda: Attempt(REMOTE_OUTPUTS), lambda _cancelled: pytest.fail("started"), After(FOREVER_S)
    )
    assert outcome.remote
    assert not outcome.hedged
    assert outcome.attempt.outputs is REMOTE_OUTPUTS


class Planned(Runner):
    """Mode split with a plan that leaves everything to the robot."""

    mode = Mode.SPLIT
    has_plans = True

    def __init__(self, lost=None):
        self.thread, self.lost = None, lost

    def stays_local(self, inputs):
        return True

    def unavailable_reason(self, inputs):
        return None

    def attempt_inference(self, inputs, meta, budget):
        self.thread = threading.get_ident()
        if self.lost is not None:
            raise self.lost
        return Attempt(tuple(inputs), {"compute_robot": 0.0})

    def state(self):
        return ""


def test_a_plan_that_stays_on_the_robot_runs_on_the_calling_thread():
    module, runner = OffloadedModule("net", nn.Identity()), Planned()
    module.add_runner(runner)
    _, report = module.run_inference(torch.ones(3), Mode.SPLIT)
    assert report.mode is Mode.SPLIT
    assert runner.thread == threading.get_ident()
    module.close()


def test_a_plan_that_turned_to_the_server_meanwhile_and_failed_leaves_the_local_result():
    module = OffloadedModule("net", nn.Identity())
    module.add_runner(Planned(LinkLost("the link went down")))
    outputs, report = module.run_inference(torch.ones(3), Mode.SPLIT)
    assert report.mode is Mode.LOCAL
    assert "the link went down" in report.fallback_reason
    assert torch.equal(outputs[0], torch.ones(3))
    module.close()


@pytest.mark.process
def test_late_remote_loses_and_no_frame_starts_another_until_it_ends():
    ended, settled = threading.Event(), []
    hedge = Hedge()

    def remote():
        ended.wait(FOREVER_S)
        return Attempt(REMOTE_OUTPUTS)

    outcome = hedge.race_attempts(
        remote, local, After(0.01), on_late_result=lambda seconds, attempt: settled.append((seconds, attempt))
    )
    assert (outcome.remote, outcome.hedged) == (False, True)
    assert outcome.attempt.outputs is LOCAL_OUTPUTS
    assert "did not answer within" in outcome.reason
    assert "has not answered for" in hedge.find_overdue_attempt()
    ended.set()
    while hedge.find_overdue_attempt() is not None or not settled:
        time.sleep(0.005)
    assert settled[0][1].outputs is REMOTE_OUTPUTS
    hedge.close()


def test_remote_that_arrives_first_after_all_wins_and_the_rival_is_stopped(hedge):
    started, stopped = threading.Event(), threading.Event()

    def remote():
        started.wait(FOREVER_S)
        return Attempt(REMOTE_OUTPUTS)

    def slow(cancelled):
        started.set()
        assert cancelled.wait(FOREVER_S)
        stopped.set()
        return Attempt(LOCAL_OUTPUTS, {"compute_robot": 1.0})

    outcome = hedge.race_attempts(remote, slow, After(0.0))
    assert (outcome.remote, outcome.hedged) == (True, True)
    assert outcome.attempt.outputs is REMOTE_OUTPUTS
    assert stopped.wait(FOREVER_S)


def test_a_rival_that_still_computes_is_waited_for_before_the_next_local_computation(hedge):
    started, go, order = threading.Event(), threading.Event(), []

    def remote():
        started.wait(FOREVER_S)
        return Attempt(REMOTE_OUTPUTS)

    def first(cancelled):
        started.set()
        go.wait(FOREVER_S)
        order.append("first")
        return Attempt(LOCAL_OUTPUTS)

    def second(cancelled):
        order.append("second")
        return Attempt(LOCAL_OUTPUTS)

    assert hedge.race_attempts(remote, first, After(0.0)).remote
    threading.Timer(0.05, go.set).start()
    hedge.run_unraced(second)
    assert order == ["first", "second"], "two computations at once would share the processor"


def test_a_failure_of_the_remote_side_is_answered_locally_with_its_cost(hedge):
    def remote():
        raise FailedAttempt(LinkLost("the connection broke"), 0.1, 1234)

    outcome = hedge.race_attempts(remote, local, After(FOREVER_S))
    assert not outcome.remote
    assert not outcome.hedged
    assert outcome.lost.bytes_up == 1234
    assert "connection broke" in outcome.reason


@pytest.mark.process
def test_remote_that_fails_during_the_race_leaves_the_local_result(hedge):
    started = threading.Event()

    def remote():
        started.wait(FOREVER_S)
        raise FailedAttempt(LinkLost("the connection broke"), 0.1, 1234)

    def rival(cancelled):
        started.set()
        time.sleep(0.1)
        return Attempt(LOCAL_OUTPUTS, {"compute_robot": 0.05})

    outcome = hedge.race_attempts(remote, rival, After(0.0))
    assert outcome.attempt.outputs is LOCAL_OUTPUTS
    assert outcome.hedged
    assert "connection broke" in outcome.reason


@pytest.mark.process
def test_a_model_that_fails_locally_is_rescued_by_the_server_or_fails_as_without_it(hedge):
    def broken(cancelled):
        raise ValueError("bad model")

    def slow():
        time.sleep(0.05)
        return Attempt(REMOTE_OUTPUTS)

    def lost():
        time.sleep(0.05)
        raise LinkLost("gone")

    assert hedge.race_attempts(slow, broken, After(0.0)).attempt.outputs is REMOTE_OUTPUTS
    with pytest.raises((ValueError, LinkLost)):
        hedge.race_attempts(lost, broken, After(0.0))


def test_the_rival_computes_with_as_many_threads_as_its_caller(hedge):
    before = torch.get_num_threads()
    seen = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            go = threading.Event()

            def rival(cancelled, go=go):
                seen.append(torch.get_num_threads())
                go.set()
                return Attempt(LOCAL_OUTPUTS)

            def remote(go=go):
                go.wait(FOREVER_S)
                return Attempt(REMOTE_OUTPUTS)

            hedge.race_attempts(remote, rival, After(0.0))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_the_robot_starts_as_soon_as_the_link_has_stopped_not_when_the_result_is_late(hedge):
    never = threading.Event()

    def remote():
        never.wait(FOREVER_S)
        return Attempt(REMOTE_OUTPUTS)

    outcome = hedge.race_attempts(remote, local, After(FOREVER_S, lambda: True))
    never.set()
    assert outcome.attempt.outputs is LOCAL_OUTPUTS
    assert (outcome.remote, outcome.hedged) == (False, True)
    assert float(outcome.reason.split()[-2]) < FOREVER_S / 2


def test_a_link_that_has_not_stopped_keeps_the_robot_from_beginning(hedge):
    answer, calls = threading.Event(), []

    def stopped():
        calls.append(1)
        if len(calls) == 3:
            answer.set()
        return False

    def remote():
        answer.wait(FOREVER_S)
        return Attempt(REMOTE_OUTPUTS)

    outcome = hedge.race_attempts(remote, lambda _cancelled: pytest.fail("started"), After(FOREVER_S, stopped))
    assert outcome.attempt.outputs is REMOTE_OUTPUTS
    assert not outcome.hedged
    assert len(calls) >= 3


class Remote(Runner):
    """A remote mode that answers when it is let."""

    mode = Mode.SERVER

    def __init__(self):
        self.answer, self.calls, self.budgets = threading.Event(), 0, []
        self.answer.set()

    def unavailable_reason(self, inputs):
        return None

    def attempt_inference(self, inputs, meta, budget):
        self.calls += 1
        self.budgets.append(budget)
        if not self.answer.wait(FOREVER_S):
            raise FailedAttempt(LinkLost("nothing came"), FOREVER_S, 99)
        return Attempt(tuple(x * 2 for x in inputs), {"uplink": 0.001}, 1000, 1000, 1)

    def state(self):
        return "pretends"


class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.process
def test_the_runtime_hedges_what_is_late_by_its_forecast_and_reports_it():
    remote, x = Remote(), [torch.arange(4.0)]
    module = OffloadedModule("twice", Twice(), None)
    module.add_runner(remote)
    for _ in range(3):
        report = module.run_inference(x, Mode.LOCAL)[1]
        assert (report.mode, report.hedged) == (Mode.LOCAL, False)
    served, ends = 0, time.monotonic() + FOREVER_S
    while served < 12:  # one that a busy machine keeps for ten milliseconds is late
        report = module.run_inference(x, Mode.SERVER)[1]
        served += report.mode is Mode.SERVER
        assert report.hedged or report.fallback_reason or report.mode is Mode.SERVER
        assert time.monotonic() < ends
    situation = module.situation(x)
    assert {mode for mode, forecast in situation.forecasts.items() if forecast.measured} == {Mode.LOCAL, Mode.SERVER}
    remote.answer.clear()
    outputs, report = module.run_inference(x, Mode.SERVER)
    assert torch.equal(outputs[0], x[0] * 2)
    assert (report.mode, report.hedged) == (Mode.LOCAL, True)
    assert "did not answer within" in report.fallback_reason
    before = remote.calls
    _, report = module.run_inference(x, Mode.SERVER)
    assert (report.mode, report.hedged, report.round_trips) == (Mode.LOCAL, False, 0)
    assert "has not answered for" in report.fallback_reason
    assert remote.calls == before, "no frame waits for the dead"
    assert "has not answered" in module.situation(x).forecasts[Mode.SERVER].unavailable_reason
    remote.answer.set()
    while module.unavailable_reason(Mode.SERVER, x) is not None:
        time.sleep(0.005)
    assert module.run_inference(x, Mode.SERVER)[1].round_trips == 1
    module.close()


@pytest.mark.process
def test_without_hedging_the_robot_starts_when_nothing_has_arrived_for_long_and_the_attempt_goes_on():
    remote, x, limits = Remote(), [torch.arange(4.0)], TimeoutLimits(first_s=0.05)
    module = OffloadedModule("twice", Twice(), None, hedging=False, patience=limits)
    module.add_runner(remote)
    remote.answer.clear()
    outputs, report = module.run_inference(x, Mode.SERVER)
    assert torch.equal(outputs[0], x[0] * 2)
    assert report.mode is Mode.LOCAL
    assert report.fallback_reason.startswith("server: the server did not answer within 0.")
    assert "has not answered for" in module.run_inference(x, Mode.SERVER)[1].fallback_reason
    assert remote.calls == 1
    remote.answer.set()
    while module.unavailable_reason(Mode.SERVER, x) is not None:
        time.sleep(0.005)
    assert module.run_inference(x, Mode.SERVER)[1].mode is Mode.SERVER
    assert remote.budgets[0].use_s == 0.05
    assert remote.budgets[0].give_up_s == GIVE_UP_S
    module.close()


def test_one_tensor_is_one_input_and_not_a_list_of_the_rows_of_its_batch():
    module, batch = OffloadedModule("twice", Twice(), None), torch.arange(6.0).reshape(2, 3)
    for inputs in (batch, (batch,), [batch]):
        (output,), _ = module.run_inference(inputs)
        assert torch.equal(output, batch * 2)
    assert module.unavailable_reason(Mode.LOCAL, batch) is None
    assert Mode.LOCAL in module.situation(batch).forecasts
    module.close()


@pytest.mark.parametrize(
    ("inputs", "cause"),
    [
        (torch.zeros(2, 3).numpy(), "inputs are a ndarray"),
        ({"x": torch.zeros(1)}, "inputs are a dict"),
        ((each for each in [torch.zeros(1)]), "inputs are a generator"),
        ([torch.zeros(1), 2.0], "input 1 is a float"),
    ],
)
def test_what_is_no_tensor_is_refused_in_one_line(inputs, cause):
    with pytest.raises(TypeError, match=f"{cause}; give a tensor, or a tuple or list of them$"):
        OffloadedModule("twice", Twice(), None).run_inference(inputs)


@pytest.mark.parametrize(
    ("candidates", "seen"),
    [
        ((Mode.LOCAL, Mode.SERVER), {Mode.LOCAL, Mode.SERVER}),
        ((Mode.REPLAY,), {Mode.LOCAL, Mode.REPLAY, Mode.SERVER}),
        ((Mode.SPLIT, Mode.SERVER), {Mode.LOCAL, Mode.SERVER}),
        ((Mode.SPLIT,), {Mode.LOCAL}),
    ],
)
def test_a_policy_chooses_among_the_candidates_that_exist_and_local_is_always_one(candidates, seen):
    module = OffloadedModule("twice", Twice(), None, candidates=candidates)
    for mode in (Mode.PER_OP, Mode.SERVER, Mode.REPLAY):
        runner = Remote()
        runner.mode = mode
        module.add_runner(runner)
    assert set(module.situation([torch.zeros(1)]).forecasts) == seen
    module.close()


# ---------------------------------------------------------------------- the server comes back in the middle of a frame


def test_a_local_computation_is_joined_for_a_reason_and_the_first_result_wins(hedge):
    stopped, elapsed = threading.Event(), []

    def slow(cancelled):
        assert cancelled.wait(FOREVER_S)
        stopped.set()
        return Attempt(LOCAL_OUTPUTS, {"compute_robot": 1.0})

    def join(elapsed_s):
        elapsed.append(elapsed_s)
        return (lambda: Attempt(REMOTE_OUTPUTS)) if len(elapsed) == 3 else None

    outcome = hedge.race_joined(slow, join, every_s=0.01)
    assert (outcome.remote, outcome.hedged) == (True, True)
    assert outcome.attempt.outputs is REMOTE_OUTPUTS
    assert stopped.wait(FOREVER_S), "the local computation is told to stop"
    assert elapsed == sorted(elapsed)
    assert outcome.remote_s <= outcome.local_s, "the robot had been computing before"


def test_without_a_reason_a_local_computation_ends_unjoined(hedge):
    outcome = hedge.race_joined(local, lambda elapsed_s: None, every_s=0.01)
    assert (outcome.remote, outcome.hedged) == (False, False)
    assert outcome.attempt.outputs is LOCAL_OUTPUTS


def test_a_joined_remote_that_fails_or_is_later_leaves_the_local_result(hedge):
    go = threading.Event()

    def slow(cancelled):
        assert go.wait(FOREVER_S)
        return Attempt(LOCAL_OUTPUTS, {"compute_robot": 1.0})

    def lost():
        go.set()
        raise FailedAttempt(LinkLost("gone again"), 0.1, 99)

    outcome = hedge.race_joined(slow, lambda elapsed_s: lost, every_s=0.01)
    assert outcome.attempt.outputs is LOCAL_OUTPUTS
    assert not outcome.remote


class _Returning(Runner):
    """A server that is away until it is told to come back."""

    mode = Mode.LAZY

    def __init__(self):
        self.away, self.calls = "", 0

    def unavailable_reason(self, inputs):
        return self.away or None

    def attempt_inference(self, inputs, meta, budget):
        self.calls += 1
        return Attempt((inputs[0] * 2,), {"compute_server": 0.001}, bytes_up=1000, round_trips=1)

    def state(self):
        return self.away or "ready"


class _Slow(nn.Module):
    seconds = 0.06

    def forward(self, x):
        time.sleep(self.seconds)
        return x * 2


@pytest.mark.process
def test_a_frame_started_in_an_outage_continues_on_the_restored_server(monkeypatch):
    model, runner = _Slow(), _Returning()
    module = OffloadedModule("slow", model, candidates=[runner.mode], robot_slowdown=50.0)
    module.add_runner(runner)
    x, noted = torch.ones(3), []
    for mode in (Mode.LOCAL, Mode.LAZY, Mode.LAZY):
        module.run_inference([x], mode)
    runner.away = "no server"
    note = module.costs.forecaster.learn_report
    monkeypatch.setattr(
        module.costs.forecaster, "learn_report", lambda now, *rest: (noted.append(rest[0]), note(now, *rest))
    )
    timer = threading.Timer(0.5, lambda: setattr(runner, "away", ""))
    timer.start()
    outputs, report = module.run_inference([x], Mode.LOCAL, refresh=True)
    assert report.mode is Mode.LAZY, "it would have taken the robot three seconds"
    assert torch.equal(outputs[0], x * 2)
    assert report.hedged
    assert not report.fallback_reason
    assert report.total_s >= 0.5, "the frame's time is the frame's"
    assert noted[-1].total_s <= report.total_s - 0.45, "what the robot had computed before is no time of the server's"
    module.close()


def test_an_unselected_mode_does_not_join_a_started_frame():
    local_s, fast = Forecast(Mode.LOCAL, 0.4, 0.01), Forecast(Mode.SERVER, 0.1, 0.01)
    unavailable = replace(fast, unavailable_reason="no server")
    slow = replace(fast, latency_s=1.5)
    for before, elapsed_s, expected in (
        (unavailable, 0.1, Mode.SERVER),
        (slow, 0.1, Mode.SERVER),
        (unavailable, 0.35, None),
        (fast, 0.1, None),
    ):
        forecasts = {Mode.LOCAL: local_s, Mode.SERVER: before}
        now = {Mode.LOCAL: local_s, Mode.SERVER: fast}
        assert worth_joining(forecasts, now, elapsed_s) is expected
    assert worth_joining({Mode.SERVER: unavailable}, {Mode.SERVER: fast}, 0.0) is None
