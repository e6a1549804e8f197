"""A half of a plan on a GPU: right on a device whose calls lag, wrong without any one copy, event or wait.

That device is emulated by a CPU (``exec --mode local``, ``EDGE_OFFLOAD_ASYNC``); no GPU is needed, and none is tested.
"""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from edge_offload.execute import clocks, lanes
from edge_offload.native import libraries
from edge_offload.split.runtime import device_half
from tests.split.runtime.mutations import MUTATIONS
from tests.split.test_zoo import SLOW

APP = pathlib.Path(__file__).with_name("cuda_app.py")
WAITS = re.compile(
    r"\.(copy_|record_event|wait_event|wait_stream|record_stream|synchronize)\(|_(behind|came)\b.*append"
)
needs_device = pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device")


def run_app(*arguments, seed="1"):
    """What the app says, a line of JSON each."""
    path = os.pathsep.join([str(APP.parents[3]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--", sys.executable, str(APP)]
    environment = {**os.environ, "PYTHONPATH": path, "EDGE_OFFLOAD_ASYNC": seed, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], stdout=subprocess.PIPE, text=True, timeout=280, env=environment, check=False
    )
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_plans(*arguments, seed="1"):
    """Results in float64 within 1e-12 of their range; says what was run."""
    plans = run_app(*arguments, seed=seed)
    assert [item for item in plans if not item["error"] <= 1e-12] == []
    return plans


@pytest.mark.process
@needs_device
def test_without_any_one_copy_event_or_wait_a_result_is_wrong() -> None:
    outcomes = run_app("mutations")
    assert [item["wrong"] for item in outcomes if not item["mutation"]] == ["", ""], "right as it stands"
    taken_out = [item for item in outcomes if item["mutation"]]
    assert len(taken_out) == len(MUTATIONS)
    assert [item["mutation"] for item in taken_out if not item["wrong"]] == []


def test_the_list_of_what_is_taken_out_is_complete() -> None:
    for module in (lanes, clocks, device_half):
        mine = [old for name, old, _ in MUTATIONS if name == module.__name__.rpartition(".")[2]]
        for line in inspect.getsource(module).splitlines():
            if WAITS.search(line):
                assert any(old.strip() in line for old in mine), f"{module.__name__}: {line.strip()}"


@pytest.mark.process
@needs_device
def test_plans_of_a_network_are_right_whenever_things_happen() -> None:
    outcomes = check_plans("zoo", "mobilenet_v3_large", seed="7")
    assert {item["on"] for item in outcomes} == {"robot", "server", "both"}


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.process
@needs_device
@pytest.mark.parametrize("name", SLOW)
def test_plans_of_the_zoo(name: str) -> None:
    assert len(check_plans("zoo", name)) >= 2
