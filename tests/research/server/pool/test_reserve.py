"""Reservations and the scheduler on them: nothing is used twice at a time, nothing is late, nothing is lost."""

from __future__ import annotations

import itertools
import random
from typing import Dict, List, Tuple

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.server.pool import simulate
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.links import LinkSchedule
from edge_offload.server.pool.plan import PlannedPipeline, PlannedStage, PoolPlan, plan_most
from edge_offload.server.pool.profile import BlockProfile
from edge_offload_research.server.pool import reserved
from edge_offload_research.server.pool.reserve import Batcher, Dispatch, Route, StageTable, Use, routes_of
from tests.server.pool.pool_nets import a_cluster, a_demand, a_network


def a_plan(source: random.Random) -> Tuple[PoolPlan, Dict[str, BlockProfile], Cluster, Demand]:
    """A plan that divides a network."""
    while True:
        cluster = a_cluster(source, ("H", "L"), 6)
        network = a_network(source, "a", ("H", "L"), 5, 4, 2)
        demand = a_demand(source, network)
        try:
            plan = plan_most([demand], cluster, 0.4, 3)
        except BadInput:
            continue
        if any(len(pipeline.stages) > 1 for pipeline in plan.pipelines):
            return plan, {"a": network}, cluster, demand


def served(plan: PoolPlan, routes: List[Route], times: np.ndarray, slo_s: float) -> Tuple[List[Dispatch], List[int]]:
    """What a batcher lets in and drops for requests at ``times``."""
    batcher, admitted, dropped, next_s = Batcher(routes), [], [], np.inf
    for request, time in enumerate([*times, np.inf]):
        while next_s < time:
            more, lost, next_s = batcher.decide_batches(next_s)
            admitted += more
            dropped += lost
        if request < len(times):
            batcher.add_request(request, time + slo_s)
            more, lost, next_s = batcher.decide_batches(time)
            admitted += more
            dropped += lost
    assert len(batcher) == 0
    return admitted, dropped


def test_no_gpu_or_link_is_reserved_twice_and_admitted_requests_are_in_time() -> None:
    source = random.Random(1)
    dropped_once = False
    for number in range(25):
        plan, networks, cluster, demand = a_plan(source)
        routes = routes_of(plan, networks, cluster)["a"]
        times = simulate.poisson_arrivals(plan.objective * source.uniform(0.3, 1.6), 1.5, np.random.default_rng(number))
        admitted, dropped = served(plan, routes, times, demand.slo_s)
        dropped_once |= bool(dropped)
        requests = [request for dispatch in admitted for request in dispatch.requests]
        assert sorted(requests + dropped) == list(range(len(times))), "each is let in or dropped, once"
        computing: Dict[Tuple[int, int], List[Tuple[float, float]]] = {}
        moving: Dict[Tuple[str, int], List[Tuple[float, float]]] = {}
        for dispatch in admitted:
            assert dispatch.way.batch == len(dispatch.requests) <= dispatch.route.batch
            assert dispatch.way.end <= times[dispatch.requests[0]] + demand.slo_s + 1e-6
            before = None
            for stage, use in zip(dispatch.route.stages, dispatch.way.uses):
                compute_s = stage.compute_s[dispatch.way.batch - 1]
                computing.setdefault((id(stage), use.worker), []).append((use.end - compute_s, use.end))
                if before is not None:
                    assert use.moved - use.begin == pytest.approx(stage.transfer_s * dispatch.way.batch)
                    moving.setdefault(("up", before), []).append((use.begin, use.moved))
                    moving.setdefault(("down", int(stage.machines[use.worker])), []).append((use.begin, use.moved))
                assert use.moved <= use.end - compute_s + 1e-9
                before = int(stage.machines[use.worker])
        for spans in itertools.chain(computing.values(), moving.values()):
            spans.sort()
            assert all(begin >= end - 1e-9 for (_, end), (begin, _) in zip(spans, spans[1:]))
    assert dropped_once


def test_a_way_is_the_earliest_of_all_workers_stage_by_stage() -> None:
    source = np.random.default_rng(2)
    for _ in range(200):
        links = LinkSchedule(4)
        for spans in (*links.up, *links.down):
            spans += in_use(source)
        stages = [
            StageTable(
                source.integers(0, 4, 5), source.uniform(0, 3, 5), np.cumsum(source.uniform(0.1, 1, 3)), transfer
            )
            for transfer in (0.0, 0.3)
        ]
        shape = tuple(PlannedStage(n, n + 1, "H", 1, 3, 5) for n in range(2))
        way = Route(PlannedPipeline("a", 1.0, 1.0, shape), stages, links).probe_way(1.0, 2)
        first = min(max(1.0, free) + stages[0].compute_s[1] for free in stages[0].free)
        assert way.uses[0].end == pytest.approx(first)
        sender = int(stages[0].machines[way.uses[0].worker])
        ends = [
            max(first_gap([*links.up[sender], *links.down[machine]], first, 0.6) + 0.6, free) + stages[1].compute_s[1]
            for machine, free in zip(stages[1].machines, stages[1].free)
        ]
        assert way.end == pytest.approx(min(ends))


def in_use(source: np.random.Generator) -> List[Tuple[float, float]]:
    """Times from and to, apart from each other."""
    ends = np.cumsum(source.uniform(0.05, 0.9, 2 * source.integers(0, 5)))
    return list(zip(ends[::2].tolist(), ends[1::2].tolist()))


def first_gap(spans: List[Tuple[float, float]], at: float, compute_s: float) -> float:
    """The first time that is free for so long: it is ``at``, or an end of something."""
    free = [
        begin
        for begin in (at, *(end for _, end in spans if end > at))
        if all(end <= begin + 1e-9 or start >= begin + compute_s - 1e-9 for start, end in spans)
    ]
    return min(free)


def test_a_transfer_that_comes_later_blocks_none_that_is_over_before_it() -> None:
    links = LinkSchedule(2)
    links.reserve_span(0, 1, 5.0, 6.0, 0.0)
    assert links.earliest_start(0, 1, 1.0, 2.0) == 1.0
    assert links.earliest_start(0, 0, 1.0, 4.5) == 6.0, "it would not be over before it"
    assert links.earliest_start(1, 1, 4.5, 1.0) == 6.0, "the receiver is busy, too"
    links.reserve_span(0, 1, 1.0, 4.5, 1.0)
    assert links.earliest_start(0, 1, 2.0, 0.5) == 4.5
    links.reserve_span(0, 1, 8.0, 9.0, 7.0)
    assert links.up[0] == links.down[1] == [(8.0, 9.0)], "what is over is forgotten"


def two_routes() -> Tuple[List[Route], Batcher]:
    """A slow GPU that is free, and a fast one that is free at 2; both take batches of 2."""
    routes = [
        Route(
            PlannedPipeline("a", 1.0, 1.0, (PlannedStage(0, 1, "H", 1, 2, 1),)),
            [StageTable(np.array([0]), np.array([free]), np.array(compute_s), 0.0)],
            LinkSchedule(1),
        )
        for free, compute_s in ((0.0, [3.0, 5.0]), (2.0, [1.0, 1.5]))
    ]
    return routes, Batcher(routes)


def test_a_full_batch_goes_where_it_is_in_time_rather_than_a_smaller_one_where_it_waits_less() -> None:
    routes, batcher = two_routes()
    for request in range(2):
        batcher.add_request(request, 4.0)
    ((dispatch,), dropped, _) = batcher.decide_batches(0.0)
    assert (dispatch.route, dispatch.requests, dropped) == (routes[1], (0, 1), [])


def test_where_no_full_batch_is_in_time_a_smaller_one_goes_where_it_waits_least() -> None:
    routes, batcher = two_routes()
    for request in range(2):
        batcher.add_request(request, 3.2)
    admitted, dropped, _ = batcher.decide_batches(0.0)
    assert [(dispatch.route, dispatch.requests) for dispatch in admitted] == [(routes[0], (0,)), (routes[1], (1,))]
    assert not dropped


def test_nothing_is_dropped_that_another_route_answers_in_time() -> None:
    routes, batcher = two_routes()
    routes[1].stages[0].free[0] = 0.5
    batcher.add_request(0, 1.6)
    admitted, dropped, _ = batcher.decide_batches(0.0)
    assert [(dispatch.route, dispatch.requests) for dispatch in admitted] == [(routes[1], (0,))]
    assert not dropped


def test_a_light_load_is_all_in_time_and_an_overload_is_served_up_to_the_rate() -> None:
    source = random.Random(3)
    for number in range(6):
        plan, networks, cluster, demand = a_plan(source)
        cluster = Cluster(cluster.gpus, cluster.bytes_per_s, cluster.per_machine, 1.0)
        plan = plan_most([demand], cluster, 0.4, 3)

        def attained(load: float, plan: PoolPlan = plan, cluster: Cluster = cluster, number: int = number) -> float:
            times = simulate.poisson_arrivals(plan.objective * load, 6.0, np.random.default_rng(number))
            return reserved.run(plan, networks, cluster, {"a": demand.slo_s}, {"a": times}).attainment["a"]  # noqa: B023

        assert attained(0.2) > 0.97
        assert 0.3 < attained(2.0) < 0.62


def test_stages_that_are_slower_are_reported_to_the_scheduler_which_meets_more_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = random.Random(4)
    plan, networks, cluster, demand = a_plan(source)
    times = simulate.poisson_arrivals(plan.objective * 0.85, 10.0, np.random.default_rng(1))

    def attained() -> float:
        return reserved.run(plan, networks, cluster, {"a": demand.slo_s}, {"a": times}, lambda: 1.1).attainment["a"]

    before = attained()
    monkeypatch.setattr(Route, "report_end", lambda *_: None)
    assert attained() < before


def test_feedback_moves_what_waits_behind_once_and_in_the_stages_after() -> None:
    stages = [
        StageTable(np.array([0]), np.zeros(1), np.array([compute_s]), transfer)
        for compute_s, transfer in ((1, 0), (2, 1))
    ]
    shape = tuple(PlannedStage(n, n + 1, "H", 1, 1, 1) for n in range(2))
    route = Route(PlannedPipeline("a", 1.0, 1.0, shape), stages, LinkSchedule(1))
    ways = [route.probe_way(0.0, 1)]
    route.reserve_way(ways[0])
    ways.append(route.probe_way(0.0, 1))
    route.reserve_way(ways[1])
    (first, after), (second, last) = (way.uses for way in ways)
    assert [use.end for use in (first, after, second, last)] == [1.0, 4.0, 2.0, 6.0]
    route.report_end(0, first, 1.5)
    assert [use.end for use in (after, second, last)] == [4.5, 2.5, 6.5]
    assert (stages[0].free[0], stages[1].free[0]) == (2.5, 6.5)
    route.report_end(0, second, 2.5)
    assert (stages[0].free[0], stages[1].free[0]) == (2.5, 6.5), "it was late as expected"
    route.report_end(1, after, 4.0)
    assert (last.end, stages[1].free[0]) == (6.0, 6.0)
    stages[1].occupy_worker(0, np.inf)
    route.report_end(1, last, 6.0)
    assert np.isinf(stages[1].free[0]), "who is not there does not come back by what ends"


def test_an_early_end_does_not_reserve_for_requests_that_have_not_arrived() -> None:
    stage = StageTable(np.array([0]), np.zeros(1), np.array([1.0]), 0.0)
    route = Route(PlannedPipeline("a", 1.0, 1.0, (PlannedStage(0, 1, "H", 1, 1, 1),)), [stage], LinkSchedule(1))
    soon, later = (route.probe_way(0.0, 1), Use(0, 5.0, 5.0, 6.0, 1.0))
    route.reserve_way(soon)
    stage.turns[0].append(later)
    stage.settle_worker(0)
    route.report_end(0, soon.uses[0], 0.5)
    assert later.end == stage.free[0] == 6.0
