"""An average that a comparison can rest on: it holds still under noise, follows a step at once, and knows its doubt."""

from __future__ import annotations

import random
import statistics

import pytest

from edge_offload.manager.robust_mean import STEP, RobustMean
from edge_offload.modes.split.robot.plan_times import GRID, PlanTimes


def followed(values, every_s=0.1):
    level, seen = RobustMean(), []
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
    assert level.doubt(50 * 0.1) > 0.02, "it may have been an accident"


def test_one_accident_changes_nothing_but_leaves_it_unsure():
    level, seen = followed([0.1] * 50 + [1.0])
    assert seen[-1] == seen[-2]
    assert level.unsure
    level.observe(5.2, 0.1)
    assert not level.unsure
    assert level.value == pytest.approx(0.1, rel=0.01)


def test_what_is_not_looked_at_becomes_doubtful_and_then_believes_more():
    fresh, _ = followed([0.1] * 100)
    stale, _ = followed([0.1] * 100)
    assert fresh.doubt(10.0) < 0.01 < stale.doubt(200.0)
    fresh.observe(10.0, 0.103)
    stale.observe(200.0, 0.103)
    assert abs(stale.value - 0.103) < abs(fresh.value - 0.103)


def test_before_the_first_frame_nothing_is_known():
    level = RobustMean()
    assert level.doubt(0.0) == float("inf")
    level.observe(0.0, 0.2)
    assert level.value == 0.2


def test_what_a_plan_takes_is_told_between_the_bandwidths_that_it_was_simulated_at():
    """Some compute, then bytes over bandwidth: on a slow link the bytes are all there is."""

    def takes(bandwidth):
        return max(0.03, 20_000 / bandwidth) + 100_000 / bandwidth

    times = PlanTimes((tuple(takes(rate) for rate in GRID),))
    for rate in (3e3, 0.25e6, 0.6e6, 1.37e6, 1.9e6, 9.99e6, 50e6):
        assert times.seconds(0, rate) == pytest.approx(takes(rate), rel=0.02), rate
