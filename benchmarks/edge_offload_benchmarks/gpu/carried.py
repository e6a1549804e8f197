"""What ``prepare`` puts into ``.gpu`` and ``install`` takes out of it: folders, and the key of our C++ sources."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any, Dict, List

from edge_offload_benchmarks.gpu.settings import CARRIED, ROOT

WHEELS, NATIVE, CACHE, PACKAGES = (CARRIED / name for name in ("whl", "native", "cache", "deb"))
KEY = NATIVE / "key"
#: Sources of our libraries and what decides how they are compiled.
SOURCES = ("native/cpp/*", "native/*.py", "server/promises/windows/*.c")


def source_key(root: pathlib.Path = ROOT) -> str:
    """A hash over the C++ sources and recipes of the checkout."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted((root / "src" / "edge_offload").glob(pattern)):
            if path.is_file():
                digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:24]


def carried_key() -> str:
    """The key of the sources that the carried libraries were built from; empty if there are none."""
    return KEY.read_text(encoding="utf-8").strip() if KEY.exists() else ""


def list_pieces(name: str, work: pathlib.Path) -> List[pathlib.Path]:
    """The pieces of a big package, in order: in the checkout, or copied to the work folder by an earlier call."""
    by_key = {
        path.name: path
        for folder in (work / "pieces", *CARRIED.parent.glob(f".gpu-{name}/*"))
        for path in folder.glob(f"{name}.*")
    }
    return [by_key[key] for key in sorted(by_key)]


def read_target() -> Dict[str, Any]:
    """Python's and torch's versions that the carried libraries were built for; empty if there are none."""
    path = NATIVE / "target.json"
    facts: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return facts
