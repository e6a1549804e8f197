"""What is made of rounds and of launches: ratios of pairs with their intervals, the best mode, and what is held."""

from __future__ import annotations

import json
import pathlib
import random
from typing import List, Tuple

import pytest

from edge_offload import records
from edge_offload.errors import RemoteError
from edge_offload_benchmarks import launched
from edge_offload_benchmarks.experiments import modes

SETTING = {"model": "net", "mbps": 8.0, "rtt_ms": 2.6, "slowdown": 4.0}
FACTORS = {"local": 2.0, "server": 1.0, "replay": 0.8, "split": 1.3, "auto": 0.8}


def test_pairs_determine_the_best_mode_on_a_machine_whose_speed_changes() -> None:
    chooser, rounds = random.Random(1), []
    for _ in range(60):
        machine = chooser.uniform(0.1, 1.0)  # both of a pair meet it
        rounds.append({
            name: [machine * factor * chooser.uniform(0.97, 1.03), "replay" if name == "auto" else name, "", "why"]
            for name, factor in FACTORS.items()
        })  # fmt: skip
    record = modes.judge_setting(SETTING, {"rounds": rounds, "plan": "split", "lacks": {}, "load": 3.0})
    records.validate("modes_bench", record)
    assert (record["best"], record["beyond_doubt"], record["chosen"]) == ("replay", True, {"replay": 1.0})
    ratios = {row["mode"]: row["ratio"] for row in record["rows"]}
    for name, factor in FACTORS.items():
        middle, low, high = ratios[name]
        assert low <= middle <= high
        assert middle == pytest.approx(factor, rel=0.03)
    undivided = modes.judge_setting(SETTING, {"rounds": [{**each, "split": [0.0, "split", "", ""]} for each in rounds],
                                      "plan": "device-only", "lacks": {}, "load": 3.0})  # fmt: skip
    assert undivided["best"] == "replay", "a plan that divides nothing is local under another name"
    names = ("local", "server", "auto")
    same = [{name: [chooser.uniform(0.9, 1.1), "local", "", ""] for name in names} for _ in range(9)]
    assert not modes.judge_setting(SETTING, {"rounds": same, "plan": "", "lacks": {}, "load": 0.0})["beyond_doubt"]


def run(mode: str, latency_s: float, first_s: float = 5.0, ran: str = "", rate: float = 1e6) -> launched.Launched:
    frames = [(0.5 * number, latency_s, ran or mode) for number in range(60)]
    return launched.Launched(first_s, frames, [rate] * 20, 60, 60, 4, 4)


def test_launches_are_compared_with_the_best_mode() -> None:
    latencies = {"auto": 0.204, "local": 0.4, "server": 0.22, "replay": 0.2, "split": 0.3}
    runs = {name: [run(name, seconds, ran="replay" if name == "auto" else "") for _ in range(2)]
             for name, seconds in latencies.items()}  # fmt: skip
    record = launched.judge_launches(runs, 10.0, 20.0, {"link": "wifi_93mbps"}, 1.1e6)
    records.validate("adaptive_launch", record)
    assert {bar["name"].split(" <")[0]: bar["met"] for bar in record["bars"]} == dict.fromkeys(
        (bar["name"].split(" <")[0] for bar in record["bars"]), True
    )
    assert record["bars"][0]["value"] == "1.020 [1.020, 1.020] x replay"
    runs["auto"] = [run("auto", 0.25, 7.0, "server", 2e6)] * 2
    bars = launched.judge_launches(runs, 10.0, 20.0, {}, 1.1e6)["bars"]
    assert [bar["met"] for bar in bars] == [False, False, False, False, True, True, False]


@pytest.mark.parametrize(("server_s", "ran", "met"), [
    (0.18, "server", True), (0.18, "split", False), (0.19, "server", False), (0.19, "split", True)
])  # fmt: skip
def test_the_default_runs_in_replay_or_split_unless_another_mode_is_faster(server_s, ran, met) -> None:
    latencies = {"auto": server_s, "server": server_s, "replay": 0.2, "split": 0.21}
    runs = {name: [run(name, seconds, ran=ran if name == "auto" else "")] for name, seconds in latencies.items()}
    bar = launched.judge_launches(runs, 10.0, 20.0, {}, 0.0)["bars"][1]
    assert bar["met"] is met
    assert bar["name"].endswith("server" if server_s == 0.18 else "replay or split")


def test_launches_without_a_lead_are_compared_with_the_server_while_they_learn() -> None:
    runs = {"auto": [run("auto", 0.216, ran="server")] * 3, "server": [run("server", 0.2)] * 3}
    record = launched.judge_launches(runs, 0.0, 20.0, {"link": "wifi_93mbps"}, 1.1e6)
    records.validate("adaptive_launch", record)
    bars = {bar["name"].split(" <")[0]: (bar["value"], bar["met"]) for bar in record["bars"]}
    assert bars["frames while learning"] == ("1.080 [1.080, 1.080] x", True)
    assert "mean latency" not in bars, "nothing was waited for"
    assert not launched.judge_launches({**runs, "auto": [run("auto", 0.23)] * 3}, 0.0, 20.0, {}, 0.0)["bars"][1]["met"]


def test_launches_that_were_saved_are_not_rerun(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: List[str] = []

    def launch(mode: str, *_: object) -> launched.Launched:
        ran.append(mode)
        if len(ran) == 3:
            raise RemoteError("no result")
        return run(mode, 0.2)

    monkeypatch.setattr(launched, "run_launch", launch)
    with pytest.raises(RemoteError):
        launched.compare_modes(1, 10.0, 20.0, {}, folder=tmp_path)
    record = launched.compare_modes(1, 10.0, 20.0, {}, folder=tmp_path)
    assert ran == ["auto", "local", "server", "server", "replay", "split"]
    assert record == {
        **launched.compare_modes(1, 10.0, 20.0, {}, folder=tmp_path),
        "load_average": record["load_average"],
    }


def test_a_launch_is_read_from_its_records(tmp_path: pathlib.Path) -> None:
    lines: List[Tuple[str, float, dict]] = [
        ("mode", 1.0, {"reason": "set by the parameter ~mode"}),
        ("latency", 12.0, {"total_s": 0.2, "mode": "server"}),
        ("bandwidth", 13.0, {"uplink_bytes_per_s": 3e6}),
        ("mode", 14.0, {"reason": "split is expected to finish first: 2.1 MB/s up"}),
        ("mode", 15.0, {"reason": "because"}),
        ("latency", 22.0, {"total_s": 0.1, "mode": "split"}),
        ("bandwidth", 23.0, {"uplink_bytes_per_s": 2e6}),
    ]
    (tmp_path / "summary.jsonl").write_text(
        "".join(json.dumps({"kind": kind, "t_s": at, **rest}) + "\n" for kind, at, rest in lines)
    )
    (tmp_path / "summary.json").write_text(json.dumps({"frames_in": 3, "results_out": 2}))
    launch = launched.read_launch(tmp_path / "summary.json", 10.0)
    assert launch == launched.Launched(2.0, [(0.0, 0.2, "server"), (10.0, 0.1, "split")], [2e6], 3, 2, 2, 1)
    (tmp_path / "summary.jsonl").write_text(json.dumps({"kind": "about", "t_s": 1.0}) + "\n")
    with pytest.raises(RemoteError, match="without a result"):
        launched.read_launch(tmp_path / "summary.json", 10.0)
