"""``edge-offload pool plan``: plans as JSON and as text, and one line for what makes no sense."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Sequence

import pytest

from edge_offload.cli import main
from edge_offload.server.pool import profile
from tests.server.pool.pool_nets import a_network

Capture = pytest.CaptureFixture


@pytest.fixture
def profiles(tmp_path: pathlib.Path) -> str:
    source = random.Random(2)
    profile.save_profiles(tmp_path, {name: a_network(source, name, ("H", "L"), 5, 4, 2) for name in ("a", "b")})
    return str(tmp_path)


def plan(profiles: str, *more: str) -> int:
    return main(["pool", "plan", "--profiles", profiles, "--cluster", "2xH,6xL", "--bandwidth", "10", *more])


def test_plan_prints_stages_as_json_and_as_text(profiles: str, capsys: Capture) -> None:
    options = ("--network", "a", "--network", "b:2", "--slo", "0.2", "--slo", "b=0.1")
    assert plan(profiles, *options, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert set(made) == {"objective", "pipelines"}
    rates = {name: sum(one["rate"] for one in made["pipelines"] if one["network"] == name) for name in "ab"}
    assert min(rates["a"], rates["b"] / 2) == pytest.approx(made["objective"])
    for pipeline in made["pipelines"]:
        assert [set(stage) for stage in pipeline["stages"]] == [{"blocks", "class", "share", "batch", "gpus"}] * len(
            pipeline["stages"]
        )
        assert pipeline["stages"][-1]["blocks"][1] == 5
    assert plan(profiles, *options) == 0
    text = capsys.readouterr().out
    assert f"a: {rates['a']:.1f} frames per second" in text
    assert "GPUs in use: " in text


def test_plan_marks_undivided_networks_of_a_server(profiles: str, capsys: Capture) -> None:
    options = ("pool", "plan", "--profiles", profiles, "--cluster", "6xH,12xL", "--network", "a", "--slo", "0.02")
    printed = {}
    for planner in ("pooled", "steady", "whole"):
        assert main([*options, "--margin", "0.1", "--planner", planner]) == 0
        printed[planner] = capsys.readouterr().out
    why = "undivided; in stages it would promise 5.9 % more, and answer less in time\n"
    assert printed["steady"] == printed["whole"] + why
    assert printed["pooled"].endswith(f"a server takes another plan (--planner steady): {why}")
    assert main([*options, "--margin", "0.3"]) == 0
    assert "a server takes another" not in capsys.readouterr().out


def test_simulate_prints_the_share_answered_in_time(profiles: str, capsys: Capture) -> None:
    options = ("pool", "simulate", "--profiles", profiles, "--cluster", "2xH,6xL", "--network", "a", "--slo", "0.2")
    assert main([*options, "--at", "0.3", "3", "--seconds", "2", "--spread", "0.1", "--json"]) == 0
    light, heavy = json.loads(capsys.readouterr().out)["loads"]
    assert light["attainment"]["a"] > 0.98 > 0.6 > heavy["attainment"]["a"]
    assert main([*options, "--at", "0.3", "--seconds", "2"]) == 0
    assert "0.30 of the plan: in time a " in capsys.readouterr().out
    assert main([*options, "--at", "0"]) != 0


def test_reservations_serve_a_light_load_and_no_more_than_the_plan_of_a_heavy_one(
    profiles: str, capsys: Capture
) -> None:
    options = ("pool", "simulate", "--profiles", profiles, "--cluster", "2xH,6xL", "--network", "a", "--slo", "0.2")
    assert main([*options, "--scheduler", "reserved", "--at", "0.3", "3", "--seconds", "2", "--json"]) == 0
    light, heavy = json.loads(capsys.readouterr().out)["loads"]
    assert light["attainment"]["a"] > 0.98 > 0.6 > heavy["attainment"]["a"]


def test_load_of_more_gpus_than_exist_is_refused(profiles: str, capsys: Capture) -> None:
    assert plan(profiles, "--network", "a", "--slo", "0.2", "--load", "20", "--json") == 0
    assert 1 <= json.loads(capsys.readouterr().out)["objective"] < 8


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--network", "c", "--slo", "0.2"), "has no network c; it has a, b"),
        (("--network", "a:x", "--slo", "0.2"), "weight 'x'"),
        (("--network", "a", "--network", "a", "--slo", "0.2"), "--network a: twice"),
        (("--network", "a", "--slo", "b=0.2"), "no such --network"),
        (("--network", "a", "--network", "b", "--slo", "b=0.2"), "no --slo for a"),
        (("--network", "a", "--slo", "nan"), "--slo nan"),
        (("--network", "a", "--slo", "1e-6"), "the fastest pipeline answers after"),
        (("--network", "a", "--slo", "0.2", "--margin", "1"), "--margin 1"),
        (("--network", "a", "--slo", "0.2", "--partitions", "0"), "--partitions 0"),
        (("--network", "a", "--slo", "0.2", "--per-machine", "Z=2"), "--per-machine 'Z=2'"),
        (("--network", "a", "--slo", "0.2", "--load", "1e9"), "this cluster serves"),
        (("--network", "a", "--slo", "0.2", "--cluster", "0xH"), "no number of GPUs of a class"),
        (("--network", "a", "--slo", "0.2", "--link-share", "2"), "a link share of 2"),
    ],
)
def test_what_makes_no_sense_is_one_line(more: Sequence[str], message: str, profiles: str, capsys: Capture) -> None:
    assert plan(profiles, *more) != 0
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
