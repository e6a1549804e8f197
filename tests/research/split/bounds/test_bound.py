"""The bound over all plans: below the optimum that brute force finds, and below any plan of larger networks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import List

import numpy as np
import pytest
import torch

from edge_offload.errors import BadInput, Unsupported
from edge_offload.ir import Ref
from edge_offload.split.model.cost import CodecCost, CostModel, LinkCosts, OperatorCost
from edge_offload.split.model.locality import LocalityMap, analyse_locality
from edge_offload.split.model.objective import Objective
from edge_offload.split.planners.space import Space
from edge_offload.split.planners.table import Effort, plan_table
from edge_offload_research.split.bounds.bound import Limits, improve_and_bound, lower_bound
from edge_offload_research.split.bounds.clocks import Clocks, load_library
from edge_offload_research.split.bounds.counts import Counts
from edge_offload_research.split.bounds.labels import Search, make_potentials
from edge_offload_research.split.model.exactness import random_split
from edge_offload_research.split.model.plan_cost import simulate_plan
from edge_offload_research.split.planners.underestimate import least_footprints, strictly_needed
from tests.split.branch_and_bound import solve
from tests.split.split_chains import Chain
from tests.split.split_plans import random_plan

RATES = (60.0, 300.0, 2000.0)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double)


def network(seed: int, rows: int, operators: int) -> LocalityMap:
    """Convolutions, pooling, strided and residual branches, with a global head or without."""
    chooser, chain = random.Random(seed), Chain(rand(1, 2, rows, 3))

    def convolve(x: Ref, kernel: int, stride: int = 1) -> int:
        return chain.call("aten.conv2d.default", x, rand(2, 2, kernel, 1), None, [stride, 1], [kernel // 2, 0])

    while len(chain.operators) < operators - 1:
        kind = chooser.choice(["convolution", "convolution", "relu", "residual", "strided", "pool"])
        entry, remaining = chain.tail, operators - 1 - len(chain.operators)
        length = chain.tensors[chain.last].shape[2]
        if kind == "convolution":
            convolve(entry, chooser.choice([1, 3, 5]))
        elif kind == "relu":
            chain.call("aten.relu.default", entry)
        elif kind == "pool" and length >= 6:
            chain.call("aten.max_pool2d.default", entry, [2, 1])
        elif kind == "residual" and remaining >= 2:
            made = convolve(entry, 3)
            chain.call("aten.add.Tensor", Ref(made), entry)
        elif kind == "strided" and remaining >= 3 and length >= 4:
            one, other = convolve(entry, 3, 2), convolve(entry, 1, 2)
            chain.call("aten.add.Tensor", Ref(one), Ref(other))
    if chooser.random() < 0.6:
        chain.call("aten.mean.dim", chain.tail, [2, 3])
    return analyse_locality(chain.finish(), {0: 2})


def model_of(located: LocalityMap, seed: int) -> CostModel:
    chooser = np.random.default_rng(seed)
    factor = float(chooser.choice([1.0, 3.0, 8.0]))
    robot = tuple(OperatorCost(float(chooser.uniform(0, 0.1)) * int(chooser.integers(2)),
                               float(chooser.uniform(0.005, 0.1))) for _ in located.operators)  # fmt: skip
    server = tuple(OperatorCost(cost.launch_s / factor * float(chooser.uniform(0.5, 1.5)),
                                cost.row_s / factor * float(chooser.uniform(0.5, 1.5))) for cost in robot)  # fmt: skip
    codecs = {number: (CodecCost("half", 2.0, 2e3, 1e4, 3e3, 1e4),) for number in (0, 2, 4) if chooser.random() < 0.5}
    link = LinkCosts(float(chooser.choice([0, 0.002, 0.05])), float(chooser.choice([0, 0.001, 0.01])),
                float(chooser.choice([1.0, 2.0])))  # fmt: skip
    return CostModel(located, robot, server, codecs, link, request_s=float(chooser.choice([0, 0.02])))


def bound(space: Space, makespan: float, labels: int = 20000, gap: float = 0.0, width: float = 0.004) -> float:
    return lower_bound(space, 0, makespan, Limits(gap, labels, width))


@pytest.mark.parametrize("seed", range(8))
def test_bound_brute_force_and_planner_are_in_order(seed: int) -> None:
    located = network(seed, rows=3, operators=4)
    model = model_of(located, seed)
    for rate in RATES:
        space = Space(model, [rate])
        optimum = float(solve(space, Objective()).best.makespan_s[0])
        planned = plan_table(space, effort=Effort(seconds=60.0, evaluations=40)).predicted_s[0]
        for labels in (20000, 5):
            bound_s = bound(space, planned, labels)
            assert 0.0 < bound_s <= optimum * (1 + 1e-7)
        assert optimum <= planned * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_no_random_plan_of_a_larger_network_is_below_the_bound(seed: int) -> None:
    located = network(seed, rows=20, operators=12)
    model = model_of(located, seed)
    for rate in RATES:
        space = Space(model, [rate])
        planned = plan_table(space, effort=Effort(seconds=60.0, evaluations=40)).predicted_s[0]
        bound_s = bound(space, planned, labels=300)
        assert bound_s <= planned * (1 + 1e-7)
        for attempt in range(15):
            for make in (random_plan, random_split):
                plan = make(located, random.Random(100 * seed + attempt))
                assert bound_s <= simulate_plan(plan, model, rate).makespan_s * (1 + 1e-7)


@pytest.fixture(scope="module")
def compiled() -> None:
    try:
        load_library()
    except Unsupported as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_by_clocks_is_below_what_brute_force_finds_and_close(seed: int, compiled: None) -> None:
    located = network(seed, rows=3, operators=4)
    model = model_of(located, seed)
    for rate in RATES:
        space = Space(model, [rate])
        optimum = float(solve(space, Objective()).best.makespan_s[0])
        clocks = Clocks(Counts(space, rate))
        assert 0.8 * optimum < clocks.least_makespan(3.0 * optimum) <= optimum * (1 + 1e-7)
        assert clocks.least_makespan(1.01 * optimum) <= optimum * (1 + 1e-7), "left out what it must not"


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_of_a_larger_network_is_below_the_bound_by_clocks(seed: int, compiled: None) -> None:
    located = network(seed, rows=16, operators=12)
    model = model_of(located, seed)
    for rate in RATES:
        space = Space(model, [rate])
        planned = plan_table(space, effort=Effort(seconds=60.0, evaluations=40)).predicted_s[0]
        bound_s = Clocks(Counts(space, rate)).least_makespan(3.0 * planned, most=8)
        assert 0.0 < bound_s <= planned * (1 + 1e-7)
        for attempt in range(8):
            for make in (random_plan, random_split):
                plan = make(located, random.Random(100 * seed + attempt))
                assert bound_s <= simulate_plan(plan, model, rate).makespan_s * (1 + 1e-7)


def test_blocks_and_runs_are_recognised(compiled: None) -> None:
    chain = Chain(rand(1, 2, 12, 3))
    entry = chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    made = chain.call("aten.conv2d.default", Ref(entry), rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    side = chain.call("aten.conv2d.default", Ref(entry), rand(2, 2, 1, 1), None, [1, 1], [0, 0])
    chain.call("aten.add.Tensor", Ref(made), Ref(side))
    chain.call("aten.relu.default", chain.tail)
    chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    located = analyse_locality(chain.finish(), {0: 2})
    costs = tuple(OperatorCost(0.0, 1e-5 if k == 4 else 1.0) for k in range(6))
    clocks = Clocks(Counts(Space(CostModel(located, costs, costs), [300.0]), 300.0))
    assert clocks.runs == [[0], [1], [3, 4], [5]]
    assert {end: (skip.source, skip.side, skip.early) for end, skip in clocks.skips.items()} == {3: (0, (2,), False)}


def test_blocks_whose_projection_comes_first_are_followed(compiled: None) -> None:
    chain = Chain(rand(1, 2, 3, 3))
    entry = chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    side = chain.call("aten.conv2d.default", Ref(entry), rand(2, 2, 1, 1), None, [1, 1], [0, 0])
    made = chain.call("aten.conv2d.default", Ref(entry), rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    chain.call("aten.add.Tensor", Ref(made), Ref(side))
    located = analyse_locality(chain.finish(), {0: 2})
    shares = []
    for seed in range(3):
        model = model_of(located, seed)
        model = replace(model, robot=(*model.robot[:2], OperatorCost(0.2, 0.2), model.robot[3]))  # the main branch
        model = replace(model, server=(*model.server[:2], OperatorCost(0.1, 0.1), model.server[3]))
        for rate in RATES:
            space = Space(model, [rate])
            optimum = float(solve(space, Objective()).best.makespan_s[0])
            clocks = Clocks(Counts(space, rate))
            assert [(skip.source, skip.side, skip.early) for skip in clocks.skips.values()] == [(0, (1,), True)]
            shares.append(clocks.least_makespan(3.0 * optimum) / optimum)
            assert clocks.least_makespan(1.01 * optimum) <= optimum * (1 + 1e-7)
    assert max(shares) <= 1 + 1e-7
    assert min(shares) > 0.88
    assert np.median(shares) > 0.95


@pytest.mark.parametrize(
    ("early", "parallel", "least", "median"),
    [(False, False, 0.95, 0.99), (False, True, 0.88, 0.92), (True, True, 0.78, 0.95)],
)
def test_rows_of_a_skip_that_the_server_lacks_are_sent(
    early: bool, parallel: bool, least: float, median: float, compiled: None
) -> None:
    """A wide skip over a narrow branch: what is handed over inside costs little, the skip much. A bound that forgets
    the skip, or gives the server its rows or those of its operators for nothing, has smaller shares."""
    chain = Chain(rand(1, 8, 3, 3))
    entry = chain.call("aten.conv2d.default", chain.tail, rand(8, 8, 1, 1), None, [1, 1], [0, 0])
    skip = Ref(entry)
    if early:
        skip = Ref(chain.call("aten.conv2d.default", skip, rand(8, 8, 1, 1), None, [1, 1], [0, 0]))
    chain.call("aten.conv2d.default", Ref(entry), rand(1, 8, 1, 1), None, [1, 1], [0, 0])
    made = chain.call("aten.conv2d.default", chain.tail, rand(8, 1, 1, 1), None, [1, 1], [0, 0])
    if parallel and not early:
        skip = Ref(chain.call("aten.conv2d.default", skip, rand(8, 8, 1, 1), None, [1, 1], [0, 0]))
    chain.call("aten.add.Tensor", Ref(made), skip)
    located = analyse_locality(chain.finish(), {0: 2})
    shares = []
    for seed in range(3):
        model = replace(model_of(located, seed), codecs={})
        for rate in (1000.0, 4000.0):
            space = Space(model, [rate])
            optimum = float(solve(space, Objective()).best.makespan_s[0])
            clocks = Clocks(Counts(space, rate))
            shares.append(clocks.least_makespan(3.0 * optimum) / optimum)
            assert clocks.least_makespan(1.01 * optimum) <= optimum * (1 + 1e-7)
    assert max(shares) <= 1 + 1e-7
    assert min(shares) > least
    assert np.median(shares) > median


@pytest.mark.parametrize("classes", [0, 4])
def test_clocks_count_every_row_that_is_sent(classes: int, compiled: None) -> None:
    """A robot that would take far too long: nothing is faster than to send it all, and that is just what is found."""
    chain = Chain(rand(1, 2, 24, 3))
    for _ in range(6):
        chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    located = analyse_locality(chain.finish(), {0: 2})
    server = tuple(OperatorCost(0.001, 0.001) for _ in located.operators)
    robot = tuple(OperatorCost(5.0, 5.0) for _ in located.operators)
    space = Space(CostModel(located, robot, server, link=LinkCosts(0.002, 0.0)), [1e4])
    best = float(space.score_row_splits(space.server_only).makespan_s[0])
    bound_s = Clocks(Counts(space, 1e4), classes).least_makespan(3.0 * best)
    assert bound_s == pytest.approx(best, rel=1e-3)
    assert bound_s <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([0.03], [0]),
        ([0.05, 0.03], [0, 48]),
        ([0.05, 0.045], [0, 48]),
        ([0.05, 0.035, 0.03], [0, 48, 96]),
        ([0.2], [0]),
    ],
)
def test_more_clocks_are_retained_where_few_nearly_reach(
    gaps: List[float], expected: List[int], compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space(model_of(network(3, rows=12, operators=6), 3), [300.0])
    limits: List[int] = []

    def note_limit(clocks: Clocks, target: float, most: int = 0) -> float:
        limits.append(most)
        return target * 1.03 / (1.0 + gaps[len(limits) - 1])

    monkeypatch.setattr(Clocks, "least_makespan", note_limit)
    improve_and_bound(space, plan_table(space, "server_only"), Limits(labels=100))
    assert limits == expected


def test_more_labels_never_loosen_the_bound() -> None:
    space = Space(model_of(network(3, rows=12, operators=6), 3), [300.0])
    best = plan_table(space, effort=Effort(seconds=60.0, evaluations=40)).predicted_s[0]
    few, many = bound(space, best, 3), bound(space, best, 20000)
    assert 0.0 < few < many


def test_a_certificate_is_within_the_gap_that_was_requested() -> None:
    """Convolutions on a robot that would take far too long: the server's own plan is the best, and that is shown."""
    chain = Chain(rand(1, 2, 24, 3))
    for _ in range(6):
        chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    located = analyse_locality(chain.finish(), {0: 2})
    server = tuple(OperatorCost(0.001, 0.001) for _ in located.operators)
    robot = tuple(OperatorCost(0.05, 0.05) for _ in located.operators)
    space = Space(CostModel(located, robot, server, link=LinkCosts(0.002, 0.0)), [1e4])
    _, (gap,) = improve_and_bound(space, plan_table(space, "server_only"))
    assert gap is not None
    assert gap <= 0.03 + 1e-9


def test_omitted_potentials_do_not_change_the_result() -> None:
    """With nothing but the tails themselves, the search is exhaustive: potentials must not cut what is below."""
    for seed in range(6):
        space = Space(model_of(network(seed, rows=4, operators=5), seed), [300.0])
        counts = Counts(space, 300.0)
        target = float(space.score_row_splits(space.device_only).makespan_s[0]) * 1.5
        plain = Search(counts, target, 10**9, 0.0, make_potentials(counts, []))
        guided = Search(counts, target, 10**9, 0.0)
        assert guided.run() == pytest.approx(plain.run(), rel=1e-9)
        assert plain.best < target


def test_a_good_plan_has_a_small_gap_and_a_bad_one_a_large_one() -> None:
    located = network(1, rows=12, operators=5)
    free = tuple(OperatorCost(0.0, 1e-6) for _ in located.operators)
    slow = tuple(OperatorCost(0.0, 1.0) for _ in located.operators)
    space = Space(CostModel(located, slow, free, link=LinkCosts(0.0, 0.0)), [1e3])
    for name in ("server_only", "device_only"):
        given = plan_table(space, name)
        makespan = given.predicted_s[0]
        assert (makespan / bound(space, makespan) - 1.0 > 10.0) == (name == "device_only")
        better, (gap,) = improve_and_bound(space, given)
        assert gap is not None
        assert gap < 0.1
        assert simulate_plan(better.plans[0], space.model, 1e3).makespan_s == pytest.approx(better.predicted_s[0])


def test_what_rows_need_is_counted() -> None:
    chain = Chain(rand(1, 2, 9, 3))
    chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 1, 1), None, [2, 1], [0, 0])
    located = analyse_locality(chain.finish(), {0: 2})
    assert strictly_needed(located) == {0: 5, 1: 5}, "every second row is used by nobody"
    (least,) = least_footprints(located, 0).values()
    assert least.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 9]


def test_several_results_have_no_bound() -> None:
    chain = Chain(rand(1, 2, 9, 3))
    first = chain.call("aten.relu.default", chain.tail)
    second = chain.call("aten.relu.default", Ref(first))
    located = analyse_locality(chain.finish(first, second), {0: 2})
    space = Space(model_of(located, 0), [300.0])
    with pytest.raises(BadInput, match="one result"):
        Counts(space, 300.0)
    assert improve_and_bound(space, plan_table(space, "server_only"))[1] == [None]
