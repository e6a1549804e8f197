"""Libraries that compute on this machine behind the virtual device's back: refused by name on a GPU, else announced.

They ask no torch: what they compute is not offloaded, and what torch holds on the virtual device has no address that
they could read. They can be imported. What would make a context or take memory on a GPU of this machine is refused
(:data:`REFUSED`); of those that also compute on the processor, one line on standard error says so (:data:`LOCAL`).
Imports no torch, and nothing of this package before a refusal: a program may run under a Python that lacks it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

_TENSORRT = ("ICudaEngine.create_execution_context", "ICudaEngine.create_execution_context_without_device_memory")
_DRIVER = ("cuCtxCreate", "cuDevicePrimaryCtxRetain")
_RUNTIME = ("cudaSetDevice", "cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaStreamCreate")
#: By module: what in it makes a context of a GPU, or takes memory there.
REFUSED: Dict[str, Tuple[str, ...]] = {
    "pycuda._driver": ("Device.make_context", "Device.retain_primary_context", "Context.attach"),
    **{f"tensorrt{kind}{part}": _TENSORRT
       for kind in ("", "_rtx", "_lean", "_dispatch") for part in ("", "_bindings")},
    "cuda.bindings.driver": _DRIVER, "cuda.cuda": _DRIVER,
    "cuda.bindings.runtime": _RUNTIME, "cuda.cudart": _RUNTIME,
    "numba.cuda.cudadrv.devices": ("_Runtime.get_or_create_context",),
    "triton.runtime.jit": ("JITFunction.run",),
    "faiss": ("StandardGpuResources",),
    "cupy": (), "onnxruntime.capi.onnxruntime_inference_collection": (),
}  # fmt: skip
#: Packages that compute on this machine's processor or GPU, whatever the virtual device does.
LOCAL = frozenset((
    "jax", "tensorflow", "paddle", "mxnet", "mindspore", "oneflow", "warp", "taichi", "tinygrad", "cvcuda", "vpi",
    "nvidia.dali", "jetson.inference", "jetson_inference", "cudf", "cuml", "cugraph", "pyopencl", "ctranslate2",
    "llama_cpp", "openvino", "ncnn", "MNN", "tflite_runtime", "ai_edge_litert", "armnn", "tvm", "pyds",
))  # fmt: skip
_ON_GPU = ("CUDA", "Tensorrt", "NvTensorRT", "ROCM", "MIGraphX")
_reported: Set[str] = set()


def watch_imports() -> None:
    """Refuses and reports from now on, for modules that are imported later."""
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Steps in after each of the modules has been loaded."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Optional[Any]:
        if name not in REFUSED and name not in LOCAL:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as usual, and puts the refusals in."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._real
        self._real.exec_module(module)
        name = module.__name__
        if name in LOCAL:
            _report_once(name)
        for what in REFUSED.get(name, ()):
            path, _, last = what.rpartition(".")
            owner = getattr(module, path, None) if path else module
            if hasattr(owner, last):
                setattr(owner, last, _refusing(f"{name}.{what}"))
        if name == "cupy":
            _refuse_memory_of_cupy(module)
        elif name.startswith("onnxruntime."):
            _check_sessions(module.InferenceSession)


def _refuse_memory_of_cupy(module: Any) -> None:
    """Gives cupy an allocator that refuses: every array, compiled code included, asks it for memory."""
    cuda: Any = getattr(module, "cuda", None)
    if hasattr(cuda, "set_allocator"):
        cuda.set_allocator(_refusing("memory of cupy"))
        cuda.set_allocator = lambda allocator=None: None
        cuda.using_allocator = _refusing("cupy.cuda.using_allocator")


def _check_sessions(kind: Any) -> None:
    """Refuses sessions of ONNX Runtime with a provider on a GPU; reports where others compute."""
    begin, change = kind.__init__, kind.set_providers

    def check_providers(session: Any) -> None:
        on_gpu: List[str] = [name for name in session.get_providers() if name.startswith(_ON_GPU)]
        if on_gpu:
            raise _unsupported(f"onnxruntime's {on_gpu[0]}")
        _report_once("onnxruntime")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        begin(self, *args, **kwargs)
        check_providers(self)

    def set_providers(self: Any, *args: Any, **kwargs: Any) -> None:
        change(self, *args, **kwargs)
        check_providers(self)

    kind.__init__, kind.set_providers = __init__, set_providers


def _report_once(name: str) -> None:
    """Reports a library on standard error, once."""
    if name not in _reported:
        _reported.add(name)
        text = f"{name} computes on this machine: only what PyTorch puts on cuda is offloaded"
        print(f"edge-offload exec: {text}", file=sys.stderr, flush=True)


def _unsupported(what: str) -> Exception:
    cause = f"{what} is not there on the virtual device: it would compute on a GPU of this machine, if there is one"
    remedy = "run this model in PyTorch, or start the program without edge-offload exec (edge_offload)"
    try:
        from edge_offload.errors import Unsupported
    except ImportError:
        return RuntimeError(f"{cause}; {remedy}")
    return Unsupported(cause, remedy=remedy)


def _refusing(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise _unsupported(what)

    return refuse
