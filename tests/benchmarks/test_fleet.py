"""Fleets in virtual time (bench fleet): what is counted, and that systems are judged by what is true."""

from __future__ import annotations

import json
import math
import pathlib
from types import SimpleNamespace
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.server.promises.board import PlannedBatch, Slot
from edge_offload.server.promises.latencies import Latencies
from edge_offload_benchmarks import fleet_robots
from edge_offload_benchmarks.experiments import fleet as bench
from edge_offload_benchmarks.simulation.fleet import (
    LINKS,
    Lines,
    Robot,
    Tables,
    check_promise,
    follow,
    react,
    simulate_single,
)
from edge_offload_benchmarks.simulation.fleet_systems import systems
from edge_offload_benchmarks.simulation.staleness import FAR, METHODS, VERSION, Table, save

GPU = Latencies((0.0125, 0.0185, 0.0245, 0.031))


def robot(number: int = 0, rate: float = 0.006, phase: float = 0.0) -> Robot:
    content = Lines(1 / 30, (rate,) * (number + 1))
    return Robot(number, phase, content, LINKS["Wi-Fi"], np.random.default_rng(number))


def test_drops_are_those_of_the_results_that_are_used() -> None:
    one = robot()
    # frame 0 can be used from frame 3 on, frame 6 from frame 8 on; a late result of an older frame changes nothing
    one.results = [(0, 0.09), (6, 7.5 / 30), (3, 8.5 / 30)]
    ages = one.drop_by_frame(3, 11) / 0.006
    assert ages.round(6).tolist() == [3, 4, 5, 6, 7, 2, 3, 4]


def test_a_batch_starts_when_all_its_frames_have_arrived_and_does_not_wait_for_late_ones() -> None:
    class Plan:
        """One batch, due at 1 s."""

        latencies = GPU

        def __init__(self, frames: Tuple[int, ...]) -> None:
            turns = tuple(Slot(str(number), frame) for number, frame in enumerate(frames))
            self.batches = [PlannedBatch(1.0, 1.001, turns)]
            self.started_at: List[float] = []

        def next_batch(self) -> Optional[PlannedBatch]:
            return self.batches[0] if self.batches else None

        def start_next_batch(self, now: float, present: Optional[int] = None) -> None:
            self.batches.pop()
            self.started_at.append(now)

        def update_plan(self, now: float) -> List[Tuple[str, str]]:
            return []

        def ignore(self, *_: object) -> None:
            pass

        admit_robot = update_wish = record_arrival = record_result = ignore

    for frames, late, earliest, latest in (((20, 21), 0, 0.7, 0.75), ((20, 30), 1, 1.0, 1.002)):
        plan, robots = Plan(frames), [robot(0), robot(1)]
        counts = follow(plan, robots, lambda *_: None, 3.0)
        assert counts["late"] == late
        assert earliest <= plan.started_at[0] <= latest
        assert all(one.results for one in robots), "who is late is computed in what is left"


def test_one_robot_that_sends_back_to_back_is_the_reference() -> None:
    lone, reference = robot(), simulate_single(robot(), GPU, 30.0)
    react([lone], GPU, lambda *_: 1, lambda *_: 1, 30.0)
    fine, mean = check_promise(lone, reference, 0.002, 30.0)
    assert fine
    assert abs(mean) < 0.002


def test_tables_are_replayed_from_a_frame_of_each_robot() -> None:
    table = np.arange(12.0).reshape(4, 3) / 100
    content = Tables(0.1, (np.zeros((1, 3)), table), ((1, 1),))
    # ages 0, 1, 2 and beyond, of sources 2, 1, 0
    assert content.drop(0, np.array([1, 1, 1, 1]), np.array([0, 1, 2, 9])).tolist() == [0.0, 0.04, 0.02, 0.02]


def test_a_cell_has_every_system_and_ours_keeps_its_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MOST", 9)
    monkeypatch.setattr(bench, "INTERVALS", (4, 8))
    monkeypatch.setattr(bench, "BATCHES", (2,))
    row = bench.measure_cell(bench.Cell("linear", 0.02, "gpu", GPU), {}, 20.0, seed=3)
    assert list(row["systems"]) == [system.name for system in systems((1,), (1,))]
    ours = row["systems"]["ours"]
    assert ours["held"] >= 6
    assert 0 < ours["drop_mean"] <= ours["drop_most"] <= 0.02
    assert ours["late"] < 0.03
    assert row["analytic"] > ours["held"]
    searched = row["systems"]["ours-searched"]
    assert searched["held"] >= ours["held"], "what it is shipped with is among what is searched"
    assert searched["drop_most"] <= 0.02
    summary = bench.summarise_cells([row])
    others = ("ARISE", "ARISE-alpha", "Chameleon-like", "Clipper-like", "Static")
    best = max(row["systems"][name]["held"] for name in others)
    assert summary["ours over the best baseline, least"] == ours["held"] / best


@pytest.mark.parametrize("stretches", ["", "7", "0:x", "0:200", "-1:400", "0:400,,"])
def test_impossible_stretches_are_reported(tmp_path: pathlib.Path, stretches: str) -> None:
    with pytest.raises(BadInput, match="stretch"):
        bench.tables("people", stretches, tmp_path, 28.0)


def test_tables_of_bench_multitask_are_read(tmp_path: pathlib.Path) -> None:
    drops = np.full((400, FAR + 1), 0.3)
    arrays = {f"drop/{method}": drops for method in METHODS}
    made = Table({"version": VERSION, "task": "scene"}, {**arrays, "drop/local": drops[:, 0]})
    save(tmp_path / "scene-7-400-held-out.npz", made)
    (table,) = bench.tables("scene", "7:400", tmp_path, 28.0)
    assert table.shape == (400, FAR + 1)
    cell = bench.Cell("scene", 0.05, "gpu", GPU)
    fleet = bench._Fleet(cell, {"scene": (table,)}, 28.0, seed=1)
    assert fleet.judge_robots(systems((8,), (2,))[1].variants[0][1], 4, False)["held"] == 4


def test_a_result_older_than_the_stored_one_teaches_nothing() -> None:
    one = robot()
    for frame, done in ((0, 0.1), (6, 0.3), (3, 0.4)):
        one.computed(frame, done)
    assert one.drops.samples == 1
    assert one.newest == 6


def test_a_record_of_who_had_no_result_is_json() -> None:
    """Every program can read it: JSON has no NaN."""
    silent: Any = SimpleNamespace(sent=3, answered=3, followed=0, promise=SimpleNamespace(fallback_reason=""))
    fate = fleet_robots._describe_fate(
        silent, {"drop": math.nan, "interval": math.nan, "late": 1.0, "note": "", "bound": 0.1}
    )
    assert json.loads(json.dumps(fate, allow_nan=False)) == {
        "sent": 3, "answered": 3, "followed": 0, "alone": "", "drop": None, "interval": None, "late": 1.0, "note": "",
    }  # fmt: skip
