"""What is not measured goes stale: modes that a policy avoids are asked again, seldom, and their word is believed."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.manager.explore import Explorer, expected_improvement
from edge_offload.manager.forecast import Forecast, Forecaster
from edge_offload.manager.policy import LatencyPolicy, Situation
from edge_offload.manager.tuning import ENOUGH, RARE
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt, Runner
from edge_offload.power.thermal import HeatGuard, hottest_celsius
from edge_offload.runtime.module import OffloadedModule
from edge_offload.timing import Expected, InferenceReport


def forecasts(server_s=0.6, age_s=100.0, floor_s=0.02, unavailable_reason="", standard_error_s=0.1):
    server = Forecast(
        Mode.SERVER,
        server_s,
        0.01,
        1.0,
        unavailable_reason,
        floor_s=floor_s,
        age_s=age_s,
        standard_error_s=standard_error_s,
    )
    return {Mode.LOCAL: Forecast(Mode.LOCAL, 0.2, 0.01, 1.0, age_s=0.1), Mode.SERVER: server}


def count_explored(explorer, mode, frames, every_s=0.2, **made):
    """How many of some frames of ``mode`` explored; the report of each is there before the next frame."""
    explored, last = 0, -100.0
    for number in range(frames):
        now = number * every_s
        ran, probed = explorer.choose(mode, now, forecasts(age_s=now - last, **made))
        if ran is not mode or probed is not None:
            explored, last = explored + 1, now
    return explored


def test_expected_improvement_is_the_mean_of_what_is_gained():
    chance = random.Random(1)
    for latency_s, standard_error_s in ((0.2, 0.05), (0.3, 0.05), (0.15, 0.1)):
        drawn = [max(0.0, 0.2 - chance.gauss(latency_s, standard_error_s)) for _ in range(200_000)]
        expected = expected_improvement(
            Forecast(Mode.SERVER, latency_s, age_s=0.0, standard_error_s=standard_error_s), 0.2
        )
        assert expected == pytest.approx(sum(drawn) / len(drawn), abs=3e-4)
    assert expected_improvement(Forecast(Mode.SERVER, 0.15, age_s=0.0), 0.2) == pytest.approx(0.05)


@pytest.mark.parametrize("mode", [Mode.LOCAL, Mode.SERVER])
def test_at_most_one_frame_in_fifty_explores(mode):
    other = 0.19 if mode is Mode.LOCAL else 0.21
    explored = count_explored(Explorer(), mode, 2000, server_s=other)
    assert 0.9 * RARE * 2000 <= explored <= RARE * 2000 + ENOUGH


def test_a_mode_that_cannot_pay_for_a_frame_is_not_tried_until_it_is_uncertain():
    assert count_explored(Explorer(), Mode.SERVER, 1000, server_s=0.02, standard_error_s=0.0) == 0, (
        "local is ten times as slow"
    )
    slow = {Mode.SERVER: Forecast(Mode.SERVER, 0.1, 0.01, age_s=0.1)}
    for standard_error_s, age_s, expected in (
        (0.02, 5.0, Mode.SERVER),
        (0.08, 5.0, Mode.SPLIT),
        (0.02, 900.0, Mode.SPLIT),
    ):
        split = Forecast(Mode.SPLIT, 0.15, 0.01, age_s=age_s, standard_error_s=standard_error_s)
        assert Explorer().choose(Mode.SERVER, 0.0, {**slow, Mode.SPLIT: split})[0] is expected


def test_frames_that_explore_are_explained_once(capsys):
    """Who sees slow frames in mode local, while server is in force, is told why."""
    explorer = Explorer()
    assert count_explored(explorer, Mode.SERVER, 2000, server_s=0.21) > 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("edge_offload: mode local is tried by one frame in fifty")
    assert line.endswith("mode server stays in force")
    count_explored(Explorer(), Mode.LOCAL, 2000, server_s=0.21)
    assert capsys.readouterr().err == "", "nobody sees those that explore beside the robot's own computation"


def test_a_frame_that_the_robot_computes_explores_alongside():
    assert Explorer().choose(Mode.LOCAL, 0.0, forecasts()) == (Mode.LOCAL, Mode.SERVER)
    assert Explorer().choose(Mode.LOCAL, 0.0, forecasts(), with_local=False) == (Mode.LOCAL, None)


@pytest.mark.parametrize(
    "why",
    [{"unavailable_reason": "no server"}, {"floor_s": 0.3}],
    ids=["it cannot run", "the link alone takes longer than the robot"],
)
def test_it_is_not_explored_for_nothing(why):
    assert Explorer().choose(Mode.LOCAL, 0.0, forecasts(**why)) == (Mode.LOCAL, None)


def test_a_frame_waits_for_the_report_of_the_one_that_explored_before():
    explorer = Explorer()
    assert explorer.choose(Mode.LOCAL, 10.0, forecasts(age_s=100.0))[1] is Mode.SERVER
    assert explorer.choose(Mode.LOCAL, 10.2, forecasts(age_s=100.2))[1] is None
    assert explorer.choose(Mode.LOCAL, 10.4, forecasts(age_s=0.1))[1] is Mode.SERVER


def test_a_frame_that_was_given_a_turn_may_explore_whatever_the_budget():
    explorer = Explorer()
    assert count_explored(explorer, Mode.LOCAL, ENOUGH + 1) == ENOUGH
    assert explorer.choose(Mode.LOCAL, 10.0, forecasts(age_s=1.0))[1] is None
    explorer.allow()
    assert explorer.choose(Mode.LOCAL, 10.2, forecasts(age_s=1.0))[1] is Mode.SERVER


def test_a_policy_that_met_a_slow_server_once_comes_back_to_it():
    """The server is slow while it starts; then it would be faster than the robot for ever."""
    policy, forecaster, explorer = LatencyPolicy(), Forecaster(), Explorer()
    link = LinkReading(10e6, 10e6, 0.1, 0.1, 2.6e-3, "active", 9, 0.1)

    def server(seconds):
        stages = {"uplink": 0.02, "compute_server": seconds - 0.02}
        return InferenceReport(Mode.SERVER, "", seconds, stages, 200_000, 2000, 1)

    local = InferenceReport(Mode.LOCAL, "", 0.2, {"compute_robot": 0.2})
    forecaster.learn_report(0.0, local, link)
    for _ in range(3):
        forecaster.learn_report(0.0, server(0.7), link)
    now, ran = 0.0, []
    while now < 30.0:
        predicted = forecaster.forecasts(now, (Mode.LOCAL, Mode.SERVER), link, {})
        mode = policy.decide(Situation(now, predicted)).mode
        probed = explorer.choose(mode, now, predicted)[1]
        report = server(0.06) if mode is Mode.SERVER or probed else local
        now += report.total_s
        forecaster.learn_report(now, report, link)
        ran.append((now, mode))
    assert ran[0][1] is Mode.LOCAL
    assert next(t for t, mode in ran if mode is Mode.SERVER) < 15.0
    assert {mode for t, mode in ran if t > 20} == {Mode.SERVER}


def test_a_mode_that_looked_worse_long_ago_is_retried_once_its_forecast_is_doubtful():
    policy, forecaster, explorer = LatencyPolicy(), Forecaster(), Explorer()
    link = LinkReading(10e6, 10e6, 0.1, 0.1, 2.6e-3, "active", 9, 0.1)

    def remote(mode, seconds):
        return InferenceReport(mode, "", seconds, {"uplink": 0.02, "compute_server": seconds - 0.02}, 200_000, 2000, 1)

    forecaster.learn_report(0.0, InferenceReport(Mode.LOCAL, "", 0.3, {"compute_robot": 0.3}), link)
    now = 0.0
    for number in range(40):  # split is the better one, then has bad luck for a while
        for mode, seconds in ((Mode.SPLIT, 0.06 if number < 30 else 0.14), (Mode.SERVER, 0.1)):
            forecaster.learn_report(now, remote(mode, seconds), link)
            now += 0.1
    chosen = []
    while now < 400.0:
        predicted = forecaster.forecasts(now, (Mode.LOCAL, Mode.SERVER, Mode.SPLIT), link, {})
        mode = policy.decide(Situation(now, predicted)).mode
        chosen.append(mode)
        mode, _ = explorer.choose(mode, now, predicted)
        forecaster.learn_report(now, remote(mode, 0.06 if mode is Mode.SPLIT else 0.1), link)
        now += 0.1
    assert chosen[0] is Mode.SERVER
    assert set(chosen[-100:]) == {Mode.SPLIT}


class _SlowRunner(Runner):
    """A mode that answers like the robot, once it is let, and counts."""

    mode = Mode.LAZY

    def __init__(self):
        self.requested, self.go = 0, threading.Event()
        self.go.set()

    def unavailable_reason(self, inputs):
        return None

    def attempt_inference(self, inputs, meta, budget):
        self.requested += 1
        assert self.go.wait(60.0)
        return Attempt((inputs[0] * 2,), {"compute_server": 0.0}, bytes_up=1000, round_trips=1)

    def state(self):
        return "ready"


class _Double(nn.Module):
    """The robot's network, which waits for the event ``released`` if there is one."""

    seconds, released = 0.05, None

    def forward(self, x):
        time.sleep(self.seconds)
        assert self.released is None or self.released.wait(60.0)
        return x * 2


def module_with(runner):
    module = OffloadedModule("double", _Double(), candidates=[runner.mode])
    module.add_runner(runner)
    return module


@pytest.mark.process
def test_a_local_call_may_request_another_mode_too_and_uses_the_first_result(monkeypatch):
    ticks = itertools.count()  # how often another mode is asked goes by the clock, which must not be a busy machine's
    monkeypatch.setattr("edge_offload.runtime.module.time", SimpleNamespace(monotonic=lambda: 1e-3 * next(ticks)))
    runner = _SlowRunner()
    module = module_with(runner)
    x = torch.ones(3)
    module.run_inference([x])
    released = threading.Event()
    monkeypatch.setattr(_Double, "released", released)
    outputs, report = module.run_inference([x], refresh=True)
    released.set()
    monkeypatch.setattr(_Double, "seconds", 0.002)
    assert runner.requested == 1
    assert torch.equal(outputs[0], x * 2)
    assert report.mode is Mode.LAZY, "it was there first"
    assert not report.fallback_reason
    assert module.situation([x]).forecasts[Mode.LAZY].measured
    for _ in range(50):
        module.run_inference([x], refresh=True)
    assert runner.requested <= ENOUGH + 1, "seldom"
    module.close()


@pytest.mark.process
def test_a_slow_answer_alongside_a_local_call_delays_nothing_and_is_no_fallback():
    runner = _SlowRunner()
    runner.go.clear()
    module = module_with(runner)
    x = torch.ones(3)
    module.run_inference([x])
    _, report = module.run_inference([x], refresh=True)
    assert (report.mode, report.fallback_reason, report.hedged) == (Mode.LOCAL, "", True), "it still has no answer"
    time.sleep(0.5)
    runner.go.set()
    ends = time.monotonic() + 60
    while not module.situation([x]).forecasts[Mode.LAZY].measured and time.monotonic() < ends:
        time.sleep(0.05)
    assert module.situation([x]).forecasts[Mode.LAZY].latency_s > 0.5, "what it took is known all the same"
    module.close()


@pytest.mark.process
def test_without_permission_nothing_is_requested():
    runner = _SlowRunner()
    module = module_with(runner)
    for _ in range(3):
        module.run_inference([torch.ones(3)])
    assert runner.requested == 0
    module.close()


# ---------------------------------------------------------------------- plans, load, heat


def test_a_mode_with_plans_is_forecast_by_the_plan_for_the_bandwidth_of_now():
    forecaster = Forecaster(
        planned=lambda mode, reading: Expected(0.1 if reading.uplink > 5e6 else 0.3) if mode is Mode.SPLIT else None
    )
    fast, slow = (LinkReading(rate, rate, 0.1, 0.1, 2.6e-3, "passive", 9, 0.0) for rate in (10e6, 1e6))
    for i in range(10):
        stages = {"uplink": 0.05, "compute_robot": 0.05}
        forecaster.learn_report(i * 0.1, InferenceReport(Mode.SPLIT, "", 0.12, stages, 500_000, 0, 1), fast)
    assert forecaster.forecast(1.0, Mode.SPLIT, fast).latency_s == pytest.approx(0.12, rel=0.01)
    assert forecaster.forecast(1.0, Mode.SPLIT, slow).latency_s == pytest.approx(0.36, rel=0.01), "20 % above its plan"


def test_a_plan_without_the_server_is_forecast_as_local_and_teaches_what_local_costs():
    def planned(mode, reading):
        return Expected(0.9, local=reading.uplink < 1e6) if mode is Mode.SPLIT else None

    forecaster = Forecaster(planned=planned)
    fast, slow = (LinkReading(rate, rate, 0.1, 0.1, 2.6e-3, "passive", 9, 0.0) for rate in (10e6, 0.2e6))
    forecaster.learn_report(0.0, InferenceReport(Mode.LOCAL, "", 0.4, {"compute_robot": 0.4}), slow)
    for i in range(10):
        forecaster.learn_report(i * 0.1, InferenceReport(Mode.SPLIT, "", 0.9, {"uplink": 0.4}, 500_000, 0, 1), fast)
    for i in range(10, 20):
        forecaster.learn_report(i * 0.1, InferenceReport(Mode.SPLIT, "", 0.3, {"compute_robot": 0.3}), slow)
    assert forecaster.forecast(2.0, Mode.LOCAL, slow).latency_s == pytest.approx(0.3)
    assert forecaster.forecast(2.0, Mode.SPLIT, slow).latency_s == pytest.approx(0.3)
    assert forecaster.forecast(2.0, Mode.SPLIT, slow, "no server").unavailable_reason == "no server"
    assert forecaster.forecast(2.0, Mode.SPLIT, fast).latency_s == pytest.approx(0.9, rel=0.01), "not mixed up with it"


def test_a_server_only_plan_is_run_as_mode_server():
    def planned(mode, reading):
        return Expected(0.1, remote=reading.uplink > 5e6) if mode is Mode.SPLIT else None

    forecaster = Forecaster(planned=planned)
    fast, slow = (LinkReading(rate, rate, 0.1, 0.1, 2.6e-3, "passive", 9, 0.0) for rate in (10e6, 1e6))

    def reason_of(reading, modes, obstacles=None):
        return forecaster.forecasts(0.0, modes, reading, obstacles or {})[Mode.SPLIT].unavailable_reason

    every = (Mode.LOCAL, Mode.SERVER, Mode.REPLAY, Mode.SPLIT)
    assert reason_of(fast, every).endswith("leaves everything to the server: that is replay")
    assert reason_of(fast, every, {Mode.REPLAY: "it is being learnt"}).endswith("that is server")
    assert reason_of(slow, every) == "", "there it divides"
    assert reason_of(fast, every, {Mode.SPLIT: "no server"}) == "no server"
    assert reason_of(fast, (Mode.LOCAL, Mode.SPLIT)) == "", "nothing else does it here"


def test_after_a_reconnection_all_modes_are_compared_on_the_same_link_and_lateness_is_over():
    forecaster = Forecaster(
        planned=lambda mode, link: Expected(0.05 + 5e5 / link.uplink) if mode is Mode.SPLIT else None
    )
    link = LinkReading(10e6, 10e6, 0.1, 0.1, 2.6e-3, "passive", 9, 0.0)
    for mode, seconds in ((Mode.SERVER, 0.12), (Mode.SPLIT, 0.1)):
        for i in range(10):
            stages = {"uplink": 0.05, "compute_server": seconds - 0.05}
            forecaster.learn_report(i * 0.1, InferenceReport(mode, "", seconds, stages, 500_000, 0, 1), link)
    forecaster.raise_latency(2.0, Mode.SPLIT, 0.6)
    stuck = LinkReading(10e6, 10e6, 0.1, 0.1, 2.6e-3, "passive", 9, 1.0)
    assert forecaster.forecast(3.0, Mode.SPLIT, stuck).latency_s > 0.5
    second = LinkReading(rtt_s=2.6e-3)
    server, split = (forecaster.forecast(3.0, mode, second).latency_s for mode in (Mode.SERVER, Mode.SPLIT))
    assert split < server < 0.2


def test_an_uncertain_link_is_expected_to_take_longer():
    forecaster = Forecaster()
    sure, unsure = (LinkReading(10e6, 10e6, error, error, 2.6e-3, "passive", 9, 0.0) for error in (0.1, 1.0))
    forecaster.learn_report(0.0, InferenceReport(Mode.SERVER, "", 0.13, {"uplink": 0.1}, 1_000_000, 0, 1), sure)
    certain, doubtful = (forecaster.forecast(0.0, Mode.SERVER, link).latency_s for link in (sure, unsure))
    assert certain == pytest.approx(0.13, rel=0.03)
    assert doubtful == pytest.approx(0.03 + 0.1 * math.exp(0.5), rel=0.03)


def test_a_busy_server_is_expected_to_delay_a_frame_once_the_queue_estimate_is_old():
    busy_s = [0.0]
    forecaster = Forecaster(busy_s=lambda now: busy_s[0])
    link = LinkReading(10e6, 10e6, 0.1, 0.1, 2.6e-3, "passive", 9, 0.0)
    stages = {"uplink": 0.02, "compute_server": 0.03}
    forecaster.learn_report(0.0, InferenceReport(Mode.SERVER, "", 0.05, stages, 200_000, 0, 1), link)
    idle = forecaster.forecast(20.0, Mode.SERVER, link).latency_s
    busy_s[0] = 0.4
    assert forecaster.forecast(0.0, Mode.SERVER, link).latency_s == pytest.approx(idle, abs=0.01), "just measured"
    assert forecaster.forecast(20.0, Mode.SERVER, link).latency_s == pytest.approx(idle + 0.4, abs=0.01)


def test_the_hottest_zone_counts_and_what_cannot_be_read_does_not(tmp_path):
    assert math.isnan(hottest_celsius(tmp_path))
    for name, text in (("0", "41500\n"), ("1", "78250\n"), ("2", "-274000\n"), ("3", "off\n")):
        zone = tmp_path / f"thermal_zone{name}"
        zone.mkdir()
        (zone / "temp").write_text(text)
    assert hottest_celsius(tmp_path) == 78.25


def test_heat_ends_only_when_it_is_clearly_cooler():
    guard = HeatGuard()
    assert [guard.step(t, 80.0) for t in (70, 81, 78, 76, 74, 79)] == [False, True, True, True, False, False]
    assert not guard.step(99.0, 0.0), "no limit"
    assert not guard.step(math.nan, 80.0)
