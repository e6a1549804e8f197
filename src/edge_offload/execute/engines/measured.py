"""How fast each engine was for a network on this machine, as ``edge-offload profile MODEL --engines`` measured it."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
from typing import Any, Dict, Mapping

from torch import nn

from edge_offload.cache import cache_dir, locked, tensors_hash, write_atomic
from edge_offload.execute.engines.base import machine
from edge_offload.execute.engines.cache import key_of

#: Networks whose measurements are kept; those measured first go first.
MOST = 256
_MOST_BYTES = 1 << 20


def note(network: nn.Module, threads: int, seconds: Mapping[str, float]) -> pathlib.Path:
    """Keep what engines (torch among them) took for ``network``, by their facts; returns the file.

    Raises:
        OSError: it cannot be written.
    """
    with locked("engines"):
        held = _read()
        ours = held.pop(_key(network), {})
        held[_key(network)] = {**ours, str(threads): dict(seconds)}
        while len(held) > MOST:
            del held[next(iter(held))]
        write_atomic(_path(), json.dumps(held, indent=1).encode())
    return _path()


def seconds_of(network: nn.Module, threads: int) -> Dict[str, float]:
    """What engines took for ``network``, by their facts, with the number of threads that is nearest; else nothing."""
    found = _read()
    ours = found.get(_key(network)) if found else None
    if not isinstance(ours, dict):
        return {}
    counts = sorted((count for count in ours if count.isdigit()), key=lambda count: abs(int(count) - threads))
    taken = ours[counts[0]] if counts else {}
    if not isinstance(taken, dict):
        return {}
    return {name: s for name, s in taken.items() if isinstance(s, float) and 0 < s < math.inf}


def _key(network: nn.Module) -> str:
    tensors = dict((*network.named_parameters(), *network.named_buffers()))
    return key_of({**machine(), "network": type(network).__qualname__, "weights": tensors_hash(tensors)})


def _path() -> pathlib.Path:
    return cache_dir() / "engine_speeds.json"


def _read() -> Dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        if _path().stat().st_size <= _MOST_BYTES:
            found = json.loads(_path().read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
    return {}
