"""Simulation, objectives and planners: timelines worked out by hand, and optimality against brute force."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Optional, Tuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.ir import Ref
from edge_offload.split.model.check import check_plan
from edge_offload.split.model.complete import complete_plan
from edge_offload.split.model.cost import CodecCost, CopyCosts, CostModel, LinkCosts, OperatorCost, Payload, fit_cost
from edge_offload.split.model.locality import LocalityMap, analyse_locality
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side, SplitPlan
from edge_offload.split.model.simulate import compile_plan, sweep_bandwidths
from edge_offload.split.planners.space import RowSplit, Space
from edge_offload.split.planners.table import EQUAL_SHARE, PLANNERS, Effort, plan_table
from edge_offload_research.split.model.exactness import random_split, relative_error
from edge_offload_research.split.model.plan_cost import simulate_plan
from edge_offload_research.split.model.run_plan import run_plan
from tests.split.branch_and_bound import solve
from tests.split.split_chains import Chain

QUICK = Effort(seconds=60.0, evaluations=120)
NO_DELAY = LinkCosts(latency_s=0.0, message_s=0.0)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double)


def stack(rows: int = 16, kernels: Tuple[int, ...] = (3, 3, 3), channels: int = 2, head: bool = True) -> Chain:
    chain = Chain(rand(1, channels, rows, 4))
    for kernel in kernels:
        chain.call(
            "aten.conv2d.default", chain.tail, rand(channels, channels, kernel, 1), None, [1, 1], [kernel // 2, 0]
        )
    if head:
        chain.call("aten.mean.dim", chain.tail, [2, 3])
    return chain


def located_of(chain: Chain) -> LocalityMap:
    return analyse_locality(chain.finish(), {0: 2})


def costs(located: LocalityMap, total_s: float, launch_s: float = 0.0) -> Tuple[OperatorCost, ...]:
    return tuple(OperatorCost(launch_s, (total_s - launch_s) / entry.length) for entry in located.operators)


def model_of(
    located: LocalityMap, robot_s: float, server_s: float, link: LinkCosts = NO_DELAY, **more: Any
) -> CostModel:
    return CostModel(located, costs(located, robot_s), costs(located, server_s), link=link, **more)


def test_server_only_timeline_is_upload_compute_download() -> None:
    located = located_of(stack())
    model = model_of(located, 1.0, 0.1, LinkCosts(latency_s=0.5, message_s=0.25), request_s=0.125)
    space = Space(model, [1024.0])
    outcome = simulate_plan(space.make_plan(space.score_row_splits(space.server_only), 1024.0), model, 1024.0)
    up, down = 2 * 16 * 4 * 8 / 1024, 2 * 8 / 1024
    assert outcome.makespan_s == pytest.approx(0.125 + up + 0.25 + 0.5 + 4 * 0.1 + down + 0.25 + 0.5)
    assert (outcome.bytes_up, outcome.bytes_down) == (1024.0, 16.0)
    assert (outcome.robot_s, outcome.server_s) == (0.0, pytest.approx(0.4))
    power = model.power
    busy = up + down + 0.5
    assert outcome.energy_j == pytest.approx(
        outcome.makespan_s * power.standby + busy * (power.communication - power.standby)
    )
    assert [span.row for span in outcome.spans] == ["uplink", "server", "downlink"]


def test_device_only_uses_no_link_and_full_power() -> None:
    located = located_of(stack())
    model = model_of(located, 1.0, 0.1, request_s=9.0)
    space = Space(model, [1.0])
    outcome = simulate_plan(space.make_plan(space.score_row_splits(space.device_only), 1.0), model, 1.0)
    assert outcome.makespan_s == pytest.approx(4.0)
    assert outcome.energy_j == pytest.approx(4.0 * model.power.inference)


def test_device_only_costs_the_time_of_the_network_without_a_plan() -> None:
    """By operators the robot takes 4 s and the server 2; the plain network 1."""
    located = located_of(stack())
    model = model_of(located, 1.0, 0.5, alone_s=1.0)
    space = Space(model, [1e12])
    local, remote = space.score_row_splits(space.device_only), space.score_row_splits(space.server_only)
    assert (float(local.makespan_s[0]), float(remote.makespan_s[0])) == (1.0, pytest.approx(2.0))
    outcome = simulate_plan(space.make_plan(local, 1e12), model, 1e12)
    assert outcome.makespan_s == outcome.robot_s == 1.0
    assert outcome.energy_j == pytest.approx(model.power.inference)
    for name in PLANNERS:
        table = plan_table(space, name, Objective(), Effort(seconds=10, evaluations=40))
        if name != "server_only":
            assert table.predicted_s == (1.0,), name


def test_upload_and_robot_compute_overlap() -> None:
    """Robot: rows 0-8 of the first operator; server: the rest, from rows 7-16 of the input, sent meanwhile."""
    located = located_of(stack(kernels=(3,), head=False))
    model = model_of(located, 1.6, 0.16)
    plan = check_plan(complete_plan(located, {0: (0, 8)}, {0: (8, 16)}), located)
    outcome = simulate_plan(plan, model, 576.0)  # 9 rows of 64 bytes: one second up
    down = 8 * 64 / 576
    assert outcome.robot_s == pytest.approx(0.8)
    assert outcome.makespan_s == pytest.approx(1.0 + 0.08 + down)


def test_coding_overlaps_sending_in_pieces() -> None:
    payload = Payload(raw_bytes=0, coded_bytes=1000.0, encode_s=0.5, decode_s=0.25, pieces=1)
    assert payload.idle_link_s(1000.0) == pytest.approx(1.75)
    assert replace(payload, pieces=10).idle_link_s(1000.0) == pytest.approx(1.0 + 0.075)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_sweep_agrees_with_simulate_and_more_bandwidth_never_hurts(seed: int) -> None:
    chooser = random.Random(seed)
    located = located_of(stack(rows=12, kernels=tuple(chooser.choice([1, 3, 5]) for _ in range(4))))
    model = model_of(located, 1.0, 0.3, LinkCosts(), request_s=0.01)
    plan = check_plan(random_split(located, chooser), located)
    rates = np.array([1e2, 1e3, 1e4, 1e6])
    together, joules = sweep_bandwidths(compile_plan(plan, model), model, rates)
    single = [simulate_plan(plan, model, rate) for rate in rates]
    assert np.allclose(together, [outcome.makespan_s for outcome in single])
    assert np.allclose(joules, [outcome.energy_j for outcome in single])
    assert np.all(np.diff(together) <= 1e-9)
    for outcome in single:
        assert outcome.makespan_s >= max(outcome.robot_s, outcome.server_s) - 1e-12
        for lane in ("robot", "uplink", "server", "downlink"):
            spans = [span for span in outcome.spans if span.row == lane]
            assert all(one.end_s <= other.start_s + 1e-9 for one, other in zip(spans, spans[1:]))


def test_fit_finds_launch_and_slope_and_never_goes_negative() -> None:
    cost = fit_cost([1, 4, 16, 64], [0.0102, 0.0108, 0.0132, 0.0228])
    assert (cost.launch_s, cost.row_s) == (pytest.approx(0.01), pytest.approx(0.0002))
    assert fit_cost([1, 64], [0.02, 0.01]).row_s >= 0.0
    assert fit_cost([8], [0.4]).seconds_for(2) == pytest.approx(0.1)
    assert cost.seconds_for(0) == 0.0
    with pytest.raises(BadInput):
        fit_cost([], [])


TINY = [
    (stack, {"rows": 3, "kernels": (3, 1, 3)}),
    (stack, {"rows": 4, "kernels": (3, 3), "head": False}),
    (stack, {"rows": 2, "kernels": (1, 1, 1, 1), "head": False}),
]


def branching() -> Chain:
    chain = Chain(rand(1, 2, 3, 4))
    branch = chain.call("aten.conv2d.default", Ref(0), rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    right = chain.call("aten.relu.default", Ref(0))
    chain.call("aten.add.Tensor", Ref(branch), Ref(right))
    return chain


def tiny(which: int) -> Chain:
    if which == len(TINY):
        return branching()
    build, options = TINY[which]
    return build(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("kind", ["latency", "energy", "weighted"])
@pytest.mark.parametrize("rate", [200.0, 2000.0])
def test_branch_and_bound_matches_brute_force(which: int, kind: str, rate: float) -> None:
    located = located_of(tiny(which))
    model = CostModel(located, costs(located, 1.0, 0.1), costs(located, 0.2, 0.02), link=NO_DELAY)
    space, objective = Space(model, [rate]), Objective(kind)
    every, pruned = solve(space, objective, prune=False), solve(space, objective)
    assert objective.compute_cost(float(pruned.best.makespan_s[0]), float(pruned.best.energy_j[0])) == pytest.approx(
        objective.compute_cost(float(every.best.makespan_s[0]), float(every.best.energy_j[0]))
    )
    assert pruned.simulated <= every.simulated
    check_plan(space.make_plan(pruned.best, rate), located)


@pytest.mark.parametrize("which", range(4))
def test_no_planner_beats_the_optimum_and_the_default_comes_close(which: int) -> None:
    located = located_of(tiny(which))
    model = CostModel(located, costs(located, 1.0, 0.1), costs(located, 0.2, 0.02), link=NO_DELAY)
    for rate in (200.0, 600.0, 2000.0):
        optimum = float(solve(Space(model, [rate]), Objective()).best.makespan_s[0])
        for name in PLANNERS:
            got = plan_table(Space(model, [rate]), name, effort=QUICK).predicted_s[0]
            assert got >= optimum - 1e-12, name
            if name == "loss_beam":
                assert got <= 1.35 * optimum


def test_too_large_for_exhaustive_search_is_reported() -> None:
    located = located_of(stack(rows=8, kernels=(3,) * 14))
    with pytest.raises(BadInput, match="15 operators"):
        solve(Space(model_of(located, 1.0, 0.1), [1e3]), Objective())


def brute_force_layers(space: Space, objective: Objective) -> float:
    """Sequential cost of every placement of whole operators, priced as in the minimum cut."""
    import itertools

    located, model = space.located, space.model
    producer, consumers = located.sequence.producer_indices(), located.sequence.consumer_indices()
    rate, best = float(space.bandwidths[0]), float("inf")
    for places in itertools.product(Side, repeat=len(located.operators)):
        total = sum(model.operator_s(side, i, located.operators[i].length) for i, side in enumerate(places))
        for number, users in consumers.items():
            if number in located.free:
                continue
            home = places[producer[number]] if number in producer else Side.ROBOT
            sides = {places[user] for user in users} | ({Side.ROBOT} if number in located.sequence.outputs else set())
            if home.opposite in sides:
                total += model.make_payload(number, located.count_rows(number), home, "raw").idle_link_s(rate)
        best = min(best, total)
    return best


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("rate", [50.0, 300.0, 3000.0])
def test_layer_partition_is_the_minimum_over_all_placements(which: int, rate: float) -> None:
    from edge_offload_research.split.planners.dsccs import layer_partition

    located = located_of(tiny(which))
    chooser = np.random.default_rng(which)
    robot = tuple(OperatorCost(0.0, float(chooser.uniform(0.1, 1.0))) for _ in located.operators)
    server = tuple(OperatorCost(0.0, float(chooser.uniform(0.01, 0.4))) for _ in located.operators)
    space = Space(CostModel(located, robot, server, link=NO_DELAY), [rate], codecs=False)
    scored = layer_partition(space, 0, Objective())
    plan = check_plan(space.make_plan(scored, rate), located)
    sequential = simulate_plan(plan, space.model, rate)
    total = (
        sequential.robot_s
        + sequential.server_s
        + sum(
            space.model.make_payload(t.value, t.high - t.low, t.sender, "raw").idle_link_s(rate) for t in plan.transfers
        )
    )
    assert total == pytest.approx(brute_force_layers(space, Objective()), rel=1e-5)


@pytest.mark.parametrize("kind", ["latency", "energy", "weighted", "deadline"])
@pytest.mark.parametrize("name", ["loss_beam", "loss_de"])
def test_never_worse_than_the_baselines_at_any_bandwidth_and_objective(kind: str, name: str) -> None:
    located = located_of(stack(rows=24, kernels=(3, 5, 1, 3), channels=3))
    model = CostModel(located, costs(located, 1.0, 0.1), costs(located, 0.1, 0.05), link=LinkCosts(0.001, 0.001),
                      codecs={0: (CodecCost("half", 2.0, 1e4, 1e5),)}, request_s=0.003)  # fmt: skip
    objective = Objective(kind, deadline_s=2.0)
    rates = [100.0, 400.0, 1000.0, 3000.0, 10000.0, 1e6]
    tables = {
        planner: plan_table(Space(model, rates), planner, objective, QUICK)
        for planner in ("device_only", "server_only", "layer_cut", name)
    }

    def cost(planner: str, index: int) -> float:
        return objective.compute_cost(tables[planner].predicted_s[index], tables[planner].predicted_j[index])

    longer = 1 + EQUAL_SHARE if (kind, name) == ("latency", "loss_beam") else 1.0
    for index in range(len(rates)):
        least = min(cost(p, index) for p in ("device_only", "server_only", "layer_cut"))
        assert cost(name, index) <= longer * least + 1e-9


def test_of_plans_that_take_as_long_the_one_of_least_energy_is_taken() -> None:
    located = located_of(stack(rows=24, kernels=(3, 5, 1, 3), channels=3))
    model = CostModel(located, costs(located, 1.0, 0.1), costs(located, 0.1, 0.05), link=LinkCosts(0.001, 0.001))
    rates = [300.0, 1000.0, 3000.0, 10000.0, 30000.0, 1e5, 1e6]
    space = Space(model, rates)
    table = plan_table(space, effort=QUICK)
    saved = []
    for index, fastest in enumerate(PLANNERS["loss_beam"](Space(model, rates), Objective(), QUICK)):
        seconds, joules = float(fastest.makespan_s[index]), float(fastest.energy_j[index])
        assert table.predicted_s[index] <= (1 + EQUAL_SHARE) * seconds + 1e-12
        assert table.predicted_j[index] <= joules + 1e-9
        saved.append(1 - table.predicted_j[index] / joules)
    assert max(saved) > 0.5, "at 1 kB/s a plan takes 0.5 % longer than the fastest one, and 42 % of its energy"


def test_a_split_wins_where_upload_and_compute_can_overlap() -> None:
    """A cheap first half on a slow robot, an upload as long as that: neither side alone is best."""
    chain = stack(rows=64, kernels=(1, 1, 1, 1), channels=2, head=False)
    chain.call("aten.avg_pool2d.default", chain.tail, [8, 1])
    located = located_of(chain)
    model = model_of(located, 0.8, 0.05)
    rate = 2 * 64 * 4 * 8 / 4.0  # the input takes as long as device-only
    table = plan_table(Space(model, [rate]), effort=QUICK)
    assert table.plans[0].splits_an_operator
    assert table.predicted_s[0] < 0.75 * 4.0
    outcome = simulate_plan(table.plans[0], model, rate)
    assert outcome.makespan_s == pytest.approx(table.predicted_s[0])
    got = run_plan(table.plans[0], located, chain.blobs, [chain.tensors[0]])
    assert relative_error(got, [chain.tensors[chain.last]]) <= 1e-12


def test_spso_ga_saves_energy_and_keeps_the_deadline_where_that_is_possible() -> None:
    located = located_of(stack(rows=16, kernels=(3, 3, 3), channels=2))
    model = model_of(located, 1.0, 0.1)
    rates = [100.0, 400.0, 1e5]
    table = plan_table(Space(model, rates), "spso_ga", Objective("deadline", deadline_s=5.0), QUICK)
    device = plan_table(Space(model, rates), "device_only")
    for index in range(3):
        assert table.predicted_s[index] <= 5.0
        assert table.predicted_j[index] <= device.predicted_j[index] + 1e-9
    assert table.predicted_j[2] < 0.5 * device.predicted_j[2]


def test_codec_is_chosen_by_bandwidth_and_goes_into_the_plan() -> None:
    located = located_of(stack(rows=16, kernels=(1,), channels=2))
    slow_codec = CodecCost("squeeze", 4.0, 2048.0, 1e9)
    model = CostModel(located, costs(located, 100.0), costs(located, 0.1), {0: (slow_codec,)}, NO_DELAY)
    space = Space(model, [100.0, 1e9])
    plans = [space.make_plan(space.score_row_splits(space.server_only), rate) for rate in (100.0, 1e9)]
    assert [plan.transfers[0].codec for plan in plans] == ["squeeze", "raw"]
    assert simulate_plan(plans[0], model, 100.0).bytes_up == 1024 / 4
    off = Space(model, [100.0], codecs=False)
    assert off.make_plan(off.score_row_splits(off.server_only), 100.0).transfers[0].codec == "raw"
    first, *rest = plans[0].transfers
    with pytest.raises(BadInput, match="no cost is known of codec"):
        simulate_plan(replace(plans[0], transfers=(replace(first, codec="magic"), *rest)), model, 1.0)


def test_table_selects_the_bin_below_and_refuses_unknown_names() -> None:
    located = located_of(stack(rows=8, kernels=(1,)))
    table = plan_table(Space(model_of(located, 1.0, 0.1), [10.0, 100.0, 1000.0]), "device_only")
    assert [table.find_index(rate) for rate in (0.0, 10.0, 99.0, 100.0, 1e9)] == [0, 0, 0, 1, 2]
    assert table.plan_at(150.0) is table.plans[1]
    with pytest.raises(BadInput, match="unknown planner"):
        plan_table(Space(model_of(located, 1.0, 0.1), [10.0]), "magic")
    with pytest.raises(BadInput, match="unknown objective"):
        Objective("speed")


def test_a_plan_whose_sides_wait_for_each_other_is_refused_by_check_and_simulation() -> None:
    located = located_of(stack(rows=8, kernels=(3, 3), head=False))
    good = complete_plan(located, {0: (0, 4), 1: (4, 8)}, {0: (4, 8), 1: (0, 4)})
    check_plan(good, located)
    reversed_plan: Optional[SplitPlan] = replace(good, robot=good.robot[::-1], server=good.server[::-1])
    assert reversed_plan is not None
    with pytest.raises(BadInput):
        check_plan(reversed_plan, located)
    with pytest.raises(BadInput):
        simulate_plan(reversed_plan, model_of(located, 1.0, 1.0), 100.0)


def test_row_splits_label_the_extremes() -> None:
    located = located_of(stack())
    space = Space(model_of(located, 1.0, 0.1), [1e3])
    assert space.make_plan(space.score_row_splits(space.device_only), 1e3).is_local
    assert not space.make_plan(space.score_row_splits(space.server_only), 1e3).robot
    cut = space.score_row_splits((RowSplit(1, 1.0), RowSplit(space.last, 0.0)))
    plan = space.make_plan(cut, 1e3)
    assert {step.operator for step in plan.robot} == {0, 1}
    assert {step.operator for step in plan.server} == {2, 3}


def test_copies_to_and_from_a_device_are_part_of_every_estimate() -> None:
    """The robot copies what it reads and what it made itself, each side what it sends and receives, piece by piece."""
    located = located_of(stack(kernels=(3,), head=False))
    free = model_of(located, 1.6, 0.16)
    upload, back = OperatorCost(0.125, 1 / 1024), OperatorCost(0.25, 2 / 1024)
    copies = CopyCosts(upload, back)
    space = Space(free, [576.0])
    local = space.make_plan(space.score_row_splits(space.device_only), 576.0)
    size = 16 * 64
    on_robot = replace(free, copies={Side.ROBOT: copies})
    copies_s = upload.seconds_for(size) + back.seconds_for(size)
    assert simulate_plan(local, on_robot, 576.0).makespan_s == pytest.approx(1.6 + copies_s)
    assert simulate_plan(local, replace(free, copies={Side.SERVER: copies}), 576.0).makespan_s == pytest.approx(1.6)
    remote = space.make_plan(space.score_row_splits(space.server_only), 576.0)
    before = simulate_plan(remote, free, 576.0).makespan_s
    assert simulate_plan(remote, on_robot, 576.0).makespan_s == pytest.approx(before), (
        "all of it is on the robot's host"
    )
    on_server = replace(free, copies={Side.SERVER: copies})
    assert simulate_plan(remote, on_server, 576.0).makespan_s == pytest.approx(before + copies_s)
    both = replace(free, copies=dict.fromkeys(Side, copies))
    payload = both.make_payload(located.sequence.inputs[0], 8, Side.ROBOT, "raw")
    assert (payload.encode_s, payload.decode_s) == (0.0, upload.seconds_for(8 * 64))
