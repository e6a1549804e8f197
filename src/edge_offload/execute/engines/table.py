"""The engines that edge_offload knows, which of them are installed, and the one that a name means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.engines.base import AUTO, CLOSE, EAGER, EXACT, Backend, version
from edge_offload.execute.engines.onnx_runtime import OnnxRuntime
from edge_offload.execute.engines.open_vino import OpenVino

#: In the order in which ``auto`` looks for one.
BACKENDS: Tuple[Backend, ...] = (OnnxRuntime(), OpenVino())
#: What exports a network.
EXPORTER = "onnx"
INSTALL = "pip install 'edge_offload[engines]'"


@dataclass(frozen=True)
class Listed:
    """One engine as a user sees it.

    Attributes:
        name: what a user writes.
        present: whether it can be used here.
        version: of the package; empty where it is absent.
        precision: of its arithmetic.
        accuracy: its class: exact, close or reduced.
        detail: what it is, or why it is absent.
        remedy: how to get it; empty when it is there.
    """

    name: str
    present: bool
    version: str
    precision: str
    accuracy: str
    detail: str
    remedy: str = ""


def engines() -> Tuple[Listed, ...]:
    """Every engine, torch itself first. Imports none of their packages."""
    import torch

    own = Listed(EAGER, True, str(torch.__version__), "fp32", EXACT, "torch, operator by operator: the default")
    return (own, *(_listed(backend) for backend in BACKENDS))


def names() -> Tuple[str, ...]:
    """What may be asked for."""
    return (EAGER, AUTO, *(backend.name for backend in BACKENDS))


def pick(name: str) -> Optional[Backend]:
    """The backend that ``name`` means here; None: torch itself.

    Raises:
        BadInput: no such engine.
        Unsupported: it is not installed.
    """
    known: Dict[str, Backend] = {backend.name: backend for backend in BACKENDS}
    if name == EAGER:
        return None
    if name == AUTO:
        there = (backend for backend in BACKENDS if backend.accuracy == CLOSE and _listed(backend).present)
        return next(there, None)
    if name not in known:
        raise BadInput(f"no engine {name!r}", remedy=f"use one of: {', '.join(names())}")
    found = _listed(known[name])
    if not found.present:
        raise Unsupported(f"engine {name!r} is absent: {found.detail}", remedy=found.remedy)
    return known[name]


def _listed(backend: Backend) -> Listed:
    found = version(backend)
    missing = [] if found else [backend.distributions[0]]
    if not _exporter():
        missing.append(EXPORTER)
    facts = (backend.precision, backend.accuracy)
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        return Listed(backend.name, False, found or "", *facts, detail, INSTALL)
    return Listed(backend.name, True, str(found), *facts, "on the CPU")


def _exporter() -> bool:
    import importlib.util

    return importlib.util.find_spec(EXPORTER) is not None
