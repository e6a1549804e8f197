"""The planner against listing everything, and against plans that were published."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import pathlib
import random
from typing import Dict, List, Sequence, Tuple

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.server.pool import profile
from edge_offload.server.pool.choose import plan_undivided
from edge_offload.server.pool.columns import Cluster, Demand, pareto_rows
from edge_offload.server.pool.plan import PoolPlan, plan_most
from edge_offload_research.server.pool.baselines import plan_pairs
from edge_offload_research.server.pool.fewest import plan_fewest
from tests.server.pool.pool_nets import a_cluster, a_demand, a_network

DATA = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data" / "ppipe"
MARGIN = 0.2


def listed(demand: Demand, cluster: Cluster, stages: int) -> Dict[Tuple[int, ...], float]:
    """The best rate of one pipeline for each combination of GPU counts, by trying them all."""
    network, classes = demand.network, cluster.class_names
    best: Dict[Tuple[int, ...], float] = {}
    for count in range(1, stages + 1):
        for cut in itertools.combinations(range(1, network.blocks), count - 1):
            bounds = (0, *cut, network.blocks)
            for kinds in itertools.product(
                [(gpu, parts) for gpu in classes for parts in network.latency_s[gpu]], repeat=count
            ):
                for batch in range(1, min(network.latency_s[gpu][parts].shape[1] for gpu, parts in kinds) + 1):
                    taken = [
                        sum(network.latency_s[gpu][parts][block, batch - 1] for block in range(first, end))
                        for (gpu, parts), first, end in zip(kinds, bounds, bounds[1:])
                    ]
                    moved = [network.cut_bytes[at - 1] / cluster.bytes_per_s for at in cut]
                    if sum(taken) + batch * sum(moved) > demand.slo_s * (1 - MARGIN):
                        continue
                    rates = []
                    for stage, (gpu, parts) in enumerate(kinds):
                        rate = parts * batch / taken[stage]
                        if cluster.link_share:
                            for transfer in moved[max(0, stage - 1) : stage + 1]:
                                rate = min(rate, cluster.link_share / cluster.per_machine[gpu] / transfer)
                        rates.append(rate)
                    for numbers in itertools.product(*(range(1, cluster.gpus[gpu] + 1) for gpu, _ in kinds)):
                        used = tuple(sum(n for n, (of, _) in zip(numbers, kinds) if of == gpu) for gpu in classes)
                        if all(a <= cluster.gpus[gpu] for a, gpu in zip(used, classes)):
                            rate = min(n * each for n, each in zip(numbers, rates))
                            best[used] = max(best.get(used, 0.0), rate)
    return best


def searched(demands: Sequence[Demand], cluster: Cluster, stages: int) -> float:
    """The greatest least rate over weight, by trying every set of pipelines and every division of the cluster."""
    full = tuple(cluster.gpus.values())
    totals = []
    for demand in demands:
        items = sorted(listed(demand, cluster, stages).items())

        @functools.lru_cache(None)
        def total(capacity: Tuple[int, ...], items: Tuple[Tuple[Tuple[int, ...], float], ...] = tuple(items)) -> float:
            best = 0.0
            for used, rate in items:
                if all(a <= b for a, b in zip(used, capacity)):
                    best = max(best, rate + total(tuple(b - a for a, b in zip(used, capacity)), items))
            return best

        totals.append(total)
    if len(demands) == 1:
        return totals[0](full) / demands[0].weight
    return max(
        min(
            totals[0](mine) / demands[0].weight,
            totals[1](tuple(a - b for a, b in zip(full, mine))) / demands[1].weight,
        )
        for mine in itertools.product(*(range(count + 1) for count in full))
    )


def check(plan: PoolPlan, demands: Sequence[Demand], cluster: Cluster) -> None:
    """A plan is one that can be run, and gives what it says."""
    assert all(used <= cluster.gpus[gpu] for gpu, used in plan.gpus.items())
    by_name = {demand.network.name: demand for demand in demands}
    for pipeline in plan.pipelines:
        demand = by_name[pipeline.network]
        stages = pipeline.stages
        assert [stage.first for stage in stages] == [0] + [stage.end for stage in stages[:-1]]
        assert stages[-1].end == demand.network.blocks
        elapsed = 0.0
        for number, stage in enumerate(stages):
            taken = demand.network.stage_seconds(stage.gpu, stage.parts, stage.first, stage.end)[stage.batch - 1]
            assert stage.gpus * stage.parts * stage.batch / taken >= pipeline.rate * (1 - 1e-9)
            elapsed += taken
            if number < len(stages) - 1:
                elapsed += demand.network.cut_bytes[stage.end - 1] * stage.batch / cluster.bytes_per_s
        assert elapsed == pytest.approx(pipeline.latency_s)
        assert elapsed <= demand.slo_s * (1 - MARGIN) * (1 + 1e-9)
    assert plan.rates == {
        name: pytest.approx(sum(one.rate for one in plan.pipelines if one.network == name)) for name in by_name
    }


def test_plans_are_as_good_as_an_exhaustive_search() -> None:
    source = random.Random(5)
    divided = 0
    for number in range(320):
        classes = ("H", "L") if number % 3 else ("H", "M", "L")
        cluster = a_cluster(source, classes, 3 if len(classes) == 2 else 2)
        demands = [
            a_demand(source, a_network(source, name, classes, source.randint(2, 4), source.randint(1, 3), 2), weight)
            for name, weight in [("a", 1.0), ("b", source.uniform(0.3, 2))][: 1 + number % 2]
        ]
        stages = source.randint(1, 3)
        try:
            plan = plan_most(demands, cluster, MARGIN, stages)
        except BadInput:
            assert not all(listed(demand, cluster, stages) for demand in demands)
            continue
        check(plan, demands, cluster)
        assert plan.objective == pytest.approx(searched(demands, cluster, stages), rel=1e-6)
        divided += any(len(pipeline.stages) > 1 for pipeline in plan.pipelines)
    assert divided > 50, "some of the best plans divide a network"


def test_baselines_never_beat_the_planner() -> None:
    source = random.Random(6)
    for _ in range(30):
        cluster = a_cluster(source, ("H", "L"), 6)
        demands = [a_demand(source, a_network(source, name, ("H", "L"), 5, 4, 2)) for name in "ab"]
        try:
            best = plan_most(demands, cluster, MARGIN, 2)
            undivided, pairs = plan_undivided(demands, cluster, MARGIN), plan_pairs(demands, cluster, MARGIN)
        except BadInput:
            continue
        for plan in (undivided, pairs):
            check(plan, demands, cluster)
            assert plan.objective <= best.objective * (1 + 1e-9)
        assert all(len(pipeline.stages) == 1 for pipeline in undivided.pipelines)
        assert all(stage.gpus == 1 for pipeline in pairs.pipelines for stage in pipeline.stages)


def test_fewest_gpus_serve_the_load_and_one_less_does_not() -> None:
    source = random.Random(7)
    tried = 0
    while tried < 25:
        cluster = a_cluster(source, ("H", "L"), 4)
        demands = [a_demand(source, a_network(source, name, ("H", "L"), 3, 2, 2)) for name in "ab"]
        try:
            full = plan_most(demands, cluster, MARGIN, 2)
        except BadInput:
            continue
        load = full.objective * source.uniform(0.1, 0.95)
        if full.objective <= 0:
            continue
        tried += 1
        plan = plan_fewest(demands, load, cluster, MARGIN, 2)
        check(plan, demands, cluster)
        assert min(plan.rates.values()) >= load * (1 - 1e-6)
        assert sum(plan.gpus.values()) <= plan.objective
        for gpus in itertools.product(*(range(1, count + 1) for count in cluster.gpus.values())):
            if sum(gpus) < plan.objective:
                smaller = Cluster(
                    dict(zip(cluster.gpus, gpus)), cluster.bytes_per_s, cluster.per_machine, cluster.link_share
                )
                assert plan_most(demands, smaller, MARGIN, 2).objective < load
        with pytest.raises(BadInput, match="this cluster serves"):
            plan_fewest(demands, full.objective * 1.01, cluster, MARGIN, 2)


def test_rows_that_are_not_beaten_are_those_of_the_definition() -> None:
    source = np.random.default_rng(1)
    for columns in (1, 2, 3):
        rates = np.round(source.uniform(0, 5, (200, columns)), 1)
        rows_kept = pareto_rows(rates)
        for row in rates:
            assert any((rates[other] >= row).all() for other in rows_kept)
        for one, other in itertools.permutations(rows_kept, 2):
            assert not (rates[other] >= rates[one]).all()


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the published plans are not here: nothing was compared with them")
def test_plans_are_as_good_as_the_published_ones() -> None:
    networks = profile.load_profiles(DATA)
    with open(DATA / "reference_plans.csv", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["scheduler"] == "v4"]
    single_rows = [[row] for row in rows if row["experiment"] == "ablation"]
    rest = [row for row in rows if row["experiment"] != "ablation"]
    groups: List[List[Dict[str, str]]] = single_rows + [rest[at : at + 3] for at in range(0, len(rest), 3)]
    ratios = []
    for group in groups:
        row = group[0]
        high, low = row["gpu_hi"], row["gpu_lo"]
        weights = [float(weight) for weight in row["weights"].split("-")] if row["weights"] else [1.0]
        cluster = Cluster(
            {high: 25, low: 75},
            float(row["bw_gbps"]) * 1e9 / 8,
            dict(zip((high, low), json.loads(row["gpus_per_server"]))),
            link_share=1.0,
        )
        demands = [
            Demand(networks[one["dnn"]], float(one["slo_us"]) / 1e6, weight) for one, weight in zip(group, weights)
        ]
        plan = plan_most(demands, cluster, float(row["slo_margin_us"]) / float(row["slo_us"]), int(row["max_parts"]))
        ratios.append(plan.objective / min(float(one["xput_rps"]) / weight for one, weight in zip(group, weights)))
    assert len(ratios) == 90
    assert min(ratios) >= 0.985
    assert sum(ratio >= 0.9999 for ratio in ratios) >= 80


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster({"H": 0}, 1e9), "0 GPUs of class H"),
        (Cluster({}, 1e9), "combinations of GPU counts"),
        (Cluster({"H": 400, "L": 400}, 1e9), "combinations of GPU counts"),
        (Cluster({"H": 1}, 0.0), "links of 0.0 bytes"),
        (Cluster({"H": 1}, 1e9, link_share=1.5), "a link share of 1.5"),
        (Cluster({"A100": 1}, 1e9), "nothing says what a takes on A100"),
    ],
)
def test_impossible_plans_are_reported(cluster: Cluster, message: str) -> None:
    source = random.Random(1)
    demand = a_demand(source, a_network(source, "a", ("H", "L"), 3, 2, 1))
    with pytest.raises(BadInput, match=message):
        plan_most([demand], cluster)


def test_a_network_that_no_pipeline_answers_in_time_is_reported() -> None:
    source = random.Random(1)
    network = a_network(source, "a", ("H", "L"), 3, 2, 1)
    with pytest.raises(BadInput, match="the fastest pipeline answers after"):
        plan_most([Demand(network, 1e-5)], Cluster({"H": 1, "L": 1}, 1e9))
