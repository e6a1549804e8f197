"""Split with a server on CUDA and a robot on CUDA: both the virtual device, whose calls lag; no GPU is tested.

A GPU that has no memory left, or fails, costs the attempt and not the result, and the frame says so.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from edge_offload.native import libraries
from tests.modes.split import conftest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not libraries.device_is_possible(), reason="no C++ compiler, no virtual device"),
]
LAUNCHER = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]
APP = pathlib.Path(__file__).with_name("cuda_app.py")


def test_split_on_cuda_on_both_sides(keys, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_ASYNC", "1")
    monkeypatch.setenv("EDGE_OFFLOAD_TEST_DEVICE", "cuda")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(APP.parents[3]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(conftest, "LAUNCHER", LAUNCHER)
    monkeypatch.setattr(conftest, "DEVICE", "cuda")
    server = conftest.Server(keys)
    try:
        command = [*LAUNCHER, sys.executable, str(APP), server.address, str(keys)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=280, check=False)
    finally:
        server.stop(signal.SIGTERM)
    assert done.returncode == 0
    by_situation = {item["situation"]: item for item in map(json.loads, done.stdout.splitlines())}
    frames = [item for item in by_situation.values() if "error" in item]
    assert len(frames) == 10
    assert all(item["error"] < 1e-5 for item in frames), "whatever happened to the GPU"
    for situation in [*(f"plan {place}" for place in range(6)), "room again"]:
        assert by_situation[situation]["mode"] == "split", by_situation[situation]
        assert by_situation[situation]["reason"] == ""
    assert by_situation["full"]["mode"] == "local"
    assert "not enough memory" in by_situation["full"]["reason"]
    assert "computed on the CPU in place of cuda" in by_situation["state"]["words"]
    for situation in ("lost", "still lost"):
        assert by_situation[situation]["mode"] == "local"
    assert "the GPU failed" in by_situation["lost"]["reason"]


@pytest.mark.release
def test_an_unmodified_programs_half_is_computed_on_the_requested_device(killable_server, keys, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_ASYNC", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = [sys.executable, str(APP.with_name("recorded_cuda_app.py"))]
    start = "import sys, torch; from edge_offload.cli import main; sys.exit(main())"
    split = [sys.executable, "-c", start, "exec", "--mode", "split", "--device", "cuda", "--keys"]
    command = [*LAUNCHER, *split, str(keys), "--server", killable_server.address, "--", *program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=False)
    assert done.returncode == 0
    (outcome,) = map(json.loads, done.stdout.splitlines())
    assert outcome["halves"] == ["cuda"]
    assert outcome["split"] >= 4, outcome["state"]
    assert outcome["distance"] <= 1e-12
