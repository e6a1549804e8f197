"""Whether the rest of an inference is worth running ahead is found out by doing both; costs are made by hand."""

from __future__ import annotations

import random
from typing import List, NamedTuple

import pytest

from edge_offload.replay.worth import (
    FIRST_TRIP,
    MAX_TRIAL_PAUSE,
    MIN_TRIALS,
    MIN_TRIPS,
    RECENT,
    TRIAL_PAUSE,
    TRIALS,
    AheadGain,
)

STEPS = 20


class Way(NamedTuple):
    """An inference: seconds and round trips."""

    seconds: float
    trips: int


class Costs(NamedTuple):
    """What it costs if the rest of it is run ahead, and if not."""

    ahead: Way
    plain: Way


LOOP = Costs(Way(0.144, 15), Way(0.1, STEPS))
GOOD = Costs(Way(0.03, 1), Way(0.1, STEPS))


class Program:
    """Does inferences on a clock of its own."""

    def __init__(self) -> None:
        self.now_s, self.trips = 0.0, 0
        self.worth = AheadGain(lambda: self.now_s)

    def infer(self, costs: Costs, kind: str = "image") -> bool:
        """Do one, which takes its first round trips as if it were run ahead; says whether it was to the end."""
        self.worth.note_step("picture", True, self.trips)
        self.now_s += 5.0  # until the host reads: that is no cost of either
        way, ahead = costs.ahead, True
        for step in range(STEPS):
            if step < way.trips:
                ahead = self.worth.runs_ahead(self.trips)
                way = costs.ahead if ahead else costs.plain
                self.trips += 1
            self.now_s += way.seconds / STEPS
            self.worth.end_step(self.trips)
            self.worth.note_step(kind if not step else "turn of a loop", False, self.trips)
        return ahead

    def do(self, count: int, costs: Costs) -> List[bool]:
        return [self.infer(costs) for _ in range(count)]


def test_what_costs_more_than_it_saves_ends() -> None:
    program = Program()
    assert all(program.do(TRIAL_PAUSE, LOOP))  # so much for learning
    assert sum(program.do(2 * TRIALS, LOOP)) == TRIALS
    later = program.do(400, LOOP)
    assert 0 < sum(later) <= 6 * TRIALS  # tried again, ever more seldom
    assert all(not ahead for ahead in later[: 2 * TRIAL_PAUSE])


def test_inferences_of_few_round_trips_run_ahead_at_any_cost() -> None:
    """Also among inferences that begin alike and are not, and after all that can be found of those."""
    rng = random.Random(3)
    program = Program()
    given_up = 0
    for _ in range(2000):
        trips = rng.randint(1, FIRST_TRIP)
        assert program.infer(Costs(Way(rng.uniform(0.01, 9.0), trips), Way(0.001, trips)))
        given_up += not program.infer(LOOP)
    assert given_up > 1500


@pytest.mark.parametrize(
    "costs",
    [
        Costs(Way(0.030, MIN_TRIPS - 1), Way(0.010, STEPS)),
        Costs(Way(0.030, 1), Way(0.010, STEPS)),
    ],
)
def test_with_few_round_trips_remaining_nothing_is_tried(costs: Costs) -> None:
    assert all(Program().do(300, costs))


def test_after_inferences_of_few_round_trips_nothing_is_tried() -> None:
    program = Program()
    few = Costs(Way(0.1, MIN_TRIPS - 1), Way(0.05, STEPS))
    assert all(program.infer(few if number % RECENT == 0 else LOOP) for number in range(300))


def test_where_the_link_is_slow_a_trial_is_short() -> None:
    program = Program()
    costs = Costs(Way(0.3, 12), Way(0.5, STEPS))
    assert program.do(TRIAL_PAUSE + 2 * MIN_TRIALS, costs).count(False) == MIN_TRIALS
    assert program.do(1000, costs).count(False) < 8 * MIN_TRIALS


@pytest.mark.parametrize("seed", range(20))
def test_over_a_long_time_little_is_lost_against_the_better_way(seed: int) -> None:
    """Whatever the two ways cost, and however that is scattered."""
    rng = random.Random(seed)
    ahead_s, plain_s = rng.uniform(0.02, 0.3), rng.uniform(0.02, 0.3)
    program, spent_s, best_s = Program(), 0.0, 0.0
    for number in range(1500):
        costs = Costs(Way(ahead_s * rng.uniform(0.8, 1.2), 15), Way(plain_s * rng.uniform(0.8, 1.2), STEPS))
        before_s = program.now_s
        program.infer(costs)
        if number > TRIAL_PAUSE + 2 * TRIALS:
            spent_s += program.now_s - before_s - 5.0
            first = FIRST_TRIP / STEPS  # which is run ahead in any case
            best_s += first * costs.ahead.seconds + (1.0 - first) * min(costs.ahead.seconds, costs.plain.seconds)
    assert spent_s < 1.15 * best_s


def test_the_wait_for_another_trial_has_a_bound() -> None:
    program = Program()
    program.do(20 * MAX_TRIAL_PAUSE, LOOP)
    assert any(program.do(MAX_TRIAL_PAUSE + RECENT, LOOP))


def test_over_another_link_it_is_tried_at_once() -> None:
    program = Program()
    program.do(TRIAL_PAUSE + 2 * TRIALS, LOOP)
    program.do(2 * TRIAL_PAUSE + 2 * TRIALS, LOOP)  # and a second time
    assert not any(program.do(2 * TRIAL_PAUSE, LOOP))
    slow = Costs(Way(0.35, 12), Way(0.5, STEPS))
    program.do(RECENT + 2 * TRIALS, slow)
    assert all(program.do(TRIAL_PAUSE, slow))
    program.do(RECENT + 2 * TRIALS, LOOP)
    assert not any(program.do(TRIAL_PAUSE, LOOP))


def test_inferences_that_continue_with_another_step_are_judged_separately() -> None:
    program = Program()
    slow = Costs(Way(0.3, 12), Way(0.5, STEPS))
    for _ in range(TRIAL_PAUSE + 2 * TRIALS):
        program.infer(LOOP, "cloud")
        program.infer(slow, "image")
    for _ in range(TRIAL_PAUSE // 2):
        assert not program.infer(LOOP, "cloud")
        assert program.infer(slow, "image")


def test_learned_inferences_need_few_round_trips() -> None:
    """The first ones of each inference are learnt from, so that it goes on from there in the next."""
    program = Program()
    program.do(TRIAL_PAUSE + 2 * TRIALS, LOOP)
    assert not program.infer(LOOP)
    assert all(program.do(300, GOOD))
