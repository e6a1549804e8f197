"""What a server takes of a divided plan and an undivided one: whichever answers more in time."""

from __future__ import annotations

import random
from typing import List, Tuple

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.server.pool import choose, simulate
from edge_offload.server.pool.choose import plan_undivided
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.plan import PoolPlan, plan_most
from edge_offload.server.pool.profile import BlockProfile
from tests.server.pool.pool_nets import a_demand, a_network

MARGIN = 0.1


def in_time(plan: PoolPlan, demand: Demand, cluster: Cluster, load: float, seed: int) -> float:
    times = simulate.poisson_arrivals(load, 8000 / load, np.random.default_rng(seed))
    name, network = demand.network.name, demand.network
    return simulate.simulate_load(plan, {name: network}, cluster, {name: demand.slo_s}, {name: times}).attainment[name]


def close_ones(source: random.Random, count: int) -> List[Tuple[Demand, Cluster, PoolPlan, PoolPlan]]:
    """Networks that promise little more in stages than undivided."""
    pairs: List[Tuple[Demand, Cluster, PoolPlan, PoolPlan]] = []
    while len(pairs) < count:
        cluster = Cluster({"H": 6, "L": 12}, 1.25e9, {"H": 4, "L": 2}, 0.8)
        demand = a_demand(source, a_network(source, "a", ("H", "L"), 5, 4, 1))
        try:
            best, undivided = plan_most([demand], cluster, MARGIN, 3), plan_undivided([demand], cluster, MARGIN)
        except BadInput:
            continue
        if 1.0 < best.objective / undivided.objective < choose.CLOSE:
            pairs.append((demand, cluster, best, undivided))
    return pairs


def test_what_is_taken_answers_as_much_in_time_as_either_plan_with_other_arrivals() -> None:
    passed_over = 0
    for demand, cluster, best, undivided in close_ones(random.Random(8), 10):
        taken = choose.plan_steady([demand], cluster, MARGIN, 3)
        assert taken.pipelines in (best.pipelines, undivided.pipelines)
        if taken.passed_over:
            passed_over += 1
            assert taken.passed_over == best.objective > taken.objective == undivided.objective
        load = 1.03 * undivided.objective
        of_best, of_undivided = (in_time(plan, demand, cluster, load, 1) for plan in (best, undivided))
        of_taken = of_undivided if taken.passed_over else of_best
        assert of_taken > max(of_best, of_undivided) - 0.05
    assert 2 <= passed_over <= 8


def test_a_far_better_or_sufficient_plan_is_chosen_untried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulate, "simulate_load", lambda *_: pytest.fail("there is nothing to try"))
    half = np.array([[0.010], [0.010]])
    network = BlockProfile("a", {"H": {1: half * [[1], [9]]}, "L": {1: half * [[9], [1]]}}, np.array([1e3]))
    cluster = Cluster({"H": 2, "L": 2}, 1e9)
    for slo_s in (0.05, 0.5):  # undivided it takes 0.1 s
        taken = choose.plan_steady([Demand(network, slo_s)], cluster, MARGIN, 2)
        assert taken == plan_most([Demand(network, slo_s)], cluster, MARGIN, 2)
        assert [len(pipeline.stages) for pipeline in taken.pipelines] == [2]


def test_an_undivided_plan_has_one_pipeline_for_each_class_and_batch() -> None:
    network = a_network(random.Random(3), "a", ("H", "L"), 3, 4, 1)
    plan = plan_undivided([Demand(network, 0.5)], Cluster({"H": 5, "L": 9}, 1e9), MARGIN)
    shapes = [(pipeline.stages[0].gpu, pipeline.stages[0].batch) for pipeline in plan.pipelines]
    assert len(shapes) == len(set(shapes)) == 2
    assert plan.gpus == {"H": 5, "L": 9}
    assert sum(pipeline.rate for pipeline in plan.pipelines) == pytest.approx(plan.objective)
