"""Runs another Python file on the virtual device, whose executor process turns steps into emulated graphs.

The executor leaves in COUNTS, as JSON: how many graphs were captured and replayed, and why others were not.
Usage: emulated_graph_sessions.py COUNTS FILE [ARGUMENT ...]
"""

from __future__ import annotations

import json
import pathlib
import runpy
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))


def serve(counts: str, *arguments: str) -> int:
    """The executor process: LAUNCHER puts this in front of its command line."""
    from edge_offload.execute.session import storages, worker
    from edge_offload.execute.session.cuda_driver import Captures
    from tests.execute.emulated_graphs import EmulatedDriver

    captures = Captures(EmulatedDriver(), 1 << 30)
    storages.captures_of = lambda device, storage_bytes: captures  # type: ignore[assignment]
    try:
        return worker.main(list(arguments))
    finally:
        facts = {"captured": captures.captured, "replayed": captures.replayed, "refused": captures.refused}
        pathlib.Path(counts).write_text(json.dumps(facts))


if sys.argv[1] == "--executor":
    # --executor COUNTS PYTHON -m MODULE ARGUMENT ...
    sys.exit(serve(sys.argv[2], *sys.argv[6:]))

from edge_offload.execute import heap  # noqa: E402

heap.LAUNCHER[:] = [sys.executable, __file__, "--executor", sys.argv[1]]

from edge_offload.device import installation  # noqa: E402

LIBRARIES = installation.preload_guard()

import torch  # noqa: E402, F401 - after preload, before install

from edge_offload.device.remotes.executor import WorkerRemote  # noqa: E402
from edge_offload.mode import Mode  # noqa: E402

installation.install_device(LIBRARIES, WorkerRemote("cpu", 1), Mode.REPLAY)
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
