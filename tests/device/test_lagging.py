"""A device whose calls lag: who waits is right, who does not has poison; and nothing of it without being asked."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from edge_offload.native import libraries

APP = pathlib.Path(__file__).with_name("lagging_app.py")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]
#: What is wrong without a wait; a copy to the host says whether it holds poison.
NOTICED = {"stream", "locked", "in place", "given back"}


def run_app(seed, *options):
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--", sys.executable, str(APP)]
    environment = {**os.environ, "EDGE_OFFLOAD_ASYNC": seed}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=200, env=environment, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("seed", ["1", "5"])
def test_who_waits_is_right_and_who_does_not_finds_poison(seed: str) -> None:
    code, text, _ = run_app(seed)
    assert code == 0
    outcome = json.loads(text)
    assert outcome.pop("timed") == "CUDA error: device not ready" or seed != "1"
    right = {name: value for name, value in outcome.items() if name not in NOTICED and name != "to the host"}
    assert right == dict.fromkeys(right, True)
    if seed == "1":  # an order at random may be one that happens to be right
        assert outcome["to the host"], "poison until somebody waits"
        assert {name for name in NOTICED if outcome[name]} == set()


def test_nothing_lags_by_default() -> None:
    code, text, _ = run_app("0")
    assert code == 0
    outcome = json.loads(text)
    assert outcome.pop("to the host") is False, "it is there at once"
    assert outcome == dict.fromkeys(outcome, True)


def test_a_seed_is_a_number() -> None:
    code, _, stderr = run_app("late")
    assert code != 0
    assert "EDGE_OFFLOAD_ASYNC=late; set 1, or another number" in stderr
