"""Puts libraries that were built elsewhere where the product looks for them, and builds those that are missing.

The name of a library in the cache depends on the compiler's version: it is asked for here, and the file copied.
"""

from __future__ import annotations

import shutil
import time
from typing import Any

from edge_offload_benchmarks.gpu import carried
from edge_offload_benchmarks.gpu.results import Phase


def run(phase: Phase) -> None:
    """Place or build each library."""
    from edge_offload.native import libraries

    source_key = carried.source_key()
    fits = carried.carried_key() == source_key
    phase.record("carried", key=carried.carried_key(), sources=source_key, fits=fits)
    for recipe in (
        libraries.GUARD,
        libraries.DEVICE,
        libraries.NODES,
        libraries.CODECS,
        libraries.WINDOWS,
    ):
        with phase.guard_errors(recipe.name):
            place_library(phase, recipe, fits)


def place_library(phase: Phase, recipe: Any, fits: bool) -> None:
    """Copy a carried library into the cache under its name there, or build it."""
    started_at = time.monotonic()
    ready = carried.NATIVE / f"{recipe.name}.so"
    path = recipe.path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # what is compiled for this processor (codecs) is built here: it takes seconds
    if path.exists():
        how = "present"
    elif fits and ready.exists() and not recipe.processor and is_compatible(recipe):
        shutil.copy(ready, path)
        path.chmod(0o755)
        how = "placed"
    else:
        recipe.build()
        how = "built"
    phase.record(recipe.name, how=how, seconds=time.monotonic() - started_at, path=path.name)


def is_compatible(recipe: Any) -> bool:
    """Return whether the carried libraries were built for this Python and torch."""
    import sys

    import torch

    target = carried.read_target()
    same_python = not recipe.extension or list(sys.version_info[:2]) == target.get("python")
    return same_python and (not recipe.torch or torch.__version__ == target.get("torch"))
