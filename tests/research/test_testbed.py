"""A measured profile becomes a graph that charges every millisecond, and a loop on a trace gives the latency that
arithmetic gives."""

import importlib.util

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.split.model.cost import CodecCost, LinkCosts
from edge_offload.split.model.plan import Side
from edge_offload.split.model.simulate import compile_plan
from edge_offload.split.planners.space import Space
from edge_offload.split.planners.table import Effort, plan_table
from edge_offload_research.emulate.trace import Trace
from edge_offload_research.split.model.plan_cost import simulate_plan, union_seconds
from edge_offload_research.testbed import graph, loop, profiles
from edge_offload_research.testbed.replay import replay_plan

QUIET = LinkCosts(latency_s=0.002, message_s=0.0)


@pytest.fixture
def workload(made):
    return graph.build_workload("agrnav", profiles.read_operators(made, "agrnav"))


def table_of(workload, planner, codecs=None, request_s=0.0):
    model = workload.cost_model(codecs or {}, QUIET, request_s)
    space = Space(model, [1e3, 1e4, 1e5, 1e6], codecs=bool(codecs))
    return plan_table(space, planner, effort=Effort(evaluations=100)), model


def test_every_profiled_millisecond_is_charged(workload):
    model = workload.cost_model({}, QUIET, 0.0)
    assert model.network_s(Side.ROBOT) == pytest.approx(10e-3)
    assert model.network_s(Side.SERVER) == pytest.approx(1e-3)


def test_an_in_place_result_stands_for_what_it_replaced(workload):
    pool = workload.located.sequence.operators[3]
    assert pool.name == "profile.max_pool2d.default"
    assert pool.input_ids() == (3,)


def test_footprints_are_exact_halos(workload):
    assert workload.located.footprint(1, 4, 8) == {1: (3, 9)}  # a convolution three wide
    assert workload.located.footprint(3, 2, 4) == {3: (4, 8)}  # a pool of two
    assert workload.located.footprint(4, 0, 1) == {5: (0, 8)}  # a linear layer over everything


def test_a_file_that_is_no_profile_is_refused(made):
    path = made / "op_profiles" / "agrnav.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("1.5", "soon", 1), encoding="utf-8")
    with pytest.raises(BadInput, match="not an operator profile"):
        profiles.read_operators(made, "agrnav")
    with pytest.raises(BadInput, match="cannot read"):
        profiles.read_operators(made, "kapao")


@pytest.mark.parametrize("planner", ["device_only", "server_only", "loss_beam"])
@pytest.mark.parametrize("rate", [1e4, 1e5, 1e6])
def test_replay_on_a_constant_link_is_the_simulation(workload, planner, rate):
    codecs = {0: (CodecCost("palette+zstd", 4.0, 1e6, 1e7),)}
    table, model = table_of(workload, planner, codecs, request_s=0.003)
    plan = table.plan_at(rate)
    seen = replay_plan(compile_plan(plan, model), model, Trace.constant_trace(rate), 17.3)
    assert seen.latency_s == pytest.approx(simulate_plan(plan, model, rate).makespan_s, rel=1e-9, abs=1e-9)


def test_a_transfer_feels_the_bandwidth_change_while_it_runs(workload):
    table, model = table_of(workload, "server_only")
    trace = Trace((0.0, 1.0), (128.0, 1280.0), 10.0)
    got = replay_plan(compile_plan(table.plans[0], model), model, trace, 0.5)
    sent_s = 0.5 + 64 / 1280  # half of the 128 bytes at the slow rate, half at the fast one
    assert got.latency_s == pytest.approx(sent_s + 0.002 + 0.001 + 40 / 1280 + 0.002)
    assert got.bytes_up == 128
    assert got.seen_bytes_per_s == pytest.approx(128 / sent_s)


def test_the_planner_learns_the_bandwidth_from_past_transfers_only(workload):
    table, model = table_of(workload, "loss_beam")
    assert table.plan_at(1e3).is_local
    assert not table.plan_at(1e6).is_local
    trace = Trace((0.0, 5.0), (1e6, 1e3), 10.0)
    blind = loop.run_loop(table, model, trace, 0.01)
    oracle = loop.run_loop(table, model, trace, 0.01, oracle=True)
    assert oracle.latencies_s.max() <= 10e-3 + 1e-9
    late = blind.latencies_s[blind.latencies_s > 10e-3 + 1e-9]
    assert 1 <= len(late) <= 3  # the first inferences after the fall still trust the fast link
    assert blind.latencies_s[-1] == pytest.approx(10e-3)
    assert 0.1 < blind.local_share < 0.9


def test_probes_detect_a_recovered_link_after_it_was_given_up(workload):
    table, model = table_of(workload, "loss_beam")
    trace = Trace((0.0, 2.0, 4.0), (1e6, 1e3, 1e6), 6.0)
    run = loop.run_loop(table, model, trace, 0.01)
    assert run.latencies_s[-1] < 9e-3
    given_up = loop.run_loop(table, model, trace, 0.01, probes=False)
    assert given_up.latencies_s[-1] == pytest.approx(10e-3)


def test_energy_is_the_state_models(workload):
    table, model = table_of(workload, "device_only")
    run = loop.run_loop(table, model, Trace.constant_trace(1e6), 0.01, length_s=1.0, probes=False)
    assert run.energy_j == pytest.approx(13.35 * 10e-3)
    assert len(run.latencies_s) == 50


def test_union_counts_overlaps_once():
    assert union_seconds([(3.0, 4.0), (0.0, 2.0), (1.0, 2.5)]) == pytest.approx(3.5)


@pytest.mark.parametrize("model", profiles.MODELS)
def test_the_authors_profiles_have_the_local_and_global_operators_that_they_report(data, model):
    reported = {
        "VGG19_BN": (53, 9), "ResNet152": (512, 3), "DenseNet121": (428, 3), "ConvNeXt_Large": (340, 6),
    }  # fmt: skip
    if model in reported and importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed: its networks cannot be built")
    profile = profiles.read_operators(data, model)
    workload = graph.build_workload(model, profile)
    costs = workload.cost_model({}, QUIET, 0.0)
    assert costs.network_s(Side.ROBOT) == pytest.approx(sum(op.robot_s for op in profile))
    assert costs.network_s(Side.SERVER) == pytest.approx(sum(op.server_s for op in profile))
    counts = workload.located.count_kinds()
    if model in reported:
        assert (counts["local"], counts["global"]) == reported[model]
    assert counts["local"] > counts["global"]


def test_uncoded_server_only_is_near_what_the_authors_measured(data):
    """Their runs carry serialisation and hooks, so the simulation is below, but of the same size."""
    workload = graph.build_workload("kapao", profiles.read_operators(data, "kapao"))
    measured = profiles.read_measured(data)["kapao", "all"]
    model = workload.cost_model({}, LinkCosts(), 0.0)
    table = plan_table(Space(model, [1e7], codecs=False), "server_only")
    from edge_offload_research.emulate.trace import load_trace

    run = loop.run_loop(table, model, load_trace(data / "bandwidth_indoors.csv"),
                        measured.period_s - measured.mean_s, probes=False)  # fmt: skip
    assert 0.75 < np.mean(run.latencies_s) / measured.mean_s < 1.0
