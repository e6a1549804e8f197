"""Runs another Python file on the virtual device, whose executor process computes on "cuda": on a virtual device again.

So the branches that sessions have for a GPU run on a machine without one. Calls lag there, as they do on a GPU, if
EDGE_OFFLOAD_ASYNC is set. Tables of shapes are those of the folder SHAPES_TABLES, if that is set.
Usage: virtual_gpu_sessions.py MODE FILE [ARGUMENT ...]
"""

from __future__ import annotations

import os
import pathlib
import runpy
import sys

from edge_offload.execute import heap

heap.LAUNCHER[:] = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"]

from edge_offload.device import installation, shapes  # noqa: E402

shapes.FOLDER = pathlib.Path(os.environ.get("SHAPES_TABLES") or shapes.FOLDER)
LIBRARIES = installation.preload_guard()

import torch  # noqa: E402, F401 - after preload, before install

from edge_offload.device.remotes.executor import WorkerRemote  # noqa: E402
from edge_offload.mode import Mode  # noqa: E402

REMOTE = WorkerRemote("cuda", 1)
REMOTE.facts = {**REMOTE.facts, "name": "virtual GPU"}  # no CPU's shapes, and operators as a GPU's kernels take them
installation.install_device(LIBRARIES, REMOTE, Mode(sys.argv[1]))
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
