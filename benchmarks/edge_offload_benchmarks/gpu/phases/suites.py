"""The suites of ``scripts/test --gpu`` that need no ROS, on the device and without TF32: they compare with a CPU."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from typing import List

from edge_offload_benchmarks.gpu.results import Phase
from edge_offload_benchmarks.gpu.settings import ROOT

SUITES = ("tests/execute/test_execute.py", "tests/runtime", "tests/server", "tests/modes")
TINY_SUITES = ("tests/execute/test_execute.py",)
JOBS = 6
SUMMARY = re.compile(r"^(FAILED|ERROR) |\d+ (passed|failed)")


def run(phase: Phase) -> None:
    """Run pytest; its output goes to tests.txt, and what failed into the records."""
    tiny = phase.settings.tiny
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not ros and not slow"]
    if not tiny and importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(JOBS), "--dist", "loadfile"]
    command += TINY_SUITES if tiny else SUITES
    more = {"NVIDIA_TF32_OVERRIDE": "0", "EDGE_OFFLOAD_TEST_DEVICE": phase.settings.device}
    started_at, path = time.monotonic(), phase.settings.results / "tests.txt"
    with path.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, **more}
        )
        try:
            code = process.wait(max(5.0, phase.remaining_s() - 12))
        except subprocess.TimeoutExpired:
            process.send_signal(2)  # pytest ends with its summary
            try:
                code = process.wait(8)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    lines: List[str] = [
        line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if SUMMARY.search(line)
    ]
    phase.record(
        "tests", code=code, seconds=time.monotonic() - started_at, summary=[line[:300] for line in lines[-80:]]
    )
