"""Runs ``edge-offload doctor``."""

from __future__ import annotations

import subprocess
import time

from edge_offload_benchmarks.gpu.processes import cli_command
from edge_offload_benchmarks.gpu.results import Phase


def run(phase: Phase) -> None:
    """Record what the command prints, and its exit code."""
    with phase.guard_errors("doctor"):
        started_at = time.monotonic()
        done = subprocess.run(
            cli_command("doctor"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=phase.remaining_s(),
        )
        print(done.stdout, flush=True)
        lines = done.stdout.splitlines()[:80]
        phase.record("doctor", code=done.returncode, seconds=time.monotonic() - started_at, lines=lines)
