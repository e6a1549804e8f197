"""The phase ``shapes`` of scripts/gpu: what was counted is there whatever ends a survey, and how much of it that is."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, List

import pytest

from edge_offload_benchmarks.gpu import results, settings
from edge_offload_benchmarks.gpu.phases import shapes

#: Stands for a process of the survey: three entries, of which the second is what the mode says.
PROCESS = """
import os, sys, time
start = int(sys.argv[sys.argv.index("--start") + 1])
print("entries 3", flush=True)
for entry in range(start, 3):
    if entry == 1:
        time.sleep(60) if sys.argv[1] == "sleeps" else sys.exit("it ended")
    print('shapes [["aten::sort", 1, 0, 2, %d]]' % (entry == 2), flush=True)
"""


@pytest.fixture
def survey(tmp_path: Any) -> shapes.Survey:
    return shapes.Survey(tmp_path / "shapes_counts.json", {"torch": "2.11.0", "device": "cpu"})


def command(mode: str) -> List[str]:
    return [sys.executable, "-c", PROCESS, mode]


@pytest.mark.process
def test_an_entry_that_ends_its_process_is_skipped(survey: shapes.Survey) -> None:
    shapes.run_part(command("ends"), 0, time.monotonic() + 120, survey)
    document = survey.make_document()
    assert document["entries"] == {"covered": 2, "of": 3, "skipped": 1}
    assert document["counts"] == [["aten::sort", 1, 0, 4, 1]]
    assert survey.errors == ["it ended\n"]


@pytest.mark.process
def test_counts_until_the_time_limit_are_saved(survey: shapes.Survey) -> None:
    shapes.run_part(command("sleeps"), 0, time.monotonic() + 5, survey)
    document = survey.make_document()
    assert document["entries"] == {"covered": 1, "of": 3, "skipped": 0}
    assert document["counts"] == [["aten::sort", 1, 0, 2, 0]]


def test_a_phase_writes_partial_results_when_its_processes_do_not_end(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_ends(_: Any, number: int, __: float, survey: shapes.Survey) -> None:
        survey.entries[number] = 2
        survey.add_rows([["aten::sort", 1, 0, 3, 0]])
        end.wait(60)

    end = threading.Event()
    monkeypatch.setattr(shapes, "run_part", never_ends)
    monkeypatch.setattr(shapes, "END_S", 0.1)
    phase = results.Phase("shapes", settings.Settings("cpu", str(tmp_path), tiny=True), shapes.RECORD_S + 5.2)
    shapes.run(phase)
    end.set()
    record = results.read_json(phase.path)["records"][0]
    assert (record["covered"], record["of"], record["finished"]) == (2, 4, False)
    written = json.loads((phase.settings.results / "shapes_counts.json").read_text())
    assert written["counts"] == [["aten::sort", 1, 0, 6, 0]]
    assert written["entries"] == {"covered": 2, "of": 4, "skipped": 0}
