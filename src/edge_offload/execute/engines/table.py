"""The engines that edge_offload knows, which of them are installed, and the one that a name means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload import requirements
from edge_offload.errors import BadInput, Unsupported
from edge_offload.execute.engines import measured
from edge_offload.execute.engines.base import (
    AUTO,
    CLOSE,
    CPU,
    CUDA,
    EAGER,
    EXACT,
    FASTEST_EXACT,
    NO_GPU,
    REDUCED,
    Backend,
    Built,
    engine_facts,
    installed_version,
)
from edge_offload.execute.engines.cuda_graph import CudaGraphBackend
from edge_offload.execute.engines.onnx_runtime import OnnxRuntime
from edge_offload.execute.engines.open_vino import OpenVino
from edge_offload.execute.engines.recorded.compiled_steps import CompiledStepsBackend
from edge_offload.execute.engines.recorded.inductor import NO_COMPILER, InductorBackend
from edge_offload.execute.engines.tensor_rt import TensorRT

#: In the order in which ``auto`` looks for one.
BACKENDS: Tuple[Backend, ...] = (
    OnnxRuntime(), OpenVino(), OpenVino(reduced=True), TensorRT(), TensorRT("fp16"), OnnxRuntime("onnxruntime:cuda"),
    OnnxRuntime("onnxruntime:tensorrt"), CudaGraphBackend(),
    CompiledStepsBackend(), InductorBackend(),
)  # fmt: skip
#: What exports a network.
EXPORTER = "onnx"
INSTALL = requirements.install("engines")
#: Between the name of an engine and who is to allocate its buffers, as in ``tensorrt/pycuda``.
BUFFERS_SEPARATOR = "/"
_ELSEWHERE = {
    "tensorrt": "JetPack 5.1 or later brings it; elsewhere pip install tensorrt-cu12 onnx",
    "pycuda": "pip install pycuda", "onnxruntime-gpu": "pip install onnxruntime-gpu onnx",
    NO_GPU: "check nvidia-smi, the driver's version and that torch is a CUDA build",
    NO_COMPILER: "install g++ (apt-get install g++)",
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
        packaged: whether a package beside torch brings it.
    """

    name: str
    present: bool
    version: str
    precision: str
    accuracy: str
    detail: str
    remedy: str = ""
    packaged: bool = True


def list_engines() -> Tuple[Listed, ...]:
    """Every engine, torch itself first. Imports none of their packages."""
    torch_itself = Listed(
        EAGER, True, str(torch.__version__), "fp32", EXACT, "torch, operator by operator: the default", packaged=False
    )
    return (torch_itself, *(_list_backend(backend) for backend in BACKENDS))


def packaged_engines() -> List[str]:
    """Names of the engines that packages beside torch bring, which are here and which ``auto`` may take."""
    return [one.name for one in list_engines() if one.packaged and one.present and one.accuracy == CLOSE]


def engine_names() -> Tuple[str, ...]:
    """Names that may be requested."""
    return (EAGER, AUTO, FASTEST_EXACT, *(backend.name for backend in BACKENDS))


def engine_for_model(spec: str, model: str, default: str = EAGER) -> str:
    """The engine that ``spec`` asks for where ``model`` is computed.

    Args:
        spec: an engine, engines of single models, or both: ``auto``, ``auto,movenet=openvino:bf16``.
        model: the model's name; empty: one that ``spec`` does not name.
        default: the engine of models that ``spec`` says nothing of.

    Raises:
        BadInput: there is no such engine, or one of class ``reduced`` is not asked for by a model's name.
    """
    of_models: Dict[str, str] = {}
    for part in filter(None, (part.strip() for part in spec.split(","))):
        named, _, name = part.rpartition("=")
        plain = name.partition(BUFFERS_SEPARATOR)[0]
        if plain not in engine_names():
            raise BadInput(f"no engine {name!r}", remedy=f"use one of: {', '.join(engine_names())}")
        if named:
            of_models[named] = name
            continue
        if plain in _backends_by_name() and _backends_by_name()[plain].accuracy == REDUCED:
            remedy = f"ask for it for a model by name: movenet={name}"
            raise BadInput(f"engine {name!r} computes with fewer bits than float32", remedy)
        default = name
    return of_models.get(model, default)


def pick_backend(name: str, device: str = CPU, network: Optional[nn.Module] = None) -> Optional[Backend]:
    """The backend that ``name`` means here, for ``network`` where one is given; None: torch itself.

    Args:
        name: one of :func:`engine_names`; TensorRT's with ``/torch`` or ``/pycuda`` behind it, where it matters who
            allocates its buffers.
        device: where torch computes, ``cpu`` or ``cuda``: ``auto`` is an engine that computes there too.
        network: for which ``auto`` is the engine that was measured to be the fastest.

    Raises:
        BadInput: no such engine.
        Unsupported: it is not installed.
    """
    by_name = _backends_by_name()
    if name == EAGER:
        return None
    if name == FASTEST_EXACT:
        exact = (one for one in BACKENDS if one.accuracy == EXACT and one.device == device)
        return next((one for one in exact if _list_backend(one).present), None)
    if name == AUTO:
        fit = [one for one in BACKENDS if isinstance(one, Built) and (one.accuracy, one.device) == (CLOSE, device)]
        installed = [backend for backend in fit if _list_backend(backend).present]
        return _fastest_backend(installed, network) if installed else None
    plain, by, buffers = name.partition(BUFFERS_SEPARATOR)
    if plain not in by_name:
        raise BadInput(f"no engine {name!r}", remedy=f"use one of: {', '.join(engine_names())}")
    backend = by_name[plain]
    if by:
        if not isinstance(backend, TensorRT):
            raise BadInput(f"engine {plain!r} has no buffers to choose", remedy=f"leave {by}{buffers} out")
        backend = backend.with_buffers(buffers)
    listed = _list_backend(backend)
    if not listed.present:
        raise Unsupported(f"engine {name!r} is absent: {listed.detail}", remedy=listed.remedy)
    return backend


def onnx_backend(device: str) -> Built:
    """Picks the backend for a network that torch cannot run: of class ``close`` on ``device``, else on the CPU.

    Raises:
        Unsupported: none is installed.
    """
    # one whose kernels are picked by timing takes minutes to be built
    fit = sorted((one for one in BACKENDS if one.accuracy == CLOSE), key=lambda one: (one.device != device, one.timed))
    for one in fit:
        if isinstance(one, Built) and one.device in (device, CPU) and _list_backend(one).present:
            return one
    raise Unsupported("no engine is installed that computes ONNX files", remedy=INSTALL)


def with_buffers(name: str, buffers: str) -> str:
    """``name`` with buffers by ``buffers`` for each TensorRT in it; ``buffers`` empty: by whom it likes.

    Raises:
        BadInput: there is none.
    """
    if not buffers:
        return name
    parts = [(one, one.rpartition("=")[2].startswith("tensorrt")) for one in name.split(",")]
    if not any(buffered for _, buffered in parts):
        raise BadInput(f"engine {name!r} has no buffers to choose", remedy="leave the buffers out")
    return ",".join(f"{one}{BUFFERS_SEPARATOR}{buffers}" if buffered else one for one, buffered in parts)


def _fastest_backend(installed: Sequence[Backend], network: Optional[nn.Module]) -> Optional[Backend]:
    """The one that was measured to be the fastest for the network, torch included; the first where nothing was."""
    if network is None:
        return installed[0]
    seconds = measured.read_seconds(network, torch.get_num_threads())
    timed = [backend for backend in installed if str(engine_facts(backend)) in seconds]
    if not timed:
        return installed[0]
    best = min(timed, key=lambda backend: seconds[str(engine_facts(backend))])
    return best if seconds[str(engine_facts(best))] < seconds.get(EAGER, math.inf) else None


def _backends_by_name() -> Dict[str, Backend]:
    return {backend.name: backend for backend in BACKENDS}


def _list_backend(backend: Backend) -> Listed:
    release = installed_version(backend)
    missing = [] if release else [backend.distributions[0]]
    if isinstance(backend, Built) and not _has_exporter():
        missing.append(EXPORTER)
    facts = (backend.precision, backend.accuracy)
    if missing:
        remedy = _ELSEWHERE.get(missing[0], INSTALL)
        return Listed(backend.name, False, release or "", *facts, f"not installed: {', '.join(missing)}", remedy)
    lacks = backend.missing_parts()
    if lacks:
        what = lacks.split(",")[0]
        remedy = _ELSEWHERE.get(what, f"put {what} where the loader looks (LD_LIBRARY_PATH)" if ".so" in what else "")
        return Listed(backend.name, False, str(release), *facts, f"needs {lacks}", remedy)
    where = "on the GPU" if backend.device == CUDA else "on the CPU"
    return Listed(backend.name, True, str(release), *facts, where, packaged=isinstance(backend, Built))


def _has_exporter() -> bool:
    import importlib.util

    return importlib.util.find_spec(EXPORTER) is not None
