"""How fast each engine was for a network on this machine, as ``edge-offload profile MODEL --engines`` measured it."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
from typing import Any, Dict, Mapping

from torch import nn

from edge_offload.cache import cache_dir, locked, tensors_hash, write_atomic
from edge_offload.execute.engines.base import machine_facts
from edge_offload.execute.engines.cache import key_of


def store_seconds(network: nn.Module, threads: int, seconds: Mapping[str, float]) -> pathlib.Path:
    """Stores what engines (torch among them) took for ``network``, by their facts; returns the file.

    Raises:
        OSError: it cannot be written.
    """
    with locked("engines"):
        stored = _read_file()
        ours = stored.pop(_network_key(network), {})
        stored[_network_key(network)] = {**ours, str(threads): dict(seconds)}
        while len(stored) > 256:  # those measured first go first
            del stored[next(iter(stored))]
        write_atomic(_file_path(), json.dumps(stored, indent=1).encode())
    return _file_path()


def read_seconds(network: nn.Module, threads: int) -> Dict[str, float]:
    """Seconds that engines took for ``network``, by their facts, at the nearest number of threads; else empty."""
    stored = _read_file()
    ours = stored.get(_network_key(network)) if stored else None
    if not isinstance(ours, dict):
        return {}
    counts = sorted((count for count in ours if count.isdigit()), key=lambda count: abs(int(count) - threads))
    taken = ours[counts[0]] if counts else {}
    if not isinstance(taken, dict):
        return {}
    return {name: s for name, s in taken.items() if isinstance(s, float) and 0 < s < math.inf}


def _network_key(network: nn.Module) -> str:
    tensors = dict((*network.named_parameters(), *network.named_buffers()))
    return key_of({**machine_facts(), "network": type(network).__qualname__, "weights": tensors_hash(tensors)})


def _file_path() -> pathlib.Path:
    return cache_dir() / "engine_speeds.json"


def _read_file() -> Dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        if _file_path().stat().st_size <= 1 << 20:
            stored = json.loads(_file_path().read_text(encoding="utf-8"))
            return stored if isinstance(stored, dict) else {}
    return {}
