"""``scripts/gpu run papers``: a row per network, link and mode; one that fails, or does not fit, is a record."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

from edge_offload_benchmarks.gpu import papers_links, results, settings
from edge_offload_benchmarks.gpu.phases import papers
from edge_offload_benchmarks.gpu.power import EnergyLog
from edge_offload_research.emulate.trace import synthesise_rows

from .test_gpu_kit import SCRIPT, command, read


class StandingLinks:
    """Links that do not change."""

    def restart(self, name):
        """Do nothing."""


@pytest.fixture
def phase(tmp_path):
    return results.Phase("papers", settings.Settings("cpu", str(tmp_path)), 60.0)


def table_with(phase, program):
    robot = papers.Robot(phase.settings, [sys.executable, "-c", program], "")
    return robot, papers.Table(phase, {("tiny", True): robot}, StandingLinks(), EnergyLog(), 2.0)


@pytest.mark.parametrize("name", ["wifi_indoors", "wifi_outdoors"])
def test_a_piece_of_a_trace_has_the_mean_and_the_deviation_of_all_of_it(name):
    rows = synthesise_rows(name)
    rates, piece = [rate for _, rate in rows], papers_links.cut_piece(rows)
    some = [rate for _, rate in piece]
    assert piece[0][0] == 0.0
    assert piece[-1][0] < papers_links.PIECE_S
    assert statistics.fmean(some) == pytest.approx(statistics.fmean(rates), rel=0.1)
    assert statistics.pstdev(some) == pytest.approx(statistics.pstdev(rates), rel=0.2)


def test_the_link_and_each_computing_robot_have_a_core_of_their_own():
    link, computing, others = papers.share_client_cores("0-7")
    assert (link, computing, others) == ("0", ["1", "2", "3", "4", "5"], ["6", "7"])
    assert papers.share_client_cores("") == ("", [""], [""])


def test_measurements_without_a_record_come_first():
    recorded = {"kapao_s local at 93 Mbps", "kapao_s replay at 73 Mbps"}
    ordered = papers.order_measurements(["kapao_s", "vit_s"], recorded)
    assert {papers.title_of(*one) for one in ordered[-2:]} == recorded
    assert ordered[0] == ("kapao_s", "server", "93 Mbps")
    assert len(set(ordered)) == len(ordered) == 2 * (len(papers.MODES) + 2 + 3 * len(papers.LINK_MODES))


@pytest.mark.process
def test_a_robot_that_does_not_answer_is_a_failed_record_and_is_ended(phase, monkeypatch):
    monkeypatch.setattr(papers, "MOST_S", 0.2)
    monkeypatch.setattr(papers, "SLACK_S", 0.2)
    robot, table = table_with(phase, "import time; time.sleep(60)")
    for mode in ("local", "server"):
        table.measure("tiny", mode, "93 Mbps")
    assert robot._process.process.poll() is not None
    assert ["failed" in one for one in phase.records] == [True, True]


@pytest.mark.process
def test_a_row_that_does_not_fit_into_the_time_is_skipped(phase):
    phase.seconds = 0.0
    robot, table = table_with(phase, "import time; time.sleep(60)")
    table.measure("tiny", "local", "93 Mbps")
    robot.stop()
    assert phase.records[0]["skipped"] == "out of time"


@pytest.mark.process
def test_a_mode_that_cannot_run_is_a_failed_record_with_the_reason(phase):
    answer = json.dumps({"ready_s": 1.0, "failed": "it is being traced"})
    robot, table = table_with(phase, f"import sys; [print(n, {answer!r}, flush=True) for n, _ in enumerate(sys.stdin)]")
    for mode in ("split", "server"):
        table.measure("tiny", mode, "93 Mbps")
    robot.stop()
    assert [one["failed"] for one in phase.records] == ["it is being traced"] * 2


@pytest.mark.slow
@pytest.mark.process
def test_a_tiny_rehearsal_measures_each_kind_of_mode(tmp_path):
    arguments = command(tmp_path, "papers", "--limit", "120")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=180, check=False)
    records = {one["name"]: one for one in read(tmp_path)["phases"]["papers"]["records"]}
    for mode, trips in (("local", 0), ("server", 1), ("replay", 1)):
        row = records[f"tiny {mode} at 93 Mbps"]
        assert row["wall"]["n"] >= papers.FRAMES, done.stdout[-3000:]
        assert row["trips"] == trips
    split = records["tiny split at 93 Mbps"]  # a busy machine may not have opened it in time
    assert split.get("ways") or "being opened" in split.get("failed", ""), split


def test_the_page_has_a_row_per_network_and_a_column_per_mode(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parents[1] / "docs"))
    write = pytest.importorskip("generate.gpu_papers").papers
    row = {"link": "93 Mbps", "model": "tiny", "up": 2000, "down": 500, "trips": 1, "gpu": 0.25}
    plan = {"layer cut: 1 on the robot": {"n": 4, "ms": 6.0}}
    lines = write(
        [
            {"name": "robot", "reference": "densenet121", "core_ms": 55.0, "xavier_ms": 74.8, "slowdown": 1.36},
            {"name": "1", "mode": "replay", "wall": {"ms": 7.25, "p95_ms": 9.0}, **row},
            {"name": "2", "mode": "split", "wall": {"ms": 6.0, "p95_ms": 8.0}, "trials": plan, **row},
            {"name": "3", "mode": "lazy", "failed": "no server", **row},
        ]
    )
    assert "It is slowed 1.36 times: DenseNet-121 takes 55.0 ms on the core, and" in lines
    assert "| network | lazy | replay (RRTO) | split |" in lines
    assert "| tiny | – | 7.2 | 6.0 |" in lines
    assert "| tiny | replay | 9.0 | 2.0 | 0.5 | 1 | – | 25.0 | – |" in lines
    assert "| tiny | 93 Mbps | compared | layer cut: 1 on the robot | 4 | 6.00 |" in lines
    assert "- 3: no server" in lines
