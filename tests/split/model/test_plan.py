"""Plans are exact or refused: random plans on random networks, and every halo shrunk by one."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from typing import Tuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.ir import Ref
from edge_offload.split.model.check import BadPlan, check_plan
from edge_offload.split.model.complete import complete_plan
from edge_offload.split.model.cost import CostModel, OperatorCost
from edge_offload.split.model.locality import LocalityMap, analyse_locality
from edge_offload.split.model.plan import PlanStep, RowTransfer, Side, SplitPlan
from edge_offload_research.split.model.exactness import random_split, relative_error
from edge_offload_research.split.model.plan_cost import simulate_plan
from edge_offload_research.split.model.run_plan import run_plan
from edge_offload_research.split.runtime.streaming import stream_plan
from tests.split.split_chains import Chain
from tests.split.split_plans import has_global_window, random_plan, wastes_rows

TOLERANCE = 1e-12


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double)


def conv_stack(chooser: random.Random, gaps: bool = True) -> Tuple[Chain, LocalityMap]:
    """A random network: convolutions, pools, residuals, dense connections, gates, resizing, and a head.

    Without ``gaps`` no kernel skips rows, so that every row between two needed ones is needed.
    """
    torch.manual_seed(chooser.randrange(2**31))
    channels, height = 2, chooser.randint(9, 24)
    chain = Chain(rand(1, channels, height, 6))
    for _ in range(chooser.randint(1, 7)):
        x, tensor = chain.tail, chain.tensors[chain.last]
        channels, rows = tensor.shape[1], tensor.shape[2]
        kind = chooser.choice(["conv", "conv", "relu", "pool", "residual", "dense", "gate", "up", "attention"])
        if kind == "conv":
            k, dilation = chooser.choice([1, 2, 3, 5]), chooser.choice([1, 1, 2])
            stride, padding = chooser.choice([1, 1, 2, 3]), chooser.randint(0, 2)
            if not gaps:
                stride, dilation = min(stride, k), 1
            if dilation * (k - 1) + 1 > rows + 2 * padding:
                continue
            chain.call(
                "aten.conv2d.default", x, rand(3, channels, k, 1), rand(3), [stride, 1], [padding, 0], [dilation, 1]
            )
        elif kind == "relu":
            chain.call("aten.silu.default", x)
        elif kind == "pool" and rows >= 4:
            chain.call("aten.max_pool2d.default", x, [3, 1], [2, 1], [1, 0])
        elif kind == "residual":
            y = chain.call("aten.conv2d.default", x, rand(channels, channels, 3, 1), None, [1, 1], [1, 0])
            chain.call("aten.add.Tensor", x, Ref(y))
        elif kind == "dense":
            y = chain.call("aten.conv2d.default", x, rand(2, channels, 3, 1), None, [1, 1], [1, 0])
            chain.call("aten.cat.default", [x, Ref(y)], 1)
        elif kind == "gate":
            mean = chain.call("aten.adaptive_avg_pool2d.default", x, [1, 1])
            gate = chain.call("aten.sigmoid.default", Ref(mean))
            chain.call("aten.mul.Tensor", x, Ref(gate))
        elif kind == "up" and rows < 40:
            chain.call("aten.upsample_nearest2d.vec", x, None, [2.0, 1.0])
        elif kind == "attention":
            y = chain.call("aten.permute.default", x, [0, 3, 2, 1])
            chain.call("aten.softmax.int", Ref(y), -1)
            chain.call("aten.matmul.default", chain.tail, rand(channels, channels))
            chain.call("aten.permute.default", chain.tail, [0, 3, 2, 1])
    if not chain.operators:
        chain.call("aten.relu.default", chain.tail)
    if chooser.random() < 0.5:
        chain.call("aten.mean.dim", chain.tail, [2, 3])
    return chain, analyse_locality(chain.finish(), {0: 2})


@given(seed=st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_random_plans_of_random_networks_are_exact(seed: int) -> None:
    chooser = random.Random(seed)
    chain, located = conv_stack(chooser)
    plan = check_plan(random_plan(located, chooser), located)
    got = run_plan(plan, located, chain.blobs, [chain.tensors[0]])
    assert relative_error(got, [chain.tensors[chain.last]]) <= TOLERANCE


@given(seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_shrinking_any_halo_by_one_is_refused_and_would_be_wrong(seed: int) -> None:
    chooser = random.Random(seed)
    chain, located = conv_stack(chooser, gaps=False)
    plan = check_plan(random_split(located, chooser), located)
    assert (
        relative_error(run_plan(plan, located, chain.blobs, [chain.tensors[0]]), [chain.tensors[chain.last]])
        <= TOLERANCE
    )
    wasteful = wastes_rows(plan, located) or has_global_window(located)
    for position, transfer in enumerate(plan.transfers):
        for low, high in ((transfer.low + 1, transfer.high), (transfer.low, transfer.high - 1)):
            shortened = [replace(transfer, low=low, high=high)] if low < high else []
            broken = replace(plan, transfers=(*plan.transfers[:position], *shortened, *plan.transfers[position + 1 :]))
            with pytest.raises(BadPlan):
                check_plan(broken, located)
            got = run_plan(broken, located, chain.blobs, [chain.tensors[0]])
            assert wasteful or relative_error(got, [chain.tensors[chain.last]]) > 1e-6


@given(seed=st.integers(0, 2**31))
@settings(max_examples=80, deadline=None)
def test_accepted_plans_are_exact_after_any_mutation(seed: int) -> None:
    chooser = random.Random(seed)
    chain, located = conv_stack(chooser)
    plan = random_plan(located, chooser)
    for _ in range(6):
        side = chooser.choice(list(Side))
        steps = list(plan.steps_of(side))
        if not steps:
            continue
        at = chooser.randrange(len(steps))
        step = steps[at]
        steps[at] = PlanStep(step.operator, step.low + chooser.choice([0, 1]), step.high - chooser.choice([0, 1]))
        if steps[at].low >= steps[at].high or chooser.random() < 0.2:
            del steps[at]
        broken = replace(plan, **{side.value: tuple(steps)})
        try:
            check_plan(broken, located)
        except BadPlan:
            continue
        got = run_plan(broken, located, chain.blobs, [chain.tensors[0]])
        assert relative_error(got, [chain.tensors[chain.last]]) <= TOLERANCE


def _reordered(plan: SplitPlan, chooser: random.Random) -> SplitPlan:
    """One step or transfer earlier or later than it was, or in two parts."""
    name = chooser.choice(["robot", "server", "transfers"])
    items = list(getattr(plan, name))
    if not items:
        return plan
    item = items.pop(chooser.randrange(len(items)))
    parts = [item]
    if item.high - item.low > 1 and chooser.random() < 0.5:
        middle = chooser.randint(item.low + 1, item.high - 1)
        changed = item._replace if isinstance(item, PlanStep) else partial(replace, item)
        parts = [changed(high=middle), changed(low=middle)]
    for part in parts:
        items.insert(chooser.randint(0, len(items)), part)
    return replace(plan, **{name: tuple(items)})


def _makespan_s(plan: SplitPlan, located: LocalityMap) -> float:
    costs = (OperatorCost(1e-5, 1e-6),) * len(located.operators)
    return simulate_plan(plan, CostModel(located, costs, costs), 1e6).makespan_s


@given(seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_exactly_the_runnable_plans_are_accepted(seed: int) -> None:
    chooser = random.Random(seed)
    _, located = conv_stack(chooser)
    plan = random_plan(located, chooser)
    for _ in range(6):
        changed = _reordered(plan, chooser)
        try:
            check_plan(changed, located)
        except BadPlan:
            with pytest.raises(BadInput):
                _makespan_s(changed, located)
        else:
            assert _makespan_s(changed, located) > 0


@given(seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_waves_never_wait_for_each_other(seed: int) -> None:
    chooser = random.Random(seed)
    _, located = conv_stack(chooser)
    plan = check_plan(random_plan(located, chooser), located)
    for waves in (2, 3):
        for depth in (3, 100):
            assert _makespan_s(check_plan(stream_plan(plan, located, waves, depth), located), located) > 0


def two_convolutions() -> Tuple[Chain, LocalityMap]:
    chain = Chain(rand(1, 2, 12, 4))
    chain.call("aten.conv2d.default", Ref(0), rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    chain.call("aten.conv2d.default", chain.tail, rand(2, 2, 3, 1), None, [1, 1], [1, 0])
    chain.call("aten.mean.dim", chain.tail, [2, 3])
    return chain, analyse_locality(chain.finish(), {0: 2})


def test_halos_of_a_hand_made_cut() -> None:
    chain, located = two_convolutions()
    plan = check_plan(complete_plan(located, {0: (0, 7), 1: (0, 6), 2: (0, 1)}, {0: (5, 12), 1: (6, 12)}), located)
    mid, out = chain.operators[0].outputs[0], chain.operators[1].outputs[0]
    assert mid is not None
    assert out is not None
    assert plan.transfers == (
        RowTransfer(0, 4, 12, Side.ROBOT),  # rows 5.. of the first need input rows 4..
        RowTransfer(out, 6, 12, Side.SERVER),  # the mean, a global operator, runs on the robot
    )
    assert plan.splits_an_operator


def test_each_invariant_has_a_separate_refusal() -> None:
    _, located = two_convolutions()
    good = complete_plan(located, {0: (0, 7), 1: (0, 6), 2: (0, 1)}, {0: (5, 12), 1: (6, 12)})
    cases = {
        "another sequence": replace(good, sequence="0" * 32),
        "splits the inputs along": replace(good, axes={0: 3}),
        "nobody computes all of rows": replace(good, robot=(PlanStep(0, 0, 7), PlanStep(1, 0, 5), PlanStep(2, 0, 1))),
        "is global and runs on both sides": replace(good, server=(*good.server, PlanStep(2, 0, 1))),
        "computed twice": replace(good, robot=(PlanStep(0, 0, 4), PlanStep(0, 3, 7), *good.robot[1:])),
        "have a gap": replace(good, robot=(PlanStep(0, 0, 4), PlanStep(0, 5, 7), *good.robot[1:])),
        "does not exist": replace(good, robot=(*good.robot, PlanStep(9, 0, 1))),
        "rows [0, 13) of 12": replace(good, robot=(PlanStep(0, 0, 13), *good.robot[1:])),
        "needs rows": replace(good, robot=(good.robot[1], good.robot[0], good.robot[2])),
        "never has rows": replace(good, transfers=(*good.transfers, RowTransfer(good.transfers[1].value, 0, 3,
                                                                             Side.SERVER))),
        "which both sides have": replace(good, transfers=(RowTransfer(1, 0, 1, Side.ROBOT), *good.transfers)),
    }  # fmt: skip
    check_plan(good, located)
    for message, plan in cases.items():
        with pytest.raises(BadPlan) as caught:
            check_plan(plan, located)
        assert message in str(caught.value)


def test_results_must_end_on_the_robot() -> None:
    _, located = two_convolutions()
    plan = complete_plan(located, {}, {0: (0, 12), 1: (0, 12), 2: (0, 1)})
    with pytest.raises(BadPlan, match="end on the robot"):
        check_plan(replace(plan, transfers=plan.transfers[:1]), located)


def test_plan_travels_as_json_and_junk_is_refused() -> None:
    _, located = two_convolutions()
    plan = complete_plan(located, {0: (0, 7), 1: (0, 6), 2: (0, 1)}, {0: (5, 12), 1: (6, 12)}).with_about(
        planner="hand"
    )
    assert SplitPlan.from_json(plan.to_json()) == plan
    document = json.loads(plan.to_json())
    for key in document:
        for junk in (None, 7, "x", [["a"]], [[-1, 0, 1]], {"a": -1}):
            if key in ("sequence", "about") and isinstance(junk, (str, dict)):
                continue
            with pytest.raises(BadInput):
                SplitPlan.from_json(json.dumps({**document, key: junk}))
    with pytest.raises(BadInput):
        SplitPlan.from_json("[" * 100_000)
