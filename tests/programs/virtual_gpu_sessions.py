"""Runs another Python file on the virtual device, whose executor process computes on "cuda": on a virtual device again.

So the branches that sessions have for a GPU run on a machine without one. Calls lag there, as they do on a GPU, if
EDGE_OFFLOAD_ASYNC is set. Usage: virtual_gpu_sessions.py MODE FILE [ARGUMENT ...]
"""

from __future__ import annotations

import os
import runpy
import sys

from edge_offload.execute import heap

heap.LAUNCHER[:] = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]

from edge_offload.device import installation  # noqa: E402

LIBRARIES = installation.preload()

import torch  # noqa: E402, F401 - after preload, before install

from edge_offload.device.remote import WorkerRemote  # noqa: E402
from edge_offload.mode import Mode  # noqa: E402

INSTALLED = installation.install(LIBRARIES, WorkerRemote("cuda", 1), Mode(sys.argv[1]))
if os.environ.get("EDGE_OFFLOAD_TEST_GPU_OPERATORS"):  # record as where a GPU computes
    INSTALLED.native.computed_by_gpu(True)
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
