"""Runs ``edge-offload doctor``."""

from __future__ import annotations

import subprocess
import time

from edge_offload_benchmarks.gpu.processes import cli
from edge_offload_benchmarks.gpu.results import Phase


def run(phase: Phase) -> None:
    """Record what the command prints, and its exit code."""
    with phase.guarded("doctor"):
        began = time.monotonic()
        done = subprocess.run(
            cli("doctor"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=phase.left(),
        )
        print(done.stdout, flush=True)
        lines = done.stdout.splitlines()[:80]
        phase.record("doctor", code=done.returncode, seconds=time.monotonic() - began, lines=lines)
