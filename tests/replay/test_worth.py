"""Whether running ahead is worth it is found out by doing both; costs are made by hand."""

from __future__ import annotations

from typing import Dict, List, Tuple

import pytest

from edge_offload.replay.worth import FEWEST, MOST_PATIENCE, PATIENCE, RECENT, TRIALS, Worth

#: Seconds, round trips and steps rolled back of an inference, by whether it is run ahead.
Costs = Dict[bool, Tuple[float, int, int]]
STEPS = 20
#: An inference that is run ahead after one that was not counts for nothing.
TRIAL = 3 * TRIALS
LOOP: Costs = {True: (0.144, 15, 6), False: (0.1, 20, 0)}


class Program:
    """Does inferences on a clock of its own."""

    def __init__(self, steps: int = STEPS) -> None:
        self.now_s = 0.0
        self.trips = self.undone = 0
        self.steps = steps
        self.worth = Worth(lambda: self.now_s)

    def infer(self, costs: Costs, kind: str = "image") -> bool:
        """Do one; says whether it was run ahead."""
        ahead = self.worth.begin(kind, self.trips, self.undone)
        self.now_s += 5.0  # until the host reads: that is no cost of either
        seconds, trips, undone = costs[ahead]
        for _ in range(self.steps):
            self.worth.entered()
            self.now_s += seconds / self.steps
            self.worth.done(True)
        self.trips, self.undone = self.trips + trips, self.undone + undone
        return ahead

    def do(self, count: int, costs: Costs) -> List[bool]:
        return [self.infer(costs) for _ in range(count)]


def test_what_costs_more_than_it_saves_ends() -> None:
    program = Program()
    assert all(program.do(PATIENCE, LOOP))  # so much for learning
    assert sum(program.do(TRIAL, LOOP)) == 2 * TRIALS
    later = program.do(400, LOOP)
    assert sum(later) <= 8 * TRIALS  # tried again, ever more seldom


@pytest.mark.parametrize(
    "costs",
    [
        {True: (0.030, 1, 0), False: (0.010, 20, 0)},  # one round trip is left: whatever else it is, it is not those
        {True: (0.050, 5, 0), False: (0.010, 20, 0)},  # a quarter of the steps: most come ahead
    ],
)
def test_where_few_round_trips_are_left_nothing_is_tried(costs: Costs) -> None:
    assert all(Program().do(300, costs))


def test_where_the_link_is_slow_a_trial_is_short() -> None:
    program = Program()
    costs: Costs = {True: (0.3, 12, 4), False: (0.5, 20, 0)}
    done = program.do(PATIENCE + 1 + 3 * FEWEST, costs)
    assert done.count(False) == FEWEST
    assert program.do(1000, costs).count(False) < 8 * FEWEST


def test_a_network_that_is_rolled_back_each_time_is_not_run_ahead() -> None:
    program = Program(steps=1)
    costs: Costs = {True: (0.08, 1, 1), False: (0.04, 1, 0)}
    program.do(PATIENCE + TRIAL, costs)
    assert not any(program.do(PATIENCE, costs))


def test_the_wait_for_another_trial_has_a_bound() -> None:
    program = Program()
    program.do(20 * MOST_PATIENCE, LOOP)
    assert any(program.do(MOST_PATIENCE + 2, LOOP))


@pytest.mark.parametrize("later_s", [0.3, 0.025])
def test_other_inferences_are_tried_at_once(later_s: float) -> None:
    """As with another network, another link, or another scene."""
    program = Program()
    program.do(PATIENCE + TRIAL, LOOP)
    program.do(2 * PATIENCE + TRIAL, LOOP)  # and a second time
    assert not any(program.do(2 * PATIENCE, LOOP))
    later: Costs = {True: (later_s / 4, 1, 0), False: (later_s, 20, 0)}
    program.do(RECENT + TRIAL, later)
    assert all(program.do(300, later))


def test_kinds_of_inferences_are_judged_apart() -> None:
    program = Program()
    good: Costs = {True: (0.03, 1, 0), False: (0.1, 20, 0)}
    for _ in range(PATIENCE + TRIAL):
        program.infer(LOOP, "cloud")
        assert program.infer(good, "image")
    assert not program.infer(LOOP, "cloud")
    assert program.infer(good, "image")
