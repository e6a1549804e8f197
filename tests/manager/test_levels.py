"""Means that comparisons rest on: still under noise, quick to follow a step, with the right covariance."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from edge_offload.manager.levels import Levels
from edge_offload.manager.tuning import CHANGE, STEP
from edge_offload.modes.split.robot.plan_times import BANDWIDTH_GRID, PlanTimes


class One:
    """The level of one mode."""

    def __init__(self):
        self.levels = Levels()

    def observe(self, now, value):
        self.levels.observe(now, "a", value, shares=False)

    @property
    def value(self):
        return self.levels.mean("a")

    def doubt(self, now):
        return math.sqrt(self.levels.covariance(now, ["a"])[0, 0]) * self.value


def followed(values, every_s=0.1):
    level, seen = One(), []
    for number, value in enumerate(values):
        level.observe(number * every_s, value)
        seen.append(level.value)
    return level, seen


def test_it_holds_still_under_noise_and_accidents():
    chance = random.Random(1)
    values = [max(0.02, chance.gauss(0.1, 0.02)) * (3.0 if chance.random() < 0.03 else 1.0) for _ in range(600)]
    _, seen = followed(values)
    settled = seen[100:]
    assert statistics.pstdev(settled) < 0.006, "a third of what a frame scatters by would flip close decisions"
    assert statistics.mean(settled) == pytest.approx(0.1, rel=0.06)


@pytest.mark.parametrize("after", [0.3, 0.03])
def test_a_step_is_believed_after_a_few_frames(after):
    chance = random.Random(2)
    before = [chance.gauss(0.1, 0.005) for _ in range(50)]
    level, seen = followed([*before, *[after + chance.gauss(0, 0.005) for _ in range(STEP)]])
    assert seen[49] == pytest.approx(0.1, rel=0.1)
    assert seen[-1] == pytest.approx(after, abs=0.01)
    assert level.doubt(50 * 0.1) > 0.15 * after, "it may have been an accident"


def test_one_accident_does_not_change_the_mean_but_makes_it_uncertain():
    before = followed([0.1] * 50)[0].doubt(5.1)
    level, seen = followed([0.1] * 50 + [1.0])
    assert seen[-1] == seen[-2]
    assert level.doubt(5.1) > 10 * before
    level.observe(5.2, 0.1)
    assert level.doubt(5.2) < 2 * before
    assert level.value == pytest.approx(0.1, rel=0.01)


def test_what_is_not_looked_at_becomes_doubtful_and_then_believes_more():
    fresh, _ = followed([0.1] * 100)
    stale, _ = followed([0.1] * 100)
    assert fresh.doubt(10.0) < 0.01 < stale.doubt(200.0)
    fresh.observe(10.0, 0.103)
    stale.observe(200.0, 0.103)
    assert abs(stale.value - 0.103) < abs(fresh.value - 0.103)


def test_before_the_first_frame_no_level_is_measured():
    level = One()
    assert "a" not in level.levels
    assert level.value == 0.0
    level.observe(0.0, 0.2)
    assert level.value == pytest.approx(0.2, rel=1e-3)
    assert level.doubt(0.0) == pytest.approx(CHANGE * 0.2, rel=0.01), "the first frame of a mode may be slow from that"
    level.observe(0.1, 0.1)
    assert level.value == pytest.approx(0.1, rel=0.1)


def test_a_mode_that_starts_is_expected_to_be_as_noisy_as_others():
    chance, levels = random.Random(4), Levels()
    for number in range(200):
        levels.observe(0.1 * number, "others", 0.1 * math.exp(chance.gauss(0, 0.4)), shares=True)
    doubts = []
    for shares in (True, False):
        for number in range(5):
            levels.observe(20 + 0.1 * number, ("new", shares), 0.1, shares=shares)
        doubts.append(levels.covariance(20.5, [("new", shares)])[0, 0])
    assert doubts[0] > 3 * doubts[1]


def two(seconds=60.0, seed=3, ratio=1.1, drift=0.03):
    """Two modes on machines that drift, one of them measured in every frame, the other in one of fifty."""
    chance, levels, common, number = random.Random(seed), Levels(), 0.0, 0
    for mode, factor in (("often", 1.0), ("seldom", ratio)):
        levels.start(0.0, mode, 0.1 * factor * math.exp(chance.gauss(0, 0.1)), shares=True)
    while number * 0.1 < seconds:
        number += 1
        common += chance.gauss(0, drift * math.sqrt(0.1))
        mode, factor = ("seldom", ratio) if number % 50 == 0 else ("often", 1.0)
        levels.observe(number * 0.1, mode, 0.1 * factor * math.exp(common + chance.gauss(0, 0.1)), shares=True)
    return levels, common


def test_a_ratio_is_estimated_better_than_either_cost():
    errors, deviations = [], []
    for seed in range(40):
        levels, _ = two(seed=seed)
        covariance = levels.covariance(60.0, ["often", "seldom"])
        variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
        assert variance < covariance.trace()
        errors.append(math.log(levels.mean("seldom") / levels.mean("often") / 1.1))
        deviations.append(math.sqrt(variance))
    assert statistics.pstdev(errors) == pytest.approx(statistics.mean(deviations), rel=0.4)
    assert abs(statistics.mean(errors)) < 0.02


def test_after_a_disturbance_the_next_frames_are_believed():
    levels, _ = two()
    levels.disturb()
    assert levels.covariance(60.0, ["seldom"])[0, 0] > 0.09
    for number in range(3):
        levels.observe(60.0 + number * 0.1, "seldom", 0.5 * levels.mean("often"), shares=True)
    assert levels.mean("seldom") / levels.mean("often") == pytest.approx(0.5, rel=0.15)


def test_a_mode_that_does_not_run_follows_the_others_and_an_independent_one_does_not():
    levels, _ = two()
    levels.start(60.0, "robot", 0.3, shares=False)
    before = levels.mean("seldom"), levels.mean("robot")
    for number in range(200):
        levels.observe(60.0 + number * 0.1, "often", 2 * levels.mean("often") if number == 0 else 0.2, shares=True)
    assert 1.3 * before[0] < levels.mean("seldom") < 2.1 * before[0], "half of a step may be the other mode's own"
    assert levels.mean("robot") == pytest.approx(before[1])


def test_plan_latencies_are_interpolated_between_simulated_bandwidths():
    """Some compute, then bytes over bandwidth: on a slow link the bytes are all there is."""

    def latency_at(bandwidth):
        return max(0.03, 20_000 / bandwidth) + 100_000 / bandwidth

    times = PlanTimes((tuple(latency_at(rate) for rate in BANDWIDTH_GRID),))
    for rate in (3e3, 0.25e6, 0.6e6, 1.37e6, 1.9e6, 9.99e6, 50e6):
        assert times.predict_seconds(0, rate) == pytest.approx(latency_at(rate), rel=0.02), rate
