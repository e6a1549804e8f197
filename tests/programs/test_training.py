"""Training on the device: what is learnt has the bits of the device in the program's own process, a step asks once."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any, Dict, List

import pytest

pytestmark = pytest.mark.process

PROGRAM = pathlib.Path(__file__).parent / "training.py"


def train(mode: str, *arguments: str) -> List[Dict[str, Any]]:
    """What the program says, per case."""
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", mode, "--threads", "1", "--"]
    done = subprocess.run(
        [*command, sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("mode", "cases"),
    [
        ("lazy", ["attention adamw", "lstm sgd", "convolution adam", "norm adamw_fused clip", "norm adamw scaler"]),
        pytest.param("lazy", [], marks=pytest.mark.release),
        pytest.param("replay", [], marks=pytest.mark.release),
    ],
)
def test_training_has_the_same_bits_and_a_step_without_reads_needs_one_request(mode, cases):
    local, remote = train("local", *cases), train(mode, *cases)
    assert len(local) == len(remote) >= (len(cases) or 15)
    assert [each["digest"] for each in remote] == [each["digest"] for each in local]
    # a gradient scaler reads whether a gradient was infinite, a checkpoint the state of the random generator
    reads = {"scaler": 1, "checkpoint": 2}
    assert all(max(each["trips"]) <= 1 + reads.get(each["case"].split()[-1], 0) for each in remote), remote


def test_memory_does_not_grow_from_step_to_step():
    (run,) = train("lazy", "norm adamw scheduler", "--steps", "100", "--memory")
    memory = run["memory_mb"]
    assert memory[-1] <= memory[1] + 8, memory
