"""Whether members of a pool compute on the GPU in this release."""

from __future__ import annotations

import importlib.util
import inspect

from edge_offload_benchmarks.gpu.results import Phase


def run(phase: Phase) -> None:
    """Record whether a stage of a pool takes a device."""
    if importlib.util.find_spec("ray") is None:
        phase.record("pool", skipped="ray is not installed")
        return
    with phase.guarded("pool"):
        from edge_offload.server.pool import stages

        takes = "device" in inspect.signature(stages.Stage.__init__).parameters
        phase.record("pool", members="on the GPU" if takes else "on the CPU: stages.Stage takes no device")
