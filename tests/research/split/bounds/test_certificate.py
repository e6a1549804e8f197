"""Certificates: equal to what trying every replicated split gives, and honest about bad plans."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edge_offload.split.model.check import check_plan
from edge_offload.split.model.complete import complete_plan
from edge_offload.split.model.cost import CodecCost, CostModel, LinkCosts, OperatorCost
from edge_offload.split.model.locality import analyse_locality
from edge_offload.split.model.objective import Objective
from edge_offload.split.planners.shares import find_waists
from edge_offload.split.planners.space import RowSplit, Space
from edge_offload.split.planners.table import Effort, plan_table
from edge_offload_research.split.bounds.certificate import TOLERANCE, certify_table
from tests.split.split_chains import Chain


def network(seed: int) -> Chain:
    """Convolutions with a residual branch and a pooling, down to a global head."""
    chooser = np.random.default_rng(seed)
    chain = Chain(torch.randn(1, 2, 12, 4, dtype=torch.double))
    for _ in range(2):
        kernel = int(chooser.choice([1, 3, 5]))
        weight = torch.randn(2, 2, kernel, 1, dtype=torch.double)
        chain.call("aten.conv2d.default", chain.tail, weight, None, [1, 1], [kernel // 2, 0])
    entry = chain.tail
    chain.call("aten.relu.default", entry)
    chain.call("aten.add.Tensor", entry, chain.tail)
    chain.call("aten.max_pool2d.default", chain.tail, [2, 1])
    chain.call("aten.mean.dim", chain.tail, [2, 3])
    return chain


def space_of(seed: int) -> Space:
    located = analyse_locality(network(seed).finish(), {0: 2})
    chooser = np.random.default_rng(seed)
    robot = tuple(OperatorCost(float(chooser.uniform(0, 0.1)), float(chooser.uniform(0.02, 0.1)))
                  for _ in located.operators)  # fmt: skip
    server = tuple(OperatorCost(cost.launch_s / 3, cost.row_s / 5) for cost in robot)
    codecs = {0: (CodecCost("half", 2.0, 2e3, 1e4),)} if seed % 2 else {}
    model = CostModel(located, robot, server, codecs, LinkCosts(0.002, 0.001), request_s=0.01)
    return Space(model, [100.0, 400.0, 1500.0, 6000.0])


def every_replicated_split(space: Space, objective: Objective) -> np.ndarray:
    best = np.full(len(space.bandwidths), np.inf)
    places = [waist.after for waist in find_waists(space.located)]
    end = RowSplit(space.last, 0.0)
    options = [(), (end,)]
    for first in places:
        start = (RowSplit(first, 1.0),) if first >= 0 else ()
        options.append((*start, end))
        for last in (place for place in places if place > first):
            length = space.located.operators[last].length
            options += [(*start, RowSplit(last, rows / length, flipped, *halos), end)
                        for rows in range(1, length) for flipped in (False, True)
                        for halos in ((False, False), (True, False), (False, True))]  # fmt: skip
    for row_splits in options:
        scored = space.score_row_splits(row_splits)
        pairs = zip(scored.makespan_s, scored.energy_j)
        best = np.minimum(best, [objective.compute_cost(float(s), float(j)) for s, j in pairs])
    return best


def test_waists_are_where_one_value_is_handed_on() -> None:
    located = space_of(0).located
    assert [(waist.after, waist.value) for waist in find_waists(located)][:2] == [(-1, 0), (0, located.made_by[0][0])]
    assert 2 not in [waist.after for waist in find_waists(located)], "behind the branch two values are handed on"


@pytest.mark.parametrize("flipped", [False, True])
def test_halos_that_are_handed_over_are_computed_once(flipped: bool) -> None:
    space = space_of(0)
    place = find_waists(space.located)[-1].after
    twice, once = (
        space.split_ranges((RowSplit(place, 0.5, flipped, handed), RowSplit(space.last, 0.0)))
        for handed in (False, True)
    )

    def both(ranges) -> int:
        robot, server = ranges
        return sum(
            max(0, min(robot[k][1], server[k][1]) - max(robot[k][0], server[k][0])) for k in robot if k in server
        )

    assert both(twice) > 0
    assert both(once) == 0
    assert once[0] == twice[0], "the robot's rows are its own halos', too"
    for row_splits in (twice, once):
        check_plan(complete_plan(space.located, *row_splits, identity=space.identity), space.located, space.identity)


@pytest.mark.parametrize("flipped", [False, True])
def test_a_server_that_keeps_its_share_computes_no_halos_and_is_handed_them(flipped: bool) -> None:
    space = space_of(0)
    place = find_waists(space.located)[-1].after
    end = RowSplit(space.last, 0.0)
    ranges = space.split_ranges((RowSplit(place, 0.5, flipped), end))
    robot, server = space.split_ranges((RowSplit(place, 0.5, flipped, fixed_share=True), end))
    halos = 0
    for index, (low, high) in server.items():
        length = space.located.operators[index].length
        if index <= place:
            assert (high <= length - length // 2) if flipped else (low >= length // 2)
            halos += ranges[1][index][1] - ranges[1][index][0] - (high - low)
            assert robot[index][0] <= ranges[0][index][0]
            assert ranges[0][index][1] <= robot[index][1], "its own halos, too"
    assert halos > 0
    check_plan(complete_plan(space.located, robot, server, identity=space.identity), space.located, space.identity)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["latency", "energy", "weighted", "deadline"])
@pytest.mark.parametrize("name", ["device_only", "loss_beam"])
def test_gap_is_the_distance_from_the_best_of_the_family(seed: int, kind: str, name: str) -> None:
    space, objective = space_of(seed), Objective(kind, deadline_s=2.0)
    table = plan_table(space, name, objective, Effort(seconds=60.0, evaluations=60))
    gaps = certify_table(Space(space.model, space.bandwidths), table, objective)
    best = every_replicated_split(space, objective)
    for index, gap in enumerate(gaps):
        cost = objective.compute_cost(table.predicted_s[index], table.predicted_j[index])
        assert gap is not None
        true = cost / best[index] - 1.0
        assert true - 1e-9 <= gap <= max(true, TOLERANCE / (1 - TOLERANCE)) + 1e-9
        if name == "device_only" and index == 3 and kind != "deadline":
            assert gap > 0.5, "a bad plan has a large gap"


@pytest.mark.parametrize("seed", range(3))
def test_the_default_planner_is_within_the_required_three_percent(seed: int) -> None:
    space = space_of(seed)
    table = plan_table(space, "loss_beam", effort=Effort(seconds=60.0, evaluations=400))
    assert max(certify_table(Space(space.model, space.bandwidths), table, Objective())) <= 0.03
