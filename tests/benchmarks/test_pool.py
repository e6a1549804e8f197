"""``bench pool``: systems side by side in virtual time, and what is made of them."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any, Dict

import numpy as np
import pytest

from edge_offload.cli import main
from edge_offload.server.pool import profile
from edge_offload_benchmarks import pool_faults
from edge_offload_benchmarks.experiments import pool as experiment

#: Of a record that is kept.
FLAT = {name: {"mean": 1.0, "spread": 0.0} for name in ("deadlines", "reserved", "gain")}


def a_network(name: str, slow: float) -> profile.BlockProfile:
    """Four blocks of which the slow class does two well and two badly; batches pay."""
    batches = np.array([0.020, 0.036, 0.050])
    fast = np.tile(batches, (4, 1))
    return profile.BlockProfile(
        name,
        {"L4": {1: fast}, "P4": {1: fast * np.array([[1.5], [1.5], [slow], [slow]])}},
        np.array([1e5, 1e5, 1e5]),
    )


def test_divided_networks_serve_more_load_than_undivided_ones(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    profile.save_profiles(
        tmp_path, {name: a_network(name, slow) for name, slow in (("a", 6.0), ("b", 7.0), ("c", 8.0))}
    )
    out = tmp_path / "pool.json"
    options = ("--cluster", "HC1", "--groups", "1", "--seconds", "1")
    assert main(["bench", "pool", "--profiles", str(tmp_path), *options, "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    row = record["groups"][0]
    assert set(row["systems"]) == {"pooled", "pooled_links_1", "whole", "paired"}
    assert row["systems"]["pooled"]["load"] > row["systems"]["whole"]["load"]
    assert record["summary"]["HC1: gain over whole"]["pooled"] > 0
    assert "HC1: gain over whole" in capsys.readouterr().out
    profile.save_profiles(tmp_path, {"a": a_network("a", 6.0)})
    single_options = ("--cluster", "HC1", "--groups", "0", "--alone", "--seconds", "0.5", "--update")
    assert main(["bench", "pool", "--profiles", str(tmp_path), *single_options, "--json", str(out)]) == 0
    more = json.loads(out.read_text())
    assert more["groups"] == record["groups"], "what is not measured anew is kept"
    assert [row["margin"] for row in more["alone"]] == [0.1, 0.4]
    assert more["summary"]["alone, over whole"]["pooled"] >= 0.97


def test_planning_time_is_reported_saved_and_compared_with_the_bar(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile.save_profiles(
        tmp_path, {name: a_network(name, slow) for name, slow in (("a", 6.0), ("b", 7.0), ("c", 8.0))}
    )
    out = tmp_path / "pool.json"
    out.write_text(json.dumps({"groups": ["kept"]}))
    options = ("bench", "pool", "--profiles", str(tmp_path), "--planning", "--cluster", "HC1", "--json", str(out))
    monkeypatch.setattr(experiment, "PLANNED_S", 1e9)
    assert main([*options]) == 0
    record = json.loads(out.read_text())
    assert record["groups"] == ["kept"]
    assert [(row["what"], row["stages"], row["plans"]) for row in record["planning"]] == [
        ("one network", 3, 12), ("several networks", 2, 2)
    ]  # fmt: skip
    assert all(0 < row["mean_s"] <= row["most_s"] for row in record["planning"])
    assert "one network in up to 3 stages, 12 plans for 25 + 75 GPUs" in capsys.readouterr().out
    monkeypatch.setattr(experiment, "PLANNED_S", min(row["mean_s"] for row in record["planning"]) / 1e3)
    assert main([*options]) == 1


def test_schedulers_are_compared_on_equal_arrivals_and_rows_of_other_clusters_remain(tmp_path, capsys):
    profile.save_profiles(tmp_path, {"a": a_network("a", 6.0)})
    out = tmp_path / "record.json"
    out.write_text(json.dumps({"rows": [{"cluster": "HC2", "plan": "shipped", "at": 0.5, **FLAT}]}))
    options = ("bench", "pool-schedulers", "--profiles", str(tmp_path), "--cluster", "HC1", "--json", str(out))
    assert main([*options, "--update", "--at", "0.3", "1.5", "--seconds", "0.5", "--seeds", "2"]) == 0
    record = json.loads(out.read_text())
    rows = [row for row in record["rows"] if row["cluster"] == "HC1"]
    assert [(row["plan"], row["at"]) for row in rows] == list(itertools.product(("shipped", "links_1"), (0.3, 1.5)))
    for row in rows:
        assert row["gain"]["mean"] == pytest.approx(row["deadlines"]["mean"] - row["reserved"]["mean"], abs=2e-5)
        high = min(row[name]["mean"] for name in ("deadlines", "reserved"))
        assert (high > 0.98) is (row["at"] == 0.3)
    assert [row["cluster"] for row in record["summary"]] == ["HC2", *["HC1"] * 4]
    assert main([*options, "--seeds", "1"]) != 0
    assert "--seeds at least 2" in capsys.readouterr().err


def test_emulated_clusters_without_ray_or_profile_are_refused_in_a_line(tmp_path, capsys):
    assert main(["bench", "pool"]) != 0
    profile.save_profiles(tmp_path, {"a": a_network("a", 6.0)})
    assert main(["bench", "pool", "--profiles", str(tmp_path), "--real", "b"]) != 0
    assert main(["bench", "pool", "--profiles", str(tmp_path), "--faults", "b"]) != 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "no --profiles" in lines[0]
    assert all("has no b on L4, P4" in line or "Ray" in line or "Python 3.10" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("changed", "can"),
    [
        ({}, True),
        ({"free": None}, False),  # nobody else has the stage
        ({"free": None, "anew_s": 3.0}, True),  # … but another route has
        ({"free": None, "anew_s": 4.0}, False),
        ({"free": 9.2}, False),  # … or only too late
        ({"deadline": 7.4}, False),  # it was overdue at 6.5
        ({"noticed": 5.5, "deadline": 7.4}, True),  # a failed call is known of at once
        ({"noticed": 9.5}, True),  # noticing it too late is the driver's fault
        ({"due": 1.0, "deadline": 6.5}, True),  # overdue at once when the fault comes
    ],
)
def test_batches_that_could_be_in_time_elsewhere_are_counted_from_detection_on(changed, can):
    stood: Dict[str, Any] = {"noticed": 6.6, "due": 6.0, "takes": 1.0, "left_s": 1.0, "free": 2.0}
    stood = {**stood, "anew_s": None, "at": "n1", "deadline": 10.0}
    assert pool_faults.could_be_in_time({**stood, **changed}, 5.0, "") is can
    assert pool_faults.could_be_in_time({**stood, **changed}, 5.0, "n2") is can
    assert not pool_faults.could_be_in_time({**stood, **changed}, 5.0, "", 9.0), "calls cost more than there is time"
    assert pool_faults.could_be_in_time({**stood, **changed}, 5.0, "n1") is (changed.get("anew_s") == 3.0), (
        "its tensors are gone"
    )


def test_faults_pass_if_nearly_all_that_could_be_in_time_were_and_none_was_lost():
    row = {"could": 20, "did": 19, "lost": 0, "failed": 0}
    assert pool_faults.meets_share([row])
    assert not pool_faults.meets_share([row, {**row, "did": 18}])
    assert not pool_faults.meets_share([{**row, "lost": 1}])
