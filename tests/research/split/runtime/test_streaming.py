"""A streamed plan is a finer plan: it passes the same check, computes the same rows, and never costs more."""

from __future__ import annotations

import pytest
import torch

from edge_offload.ir import sequence_hash
from edge_offload.split.footprints.registry import EMPTY
from edge_offload.split.model.check import check_plan
from edge_offload.split.model.complete import complete_plan, decide_backward
from edge_offload.split.model.cost import CostModel, LinkCosts, OperatorCost
from edge_offload.split.model.locality import unite_rows
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.table import PlanTable
from edge_offload.split.runtime.pieces import cut_transfer
from edge_offload.split.runtime.tracing import trace_module
from edge_offload_research.split.model.plan_cost import merge_steps, simulate_plan
from edge_offload_research.split.model.run_plan import run_plan
from edge_offload_research.split.runtime.streaming import best_stream, stream_plan, stream_table
from tests.modes.split import split_nets

PICTURE = torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def network():
    return trace_module("pictures", split_nets.pictures(2).eval(), [PICTURE])


@pytest.fixture(scope="module")
def plan(network):
    return complete_plan(network.located, *decide_backward(network.located, lambda i, r, s: (EMPTY, unite_rows(r, s))))


@pytest.mark.parametrize("waves", [2, 3, 5])
@pytest.mark.parametrize("depth", [1, 4, 100])
def test_a_streamed_plan_is_exact_and_computes_each_row_once(network, plan, waves, depth):
    streamed = stream_plan(plan, network.located, waves, depth)
    check_plan(streamed, network.located, sequence_hash(network.program.sequence))
    assert len(streamed.transfers_from(Side.ROBOT)) == waves
    assert len(streamed.server) > len(plan.server)
    assert merge_steps(streamed.server) == merge_steps(plan.server)
    want = split_nets.pictures(2).eval()(PICTURE)
    got = run_plan(streamed, network.located, network.program.constants, [PICTURE])
    for one, other in zip(got, want):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_streaming_pays_where_the_wire_is_slow_and_launches_are_cheap(network, plan):
    costs = tuple(OperatorCost(1e-6, 1e-3 / 64) for _ in network.located.operators)
    model = CostModel(network.located, costs, costs, {}, LinkCosts(0.001, 1e-5))
    assert (
        simulate_plan(best_stream(plan, model, [5e6]), model, 5e6).makespan_s
        < simulate_plan(plan, model, 5e6).makespan_s
    )
    dear = tuple(OperatorCost(5e-3, 0.0) for _ in network.located.operators)
    assert best_stream(plan, CostModel(network.located, costs, dear, {}, LinkCosts(0.001, 1e-5)), [5e6]) is plan


def test_pieces_cover_a_transfer_in_order(network, plan):
    transfer = plan.transfers_from(Side.ROBOT)[0]
    pieces = cut_transfer(network.located, transfer, piece_bytes=2000)
    assert len(pieces) > 3
    assert (pieces[0][0], pieces[-1][1]) == (transfer.low, transfer.high)
    assert all(end == start for (_, end), (start, _) in zip(pieces, pieces[1:]))


def test_a_streamed_table_has_the_costs_of_its_plans(network, plan):
    costs = tuple(OperatorCost(1e-6, 1e-3 / 64) for _ in network.located.operators)
    model = CostModel(network.located, costs, costs, {}, LinkCosts(0.001, 1e-5))
    table = PlanTable("server_only", (5e6,), (plan,), (simulate_plan(plan, model, 5e6).makespan_s,), (1.0,))
    streamed = stream_table(table, model)
    assert streamed.predicted_s[0] == simulate_plan(streamed.plans[0], model, 5e6).makespan_s < table.predicted_s[0]
