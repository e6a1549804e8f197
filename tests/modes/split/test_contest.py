"""A divided plan is used once it was measured no slower than the best undivided one, and no longer than that."""

from __future__ import annotations

import random

import pytest

from edge_offload.modes.split.robot import contest
from edge_offload.modes.split.robot.contest import PlanContest, PlanContests, compare_ratios

UNDIVIDED_S = 0.2


class Robot:
    """Runs inferences in virtual time; the divided plan takes ``ratio`` of what the other takes."""

    def __init__(self, ratio, noise=0.03, seed=0, idle_s=0.0):
        self.now, self.ratio, self.noise, self.idle_s = 0.0, ratio, noise, idle_s
        self.random = random.Random(seed)
        self.contest = PlanContest(lambda: self.now)
        self.ran = []

    def run(self, count):
        for _ in range(count):
            divided = self.contest.next_divides()
            slow = 1.0 + 0.5 * abs(self.random.gauss(0, 1)) if self.random.random() < 0.02 else 1.0
            seconds = UNDIVIDED_S * (self.ratio if divided else 1.0) * slow * self.random.lognormvariate(0, self.noise)
            self.now += seconds
            self.contest.record_inference(divided, seconds)
            self.now += self.idle_s
            self.ran.append(divided)
        return self

    def decide(self):
        while self.contest.in_use is None:
            self.run(1)
        return self

    def share(self, count):
        return sum(self.ran[-count:]) / count


@pytest.mark.parametrize("seed", range(8))
def test_a_divided_plan_that_is_faster_is_used(seed):
    robot = Robot(0.93, seed=seed).run(200)
    assert robot.contest.in_use is True
    assert robot.contest.ratios.ratio == pytest.approx(0.93, abs=0.04)
    assert robot.contest.ratios.high < 1.0
    assert robot.run(400).share(400) >= 0.9, "and compared now and then"


@pytest.mark.parametrize("seed", range(8))
def test_one_that_is_slower_is_not(seed):
    robot = Robot(1.099, seed=seed).decide()
    assert robot.contest.in_use is False
    assert robot.contest.ratios.low > 1.0
    assert robot.run(4000).share(2000) < 0.05, "and tried again less and less often"


def test_indistinguishable_plans_give_the_undivided_one():
    used = [Robot(1.0, seed=seed).run(150).contest.in_use for seed in range(400)]
    assert used.count(True) <= 0.08 * len(used), "the error that is put up with is 5 %"
    assert used.count(False) >= 0.9 * len(used)


def test_the_two_plans_run_in_turns_with_alternating_order():
    robot = Robot(0.93).run(16)
    assert robot.ran == [True, False, False, True] * 4


def test_a_plan_that_becomes_slower_is_replaced():
    robot = Robot(0.9).run(100)
    assert robot.contest.in_use is True
    robot.ratio = 1.1
    robot.run(1200)
    assert robot.decide().contest.in_use is False
    assert robot.share(200) < 0.1


def test_one_that_was_slower_during_a_fall_of_the_link_is_used_again_soon():
    robot = Robot(0.8).run(100)
    robot.ratio = 1.5
    while robot.contest.in_use is not False:
        robot.run(1)
    robot.ratio, fell_s = 0.8, robot.now
    while robot.contest.in_use is not True:
        robot.run(1)
    assert robot.now - fell_s < 20.0


def test_the_contest_is_repeated_at_growing_intervals():
    robot = Robot(1.1).decide()
    assert robot.contest.in_use is False
    waits = []
    for _ in range(3):
        since = robot.now
        while robot.contest.in_use is False:
            robot.now += 1.0
        waits.append(robot.now - since)
        assert robot.decide().contest.in_use is False
    assert waits == pytest.approx([10, 20, 40], abs=2)
    robot.ratio = 0.9
    robot.now += contest.MOST_RETRY_S
    assert robot.decide().contest.in_use is True


def test_distant_inferences_are_no_pair():
    robot = Robot(0.8, idle_s=2 * contest.NEIGHBOUR_S).run(200)
    assert robot.contest.in_use is None
    assert robot.contest.ratios is None


def test_a_failure_between_two_ends_their_pair():
    made = PlanContest(lambda: 0.0)
    for _ in range(100):
        made.record_inference(made.next_divides(), 0.1)
        made.drop_inference()
    assert made.ratios is None


def test_the_interval_is_of_the_median_and_needs_enough_pairs():
    few = compare_ratios([0.9] * 6)
    assert few.high == float("inf"), "six of six is what a coin does once in 64"
    assert compare_ratios([0.9] * 8).high == 0.9
    assert compare_ratios([0.9] * 7 + [1.1]).high == 1.1
    many = compare_ratios([0.9] * 23 + [1.1] * 9)
    assert (many.low, many.high) == (0.9, 1.1) or many.high == 0.9


def test_contest_is_reported():
    contests = PlanContests()
    assert contests.describe_state() == ""
    assert contests.contest_of(3, 4) is contests.contest_of(3, 4)
    for place, ratio in ((0, 0.9), (1, 1.2), (2, 1.0)):
        made = contests.contest_of(place, 9)
        for _ in range(contest.COLD_PAIRS + (8 if place < 2 else 3)):
            made.add_pair(ratio, 1.0)
    assert contests.describe_state() == (
        "1 measured faster than undivided ones (0.90), 1 measured not faster (1.20), 2 being measured"
    )
