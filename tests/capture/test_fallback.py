"""The device in pure Python: the CPU's bits for programs that it can run, and plain words for the others."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any, Dict

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serving import CLI, ENVIRONMENT, HERE

RUNNER = str(HERE / "run_programs.py")
PROGRAMS = ["conv_net", "in_place_state", "branches", "suppression", "two_models", "two_threads", "deviation",
            "random_loops:0:6", "classes:12", "late_uploads",
            "copies:8:static", "copies:8:dependent", "loaded", "scalars"]  # fmt: skip


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**ENVIRONMENT, **variables}
    )


def programs(*command: str, **variables: str) -> Dict[str, Dict[str, Any]]:
    done = run(*command, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {record["program"]: record for record in records}


@pytest.fixture(scope="module")
def fallback() -> Dict[str, Any]:
    command = [*CLI, "exec", "--threads", "1", "--mode", "replay", "--", sys.executable, RUNNER, *PROGRAMS]
    return programs(*command, "refusals", "conv_net:12", "conv_net:24", EDGE_OFFLOAD_DEVICE="python")


def test_programs_print_the_same_bits_as_on_the_cpu(fallback: Dict[str, Any]) -> None:
    local = programs(sys.executable, RUNNER, *PROGRAMS)
    for name in PROGRAMS:
        assert not fallback[name]["error"], fallback[name]["error"]
        assert fallback[name]["output"] == local[name]["output"], name


def test_a_steady_inference_costs_one_round_trip(fallback: Dict[str, Any]) -> None:
    # a program's first inferences may cost more, until it is known that they repeat
    assert 24 <= fallback["conv_net:24"]["spent"]["round_trips"] <= 26


def test_what_it_cannot_do_is_refused_by_name_with_the_remedy(fallback: Dict[str, Any]) -> None:
    assert not fallback["refusals"]["error"], fallback["refusals"]["error"]
    assert fallback["refusals"]["output"] == "refused\n"


def test_a_choice_that_is_none_is_refused() -> None:
    done = run(*CLI, "exec", "--", sys.executable, "-c", "import torch", EDGE_OFFLOAD_DEVICE="rust")
    assert done.returncode != 0
    assert "EDGE_OFFLOAD_DEVICE=rust" in done.stderr
    assert "Traceback" not in done.stderr
