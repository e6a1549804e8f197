"""The engines that edge_offload knows, which of them are installed, and the one that a name means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.engines.base import AUTO, CLOSE, CPU, CUDA, EAGER, EXACT, Backend, Built, version
from edge_offload.execute.engines.cuda_graph import CudaGraph
from edge_offload.execute.engines.onnx_runtime import OnnxRuntime
from edge_offload.execute.engines.open_vino import OpenVino
from edge_offload.execute.engines.tensor_rt import TensorRT

#: In the order in which ``auto`` looks for one.
BACKENDS: Tuple[Backend, ...] = (
    OnnxRuntime(), OpenVino(), TensorRT(), TensorRT("fp16"), OnnxRuntime("onnxruntime:cuda"),
    OnnxRuntime("onnxruntime:tensorrt"), CudaGraph(),
)  # fmt: skip
#: What exports a network.
EXPORTER = "onnx"
INSTALL = "pip install 'edge_offload[engines]'"
#: Between the name of an engine and who is to allocate its buffers, as in ``tensorrt/pycuda``.
BY = "/"
_ELSEWHERE = {
    "tensorrt": "JetPack 5.1 or later brings it; elsewhere pip install tensorrt-cu12 onnx",
    "pycuda": "pip install pycuda", "onnxruntime-gpu": "pip install onnxruntime-gpu onnx",
}  # fmt: skip


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


def pick(name: str, device: str = CPU) -> Optional[Backend]:
    """The backend that ``name`` means here; None: torch itself.

    Args:
        name: one of :func:`names`; TensorRT's with ``/torch`` or ``/pycuda`` behind it, where it matters who allocates
            its buffers.
        device: where torch computes, ``cpu`` or ``cuda``: ``auto`` is an engine that computes there too.

    Raises:
        BadInput: no such engine.
        Unsupported: it is not installed.
    """
    known: Dict[str, Backend] = {backend.name: backend for backend in BACKENDS}
    if name == EAGER:
        return None
    if name == AUTO:
        fit = (backend for backend in BACKENDS if backend.accuracy == CLOSE and backend.device == device)
        return next((backend for backend in fit if _listed(backend).present), None)
    plain, by, buffers = name.partition(BY)
    if plain not in known:
        raise BadInput(f"no engine {name!r}", remedy=f"use one of: {', '.join(names())}")
    chosen = known[plain]
    if by:
        if not isinstance(chosen, TensorRT):
            raise BadInput(f"engine {plain!r} has no buffers to choose", remedy=f"leave {by}{buffers} out")
        chosen = chosen.with_buffers(buffers)
    found = _listed(chosen)
    if not found.present:
        raise Unsupported(f"engine {name!r} is absent: {found.detail}", remedy=found.remedy)
    return chosen


def with_buffers(name: str, buffers: str) -> str:
    """The engine ``name`` with buffers by ``buffers``; empty: by whom it likes."""
    return f"{name}{BY}{buffers}" if buffers else name


def _listed(backend: Backend) -> Listed:
    found = version(backend)
    missing = [] if found else [backend.distributions[0]]
    if isinstance(backend, Built) and not _exporter():
        missing.append(EXPORTER)
    facts = (backend.precision, backend.accuracy)
    if missing:
        remedy = _ELSEWHERE.get(missing[0], INSTALL)
        return Listed(backend.name, False, found or "", *facts, f"not installed: {', '.join(missing)}", remedy)
    lacks = backend.lacks()
    if lacks:
        remedy = _ELSEWHERE.get(lacks.split(",")[0], "")
        return Listed(backend.name, False, str(found), *facts, f"needs {lacks}", remedy)
    return Listed(backend.name, True, str(found), *facts, "on the GPU" if backend.device == CUDA else "on the CPU")


def _exporter() -> bool:
    import importlib.util

    return importlib.util.find_spec(EXPORTER) is not None
