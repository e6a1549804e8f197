"""The product's own build of its libraries, in a cache of its own: whether it works on this machine."""

from __future__ import annotations

import os
import pathlib
import shutil
import time

from edge_offload_benchmarks.gpu.results import Phase


def run(phase: Phase) -> None:
    """Build each library at low priority and record the time."""
    cache = phase.settings.folder / "build_cache"
    shutil.rmtree(cache, ignore_errors=True)
    os.environ["EDGE_OFFLOAD_CACHE"] = str(cache)
    from edge_offload.native import libraries

    small = (libraries.CODECS, libraries.WINDOWS)
    every = (libraries.GUARD, libraries.DEVICE, libraries.NODES, *small)
    for recipe in (libraries.WINDOWS,) if phase.settings.tiny else every:
        with phase.guard_errors(recipe.name):
            started_at = time.monotonic()
            path = pathlib.Path(recipe.build())
            phase.record(recipe.name, seconds=time.monotonic() - started_at, bytes=path.stat().st_size)
