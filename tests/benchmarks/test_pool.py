"""``bench pool``: systems side by side in virtual time, and what is made of them."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from edge_offload.cli import main
from edge_offload.server.pool import profile, simulate
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.plan import most
from edge_offload_benchmarks.simulation import reactive


def a_network(name: str, slow: float) -> profile.Network:
    """Four blocks of which the slow class does two well and two badly; batches pay."""
    batches = np.array([0.020, 0.036, 0.050])
    fast = np.tile(batches, (4, 1))
    return profile.Network(
        name,
        {"L4": {1: fast}, "P4": {1: fast * np.array([[1.5], [1.5], [slow], [slow]])}},
        np.array([1e5, 1e5, 1e5]),
    )


def test_dividing_networks_holds_more_than_serving_them_whole(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    profile.save(tmp_path, {name: a_network(name, slow) for name, slow in (("a", 6.0), ("b", 7.0), ("c", 8.0))})
    out = tmp_path / "pool.json"
    asked = ("--cluster", "HC1", "--groups", "1", "--seconds", "1")
    assert main(["bench", "pool", "--profiles", str(tmp_path), *asked, "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    row = record["groups"][0]
    assert set(row["systems"]) == {"pooled", "pooled_links_1", "whole", "paired", "reactive"}
    assert row["systems"]["pooled"]["load"] > row["systems"]["whole"]["load"]
    assert record["summary"]["HC1: gain over whole"]["pooled"] > 0
    assert "HC1: gain over whole" in capsys.readouterr().out


def test_a_reactive_scheduler_answers_a_light_load_and_less_of_a_heavy_one() -> None:
    network = a_network("a", 6.0)
    cluster = Cluster({"L4": 2, "P4": 4}, 1e9)
    plan = most([Demand(network, 0.6)], cluster, 0.4, 2)

    def attained(load: float) -> float:
        times = simulate.poisson(plan.objective * load, 5.0, np.random.default_rng(0))
        return reactive.run(plan, {"a": network}, cluster, {"a": 0.6}, {"a": times})["a"]

    assert attained(0.3) > 0.98
    assert attained(2.0) < 0.7


def test_emulated_clusters_without_ray_or_profile_are_refused_in_a_line(tmp_path, capsys):
    assert main(["bench", "pool"]) != 0
    profile.save(tmp_path, {"a": a_network("a", 6.0)})
    assert main(["bench", "pool", "--profiles", str(tmp_path), "--real", "b"]) != 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "no --profiles" in said[0]
    assert "has no b on L4, P4" in said[1] or "Ray" in said[1] or "Python 3.10" in said[1]
