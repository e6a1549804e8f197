"""The corpus of programs: what a run is held to be, and some that need no package of their own."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from edge_offload_benchmarks.programs.catalogue import catalogue
from edge_offload_benchmarks.programs.compare import STEADY, Run, verdict

pytest.importorskip("torch")


def lines(*digests: str, trips: int = 1) -> List[Dict[str, Any]]:
    return [{"digest": digest, "seconds": 0.1, "busy_s": 0.1, "trips": trips} for digest in digests]


def test_equal_bits_pass_and_other_bits_are_wrong_whatever_else_happened():
    plain = Run(lines("a", "b", "c"))
    assert verdict(plain, Run(lines("a", "b", "c")), 3)["verdict"] == "passed"
    assert verdict(plain, Run(lines("a", "x", "c")), 3)["verdict"] == "wrong"
    assert verdict(plain, Run(lines("a", "x"), "hangs: not over after 9 s"), 3)["verdict"] == "wrong"


def test_a_refusal_names_the_remedy_and_a_crash_does_not():
    plain = Run(lines("a", "b"))
    refused = "Unsupported: operator 'aten::x' is not supported -> leave it out"
    assert verdict(plain, Run([], refused), 2)["verdict"] == "refused"
    assert verdict(plain, Run([], "terminate called without an active exception"), 2)["verdict"] == "failed"
    assert verdict(plain, Run(lines("a"), "hangs: not over after 9 s"), 2)["verdict"] == "hangs"


def test_steady_trips_are_those_from_the_fifteenth_inference_on():
    digests = [str(number) for number in range(20)]
    run = Run([{**line, "trips": 7 if number < 5 else 1} for number, line in enumerate(lines(*digests))])
    found = verdict(Run(lines(*digests)), run, 20)
    assert STEADY == 14
    assert (found["first_trips"], found["steady_trips"], found["steady_from"]) == (7, 1, 5)


def test_the_corpus_is_large_and_its_names_say_the_package():
    programs = catalogue()
    assert len(programs) >= 60
    assert all("/" in name for name in programs)
    assert len({name.split("/")[0] for name in programs}) >= 12


@pytest.mark.process
@pytest.mark.slow
def test_programs_without_packages_have_the_bits_of_the_cpu(tmp_path: pathlib.Path):
    record = tmp_path / "programs.json"
    command = [
        sys.executable,
        "-m",
        "edge_offload.cli",
        "bench",
        "programs",
        "--modes",
        "replay",
        "--json",
        str(record),
    ]
    command += [
        "--inferences",
        "16",
        "--only",
        "plain/cascade",
        "plain/lstm_policy",
        "plain/until",
        "torchscript/frozen",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {item["program"]: item["modes"]["replay"] for item in json.loads(record.read_text())["programs"]}
    assert {row["verdict"] for row in rows.values()} == {"passed"}
    assert rows["plain/lstm_policy"]["steady_trips"] == 1
