"""Plans by the server's rows of every operator: what other plans are among them, and that moving rows pays."""

from __future__ import annotations

import random

import pytest
import torch

from edge_offload.ir import Ref
from edge_offload.split.model.check import check_plan
from edge_offload.split.model.cost import CostModel, LinkCosts, OperatorCost
from edge_offload.split.model.locality import LocalityMap, analyse_locality
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.shares import refine_rows, server_rows, split_ranges
from edge_offload.split.planners.space import RowSplit, Space
from tests.split.split_chains import Chain
from tests.split.split_plans import random_plan


def blocks(count: int, rows: int) -> LocalityMap:
    """Residual blocks of two convolutions."""
    chain = Chain(torch.randn(1, 2, rows, 3, dtype=torch.double))
    entry = chain.call("aten.relu.default", chain.tail)
    for _ in range(count):
        for _ in range(2):
            weight = torch.randn(2, 2, 3, 1, dtype=torch.double)
            made = chain.call("aten.conv2d.default", chain.tail, weight, None, [1, 1], [1, 0])
        entry = chain.call("aten.add.Tensor", Ref(made), Ref(entry))
    return analyse_locality(chain.finish(), {0: 2})


def space_of(located: LocalityMap, rate: float = 300.0) -> Space:
    robot = tuple(OperatorCost(0.001, 0.02) for _ in located.operators)
    server = tuple(OperatorCost(0.0002, 0.004) for _ in located.operators)
    return Space(CostModel(located, robot, server, link=LinkCosts(0.002, 0.001)), [rate])


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("way", ["own", "handed", "kept"])
def test_splits_of_other_searches_are_recovered_from_their_rows(flipped: bool, way: str) -> None:
    space = space_of(blocks(3, 16))
    middle = RowSplit(6, 0.5, flipped, sent=way == "handed", fixed_share=way == "kept")
    for row_splits in (space.device_only, space.server_only, (middle, RowSplit(space.last, 0.0))):
        scored = space.score_row_splits(row_splits)
        rows, counted_back = server_rows(space, scored)
        rescored = space.score_ranges(*split_ranges(space, rows, counted_back))
        assert (rescored.robot, rescored.server) == (scored.robot, scored.server)


def test_a_row_less_on_the_server_is_made_by_the_robot_and_handed_over() -> None:
    space = space_of(blocks(2, 16))
    rows = [16] * len(space.located.operators)
    rows[1] = 10
    robot, server = split_ranges(space, rows, False)
    assert (robot[1], server[1]) == ((10, 16), (0, 10))
    assert robot.keys() == {0, 1}
    assert server[2] == (0, 16)
    robot, server = split_ranges(space, rows, True)
    assert (robot[1], server[1]) == ((0, 6), (6, 16))


def test_moving_rows_makes_plans_faster_and_keeps_them_right() -> None:
    space = space_of(blocks(3, 16))
    start = [
        min(
            (space.score_row_splits(space.device_only), space.score_row_splits(space.server_only)),
            key=lambda s: s.makespan_s[0],
        )
    ]
    few, many = (refine_rows(space, Objective(), start, tries, random.Random(0))[0] for tries in (5, 600))
    assert many.makespan_s[0] < 0.9 * start[0].makespan_s[0]
    assert many.makespan_s[0] <= few.makespan_s[0] <= start[0].makespan_s[0]
    check_plan(space.make_plan(many, 300.0), space.located, space.identity)


def test_what_moves_from_any_plan_is_a_plan_and_no_slower() -> None:
    located = blocks(2, 12)
    space = space_of(located)
    for seed in range(8):
        plan = random_plan(located, random.Random(seed))
        steps = [{step.operator: (step.low, step.high) for step in plan.steps_of(side)} for side in Side]
        start = space.score_ranges(steps[0], steps[1])
        (refined,) = refine_rows(space, Objective(), [start], 40, random.Random(seed))
        assert refined.makespan_s[0] <= start.makespan_s[0]
        check_plan(space.make_plan(refined, 300.0), located, space.identity)


def test_moves_that_cost_a_little_lead_out_of_a_plan_that_no_move_betters() -> None:
    space = space_of(blocks(4, 20), 600.0)
    (stuck,) = refine_rows(space, Objective(), [space.score_row_splits(space.server_only)], 300, random.Random(1))
    for seed in range(3):
        plain, daring = (refine_rows(space, Objective(), [stuck], 400, random.Random(seed), slack=slack)[0]
                         for slack in (0.0, 0.03))  # fmt: skip
        assert plain.makespan_s[0] == pytest.approx(stuck.makespan_s[0])
        assert daring.makespan_s[0] < 0.95 * stuck.makespan_s[0]
        check_plan(space.make_plan(daring, 600.0), space.located, space.identity)


@pytest.mark.parametrize("slack", [0.002, 0.1, 1.0])
def test_moves_that_cost_never_end_in_a_worse_plan(slack: float) -> None:
    space = space_of(blocks(3, 16))
    space = Space(space.model, [100.0, 300.0, 900.0])
    starts = [
        space.score_row_splits(row_splits) for row_splits in (space.server_only, space.device_only, (RowSplit(6, 0.5),))
    ]
    for start in starts:
        refined = refine_rows(space, Objective(), [start] * 3, 60, random.Random(0), slack=slack)
        for at, scored in enumerate(refined):
            assert scored.makespan_s[at] <= start.makespan_s[at]


def test_search_stops_on_request() -> None:
    space = space_of(blocks(2, 12))
    start = [space.score_row_splits(space.server_only)]
    assert refine_rows(space, Objective(), start, 500, random.Random(0), lambda: True) == start
