"""Turns in virtual time and their ceiling, on tables that are made up."""

from __future__ import annotations

import json
import math
import pathlib
from types import SimpleNamespace
from typing import List

import numpy as np
import pytest

from edge_offload.cli import main
from edge_offload.errors import BadInput, RemoteError
from edge_offload_benchmarks.experiments import multitask
from edge_offload_benchmarks.patrol_run import RESULTS, read_messages
from edge_offload_benchmarks.simulation import staleness, turn_links
from edge_offload_benchmarks.simulation.offline_optimum import optimum
from edge_offload_benchmarks.simulation.staleness import FAR, METHODS, VERSION, Stretch, Table, load, save
from edge_offload_benchmarks.simulation.turn_taking import (
    Estimates,
    Pair,
    Pattern,
    Turns,
    by_frame,
    drops_of,
    replayed,
    take_turns,
)  # fmt: skip


def a_table(task: str, rates: np.ndarray, seed: int = 0) -> Table:
    """Results that lose ``rates`` per frame of staleness, by the frame where they end, and 0.1 at once."""
    random = np.random.default_rng(seed)
    count = len(rates)
    lost = np.concatenate([[0.0], np.cumsum(rates)])
    drop = np.full((count, FAR + 1), np.nan)
    for later in range(FAR + 1):
        drops_per_age = lost[later + 1 :] - lost[1 : count - later + 1]
        drop[: count - later, later] = np.minimum(
            1.0, (0.1 + drops_per_age + random.uniform(0, 0.01, len(drops_per_age))) * (later > 0)
        )
    arrays = {f"drop/{method}": drop for method in METHODS}
    arrays["drop/local"] = np.full(count, 0.4)
    if task == "scene":
        arrays["phase"] = np.zeros(count)
        arrays.update({"truth/held": 1 - drop, "truth/carried": 1 - drop, "truth/local": np.full(count, 0.6)})
    else:
        boxes = np.tile(np.array([[[100.0, 100, 150, 200]]]), (count, 1, 1))
        arrays.update({"boxes/network": boxes, "boxes/local": boxes, "boxes/speed": np.zeros((count, 1, 2))})
        arrays["boxes/carried"] = np.tile(boxes[:, None], (1, FAR + 1, 1, 1))
    about = {"version": VERSION, "task": task, "name": task, "frames": count, "network_s": 0.1, "bytes": 1000.0}
    return Table(about, arrays)


def a_pair(first: np.ndarray, second: np.ndarray, latencies=(4, 4)) -> Pair:
    return Pair((a_table("people", first), a_table("scene", second, 1)), latencies)


def constant(rate: float, count: int = 160) -> np.ndarray:
    return np.full(count, rate)


def listed(costs, latencies, end, frame, stale) -> float:
    """The least cost by trying everything."""
    if frame >= end:
        return 0.0
    far = costs[0].shape[1] - 1

    def until(passed: int) -> float:
        nows = range(frame, min(end, frame + passed))
        return sum(cost[now, min(far, age + now - frame)] for now in nows for cost, age in zip(costs, stale))

    best = until(1) + listed(costs, latencies, end, frame + 1, [age + 1 for age in stale])
    for k, latency in enumerate(latencies):
        after = [latency if k == other else age + latency for other, age in enumerate(stale)]
        best = min(best, until(latency) + listed(costs, latencies, end, frame + latency, after))
    return float(best)


@pytest.mark.parametrize("seed", range(20))
def test_optimum_is_the_best_of_everything_that_can_be_done(seed: int) -> None:
    random = np.random.default_rng(seed)
    latencies = [int(random.integers(1, 4)), int(random.integers(1, 4))]
    costs = [random.random((8, 5)) for _ in range(2)]
    seen = [1 - int(random.integers(1, 7)) for _ in range(2)]
    least, offloads = optimum(costs, latencies, 1, 8, seen)
    assert least == pytest.approx(listed(costs, latencies, 8, 1, [1 - of for of in seen]), abs=1e-9)
    for (frame, k), (after, _) in zip(offloads, offloads[1:]):
        assert after >= frame + latencies[k]


@pytest.mark.parametrize("latencies", [(4, 4), (2, 5), (1, 3)])
def test_the_optimal_schedule_costs_its_optimum_and_no_other_is_better(latencies) -> None:
    random = np.random.default_rng(3)
    pair = a_pair(random.uniform(0, 0.05, 120), random.uniform(0, 0.05, 120), latencies)
    costs = pair.drops("carried")
    least, offloads = optimum(costs, latencies, pair.begin, pair.end, pair.seen)
    stale = replayed(pair, offloads)
    assert drops_of(pair, "carried", stale, np.zeros_like(stale, dtype=bool)).sum() == pytest.approx(least)
    for choose in (Pattern((1, 1)), Pattern((3, 1)), Pattern((1, 2)), Turns((1.0, 1.0))):
        assert take_turns(pair, choose, Estimates(), False).drops.sum() >= least - 1e-9


def test_a_result_is_shown_from_its_latency_on_and_not_a_frame_sooner() -> None:
    pair = a_pair(constant(0.01), constant(0.01), (4, 2))
    outcome = take_turns(pair, Pattern((1, 1)), Estimates(), False)
    assert outcome.offloads[:4] == [(30, 0), (34, 1), (36, 0), (40, 1)]
    assert outcome.stale[0, :11].tolist() == [4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 4]
    assert outcome.stale[1, :7].tolist() == [2, 3, 4, 5, 6, 7, 2]
    assert (replayed(pair, outcome.offloads) == outcome.stale).all()
    together = take_turns(pair, Pattern((1, 1)), Estimates(), False, together=True)
    assert together.stale[:, :8].tolist() == [[4, 5, 6, 7, 8, 9, 6, 7], [2, 3, 4, 5, 6, 7, 6, 7]]


def test_drops_are_those_of_the_frame_that_is_shown() -> None:
    table = np.arange(100 * (FAR + 1), dtype=float).reshape(100, FAR + 1)
    shown = by_frame(table)
    assert shown[50, 7] == table[43, 7]
    assert math.isnan(shown[6, 7])


def test_the_local_algorithm_is_shown_where_it_is_expected_to_be_better() -> None:
    pair = a_pair(constant(0.05), constant(0.0), (8, 8))
    outcome = take_turns(pair, Pattern((1, 3)), Estimates(), True)
    late = outcome.stale[0, 60:] > 8
    assert outcome.local[0, 60:][late].mean() > 0.9
    assert not outcome.local[1, 60:].any()
    assert (outcome.drops[0, 60:][outcome.local[0, 60:]] == 0.4).all()


def test_over_links_rule_and_search_have_the_same_luck(monkeypatch) -> None:
    monkeypatch.setattr(turn_links, "LINKS", turn_links.LINKS[-1:])
    monkeypatch.setattr(turn_links, "COMPUTES_S", turn_links.COMPUTES_S[:1])
    monkeypatch.setattr(turn_links, "CHOOSERS", {"turns": turn_links.Turns, "plan": turn_links.Turns})
    pair = a_pair(constant(0.02, 60), constant(0.01, 60))
    (row,) = turn_links.over_links([pair], [pair], 1)
    assert row["mean"] == row["least"] == row["most"] == 1.0
    assert row["runs"] == 6
    assert all(age > 0.12 for age in row["turns_stale_s"]), "nothing is there before the server has computed it"


def test_turns_go_to_the_task_that_loses_more() -> None:
    pair = a_pair(constant(0.03), constant(0.001))
    whose = [k for _, k in take_turns(pair, Turns((0.5, 0.5)), Estimates(), False).offloads]
    assert whose.count(0) >= 2 * whose.count(1)
    weighted = [k for _, k in take_turns(pair, Turns((0.001, 0.999)), Estimates(), False).offloads]
    assert weighted.count(1) > weighted.count(0)


def test_constant_rates_and_a_robot_that_stands() -> None:
    for row in multitask.constant_rates([10], (4, 4), turns=60):
        assert row["long_run"] <= 1.005 * row["best_period"]
    assert multitask.standing_share((4, 4))["share"] >= 0.75


def test_tables_are_saved_and_other_files_refused(tmp_path: pathlib.Path) -> None:
    made = a_table("scene", constant(0.01, 60))
    save(tmp_path / "t.npz", made)
    loaded = load(tmp_path / "t.npz")
    assert loaded.about == made.about
    assert np.allclose(loaded.drop("carried"), made.drop("carried"), equal_nan=True, atol=1e-6)
    (tmp_path / "bad.npz").write_bytes(b"no table")
    with pytest.raises(BadInput, match="no table of staleness"):
        load(tmp_path / "bad.npz")


def test_people_are_compared_with_those_of_the_very_frame_that_they_are_shown_in() -> None:
    """Somebody walks 20 px a frame: moved so far nothing is lost, held it is, in any frame but the own one."""
    count = 40
    network = np.array([[[20.0 * n, 50.0, 20.0 * n + 60, 200.0]] for n in range(count)])
    carried = np.full((count, FAR + 1, 1, 4), np.nan)
    for n in range(count):
        for later in range(1, min(FAR, count - 1 - n) + 1):
            carried[n, later] = network[n + later]
    speed = np.full((count, 1, 2), [200.0, 0.0])
    drops = staleness._people_drops(
        {"boxes/network": network, "boxes/local": network, "boxes/speed": speed, "boxes/carried": carried}
    )
    for n in range(count):
        known_ages = min(FAR, count - 1 - n) + 1
        for method in METHODS:
            assert np.isfinite(drops[f"drop/{method}"][n, :known_ages]).all()
            assert np.isnan(drops[f"drop/{method}"][n, known_ages:]).all()
        assert drops["drop/carried"][n, :known_ages] == pytest.approx(0, abs=1e-6)
        assert drops["drop/velocity"][n, :known_ages] == pytest.approx(0, abs=1e-6)
        assert drops["drop/held"][n, 0] == pytest.approx(0, abs=1e-6)
        assert (np.diff(drops["drop/held"][n, : min(known_ages, 4)]) > 0).all()
    assert drops["drop/local"] == pytest.approx(0, abs=1e-6)


def test_scenes_are_compared_with_those_of_the_very_sweep_that_they_are_shown_in(monkeypatch) -> None:
    from edge_offload.models.sconet import completer
    from edge_offload.perception.agreement import scene_drop

    labels: List[np.ndarray] = []

    class Hits:
        def __init__(self, grid) -> None:
            self.grid = grid

        def complete(self, points: np.ndarray) -> np.ndarray:
            labels.append((self.grid.occupancy(points) > 0).astype(np.uint8) * 9)
            return labels[-1]

    monkeypatch.setattr(completer, "SceneCompleter", Hits)
    table = staleness._scene(Stretch("scene", 0, 5), lambda _: None)
    stale, carried = table.arrays["drop/held"], table.arrays["drop/carried"]
    for n in range(5):
        for later in range(5 - n):
            assert stale[n, later] == pytest.approx(scene_drop(labels[n], labels[n + later])), (n, later)
        assert np.isnan(stale[n, 5 - n :]).all()
        assert carried[n, 0] == stale[n, 0] == 0
    assert (stale[0, 1:5] > 0).all(), "the robot drives"
    assert np.nanmean(carried[:, 1:5]) < np.nanmean(stale[:, 1:5])


def test_the_command_on_small_tables(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    random = np.random.default_rng(5)
    for stretch in (Stretch("people", 400, 100), Stretch("people", 601, 100), Stretch("scene", 1, 100),
                    Stretch("scene", 2, 100, validation=True)):  # fmt: skip
        save(tmp_path / f"{stretch.name}.npz", a_table(stretch.task, random.uniform(0, 0.03, 100), stretch.number))
    labelled, plotted = tmp_path / "labels.json", tmp_path / "m.png"
    labels = {"frames": [{"frame": 660, "people": [{"box": [100, 100, 150, 200], "partial": False}]}]}
    labelled.write_text(json.dumps(labels))
    out = tmp_path / "multitask.json"
    options = ["--tables", str(tmp_path), "--train", "400:100/1", "--held-out", "601:100/2", "--weights", "1:1",
             "--seeds", "0", "--labels", str(labelled), "--json", str(out), "--plot", str(plotted)]  # fmt: skip
    assert main(["bench", "multitask", *options]) == 0
    record = json.loads(out.read_text())
    assert record["weights"][0]["optimum"]["mean"] <= record["weights"][0]["turns"]["mean"]
    names = {row["schedule"] for row in record["rows"]}
    assert {"today", "constant velocity", "local alone", "all at once", "round-robin", "turns", "optimum"} <= names
    assert record["people"][0]["f1"]["carried"] == 1.0
    assert plotted.stat().st_size > 1000
    assert "turns" in capsys.readouterr().out
    assert main(["bench", "multitask", "--tables", str(tmp_path), "--weights", "nan:1"]) == 1


class At:
    """A time or a duration, as messages have them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def to_sec(self) -> float:
        return self.seconds

    def to_nsec(self) -> int:
        return round(self.seconds * 1e9)


def message(second: float, **fields: object) -> SimpleNamespace:
    return SimpleNamespace(header=SimpleNamespace(stamp=At(second)), **fields)


def test_a_real_run_is_read_by_task() -> None:
    messages = []
    for task, topic in RESULTS.items():
        for number in range(11):
            seen = SimpleNamespace(origin="carried", seen=At(100 + number / 10 - 0.3))
            messages.append((topic, message(100 + number / 10, result=seen), 0))
        messages.append(("/offload/drop", message(100, task=task, drop=0.25, staleness=At(0.4)), 0))
        messages.append(("/offload/turn_taken", message(100, task=task, state=3, ENDED=3), int(100.2e9)))
    by_task = read_messages(messages)
    assert by_task["scene"].pop("results_by_origin") == {"carried": 11}
    assert by_task["scene"] == pytest.approx(
        {"stale_s": 0.3, "turns_per_s": 1.0, "latency_s": 0.2, "compared": 1,
         "drop": 0.25, "drop_stale_s": 0.4}, abs=1e-6,
    )  # fmt: skip
    with pytest.raises(RemoteError, match="nothing was carried of the task scene"):
        read_messages(messages[:-1])


def test_local_algorithms_cost_more_joules_than_sending() -> None:
    offloads, sent = (3.0, 2.0), 3e5
    plain, local = (multitask.joules_per_s(offloads, sent, True, local) for local in (False, True))
    assert 4.04 < multitask.joules_per_s((0.0, 0.0), 0.0, False, False) + 0.2 < plain + 0.2 < local
    assert local <= 13.35 + 0.21
