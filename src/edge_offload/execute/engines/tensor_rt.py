"""TensorRT, from 8.5 on: a plan for the GPU that is here, run with buffers of torch's or of pycuda's."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from edge_offload.errors import Unsupported
from edge_offload.execute.engines import buffers as memory
from edge_offload.execute.engines.base import CLOSE, CUDA, REDUCED, Built, installed_version
from edge_offload.execute.engines.export import input_position

#: Release from which on tensors have names (JetPack 5.1).
OLDEST = (8, 5)
#: TensorRT's names of types; ``trt.nptype`` of 8.5 uses a name that numpy has dropped.
_DTYPES: Dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32), "HALF": np.dtype(np.float16), "INT8": np.dtype(np.int8),
    "UINT8": np.dtype(np.uint8), "INT32": np.dtype(np.int32), "INT64": np.dtype(np.int64), "BOOL": np.dtype(np.bool_),
}  # fmt: skip


def _import_tensorrt() -> Any:
    return importlib.import_module("tensorrt")


class TensorRT(Built):
    """Backend of TensorRT.

    Args:
        precision: ``fp32`` or ``fp16``.
        buffers: who allocates them; see :func:`~edge_offload.execute.engines.buffers.choose_allocator`.
        bindings: gives NVIDIA's Python package.
        make_buffers: makes them.
    """

    distributions: Tuple[str, ...] = (
        "tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu11", "tensorrt-cu13-bindings",
        "tensorrt-cu12-bindings",
    )  # fmt: skip
    module: str = "tensorrt"
    device: str = CUDA
    timed: bool = True

    def __init__(
        self,
        precision: str = "fp32",
        buffers: str = "",
        bindings: Callable[[], Any] = _import_tensorrt,
        make_buffers: Optional[Callable[[], memory.Buffers]] = None,
    ) -> None:
        self.name = "tensorrt" if precision == "fp32" else f"tensorrt:{precision}"
        self.precision, self.accuracy = precision, CLOSE if precision == "fp32" else REDUCED
        self._buffers_by = buffers
        self._bindings = bindings
        self._make_buffers = make_buffers or (lambda: memory.make_buffers(self._buffers_by))

    def with_buffers(self, buffers: str) -> TensorRT:
        """Copies the backend, with buffers by torch or by pycuda; BadInput: by nobody else."""
        memory.choose_allocator(buffers)
        return TensorRT(self.precision, buffers, self._bindings)

    def missing_parts(self) -> str:
        import importlib.util

        release = _parse_release(installed_version(self) or "")
        if release is not None and release < OLDEST:
            return f"TensorRT 8.5 or later (JetPack 5.1); this is {installed_version(self)}"
        if memory.choose_allocator(self._buffers_by) == memory.PYCUDA and importlib.util.find_spec("pycuda") is None:
            return "pycuda, for buffers where torch has no CUDA"
        return ""

    def depends_on(self) -> Dict[str, str]:
        return memory.gpu_facts(self._buffers_by)

    def export_dtype(self) -> Optional[torch.dtype]:
        if self.precision == "fp32" or _has_flag(self._bindings(), "FP16"):
            return None
        return torch.float16

    def build(self, onnx: bytes, threads: int) -> bytes:
        """The plan: TensorRT times kernels on the GPU, which may take minutes."""
        trt = self._bindings()
        log = _make_logger(trt)
        builder = trt.Builder(log)
        network = builder.create_network(self._network_flags(trt))
        parser = trt.OnnxParser(network, log)
        if not parser.parse(onnx):
            raise Unsupported(f"TensorRT cannot parse it: {log.last_error() or 'it does not say why'}")
        config = builder.create_builder_config()
        if self.precision == "fp32":
            # ten bits of mantissa in place of 23: on by default, and another class
            config.clear_flag(trt.BuilderFlag.TF32)
        elif self.export_dtype() is None:
            config.set_flag(trt.BuilderFlag.FP16)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise Unsupported(f"TensorRT cannot build it: {log.last_error() or 'it does not say why'}")
        return bytes(plan)

    def load(self, built: bytes, threads: int) -> TensorRTEngine:
        """An engine with one execution context."""
        return TensorRTEngine(self._bindings(), built, self._make_buffers())

    def _network_flags(self, trt: Any) -> int:
        available = trt.NetworkDefinitionCreationFlag
        # what 8.x has to be told, and later ones are; whose precision is the network's own, too
        flags = ["EXPLICIT_BATCH", *(["STRONGLY_TYPED"] if self.export_dtype() is not None else [])]
        return sum(1 << int(getattr(available, name)) for name in flags if hasattr(available, name))


class TensorRTEngine:
    """A plan on the GPU with one execution context, one stream and buffers at fixed addresses."""

    def __init__(self, trt: Any, plan: bytes, buffers: memory.Buffers) -> None:
        self._buffers = buffers
        self._runtime: Any = None
        self._engine: Any = None
        self._context: Any = None
        self._inputs: Dict[str, Tuple[int, torch.Size, torch.dtype]] = {}
        self._outputs: List[str] = []
        try:
            with buffers.use_gpu():
                self._load_plan(trt, plan)
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        assert self._context is not None
        with self._buffers.use_gpu():
            for name, (at, shape, dtype) in self._inputs.items():
                if (inputs[at].shape, inputs[at].dtype) != (shape, dtype):
                    raise Unsupported(f"input {at} is not {dtype} {list(shape)}, as TensorRT has it")
                self._buffers.upload_tensor(name, inputs[at])
            if not self._context.execute_async_v3(self._buffers.stream_handle()):
                raise Unsupported(f"TensorRT did not execute it: {self._log.last_error()}")
            outputs = self._buffers.download_tensors(self._outputs)
        return [one.to(inputs[0].device) for one in outputs]

    def close(self) -> None:
        with self._buffers.use_gpu():
            # each needs the next
            self._context = None
            self._engine = None
            self._runtime = None
        self._buffers.release()

    def _load_plan(self, trt: Any, plan: bytes) -> None:
        self._log = _make_logger(trt)
        self._runtime = trt.Runtime(self._log)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise Unsupported(f"TensorRT cannot load the plan: {self._log.last_error()}")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise Unsupported(f"TensorRT has no room for the engine: {self._log.last_error()}")
        for number in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(number)
            shape = tuple(self._engine.get_tensor_shape(name))
            dtype = numpy_type(self._engine.get_tensor_dtype(name))
            address = self._buffers.allocate_buffer(name, shape, dtype)
            if not self._context.set_tensor_address(name, address):
                raise Unsupported(f"TensorRT takes no address for {name}: {self._log.last_error()}")
            if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                self._inputs[name] = (
                    input_position(name),
                    torch.Size(shape),
                    torch.from_numpy(np.empty(0, dtype)).dtype,
                )
            else:
                self._outputs.append(name)


def numpy_type(dtype: Any) -> np.dtype[Any]:
    """TensorRT's type as numpy's.

    Raises:
        Unsupported: numpy has none.
    """
    if dtype.name not in _DTYPES:
        raise Unsupported(f"TensorRT's type {dtype.name} is none of numpy's")
    return _DTYPES[dtype.name]


def _has_flag(trt: Any, name: str) -> bool:
    release = _parse_release(trt.__version__)
    # from release 11 on a network's own types are the precision, and there is no flag
    return hasattr(trt.BuilderFlag, name) and (release is None or release < (11,))


def _parse_release(text: str) -> Optional[Tuple[int, ...]]:
    parts = text.split(".")[:2]
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else None


def _make_logger(trt: Any) -> Any:
    """Logger that retains the last error, to be reported as the reason."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self._last = ""

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(trt.ILogger.ERROR):
                self._last = message

        def last_error(self) -> str:
            return self._last.strip().splitlines()[0][:300] if self._last.strip() else ""

    return Log()
