"""Where robots and servers of the tests compute: on the CPU, or on a GPU, which ``scripts/test --gpu`` asks for.

Without a GPU in this machine that is the virtual CUDA device of each process, whose calls lag (EDGE_OFFLOAD_ASYNC).
"""

from __future__ import annotations

import os
import sys
from typing import List

#: What they are given as their device.
DEVICE = os.environ.get("EDGE_OFFLOAD_TEST_DEVICE", "cpu")
#: In front of a program that computes on the virtual one.
VIRTUAL = os.environ.get("EDGE_OFFLOAD_ASYNC", "0") != "0"
LAUNCHER: List[str] = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "local", "--"] if VIRTUAL else []
