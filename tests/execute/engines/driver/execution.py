"""A stand-in for TensorRT's runs on a GPU: NVIDIA's own parser and builder, and ONNX Runtime in the place of kernels.

Only loading a plan and running it are stand-ins. What they are called with is asserted to exist in the real bindings.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Dict, List, Tuple

import numpy as np

from edge_offload.execute.engines.tensor_rt import numpy_type


class DriverMemory:
    """The device's memory of the stand-in for the driver, by the driver's own calls."""

    def __init__(self, library: str) -> None:
        self._driver = ctypes.CDLL(library)
        self._pending: List[Any] = []  # until the copies have been made

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._driver, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: error {result}")

    def read(self, address: int, array: Any, stream: int) -> None:
        """As a kernel on ``stream`` finds it: what the stream was told before has been done."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))
        self._call("cuMemcpyDtoH_v2", _pointer(array), ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes))

    def write(self, address: int, array: Any, stream: int) -> None:
        """As a kernel on ``stream`` does it: when somebody waits for the stream."""
        self._pending = [*self._pending[-8:], array]
        size, where = ctypes.c_size_t(array.nbytes), ctypes.c_uint64(address)
        self._call("cuMemcpyHtoDAsync_v2", where, _pointer(array), size, ctypes.c_void_p(stream))


class HostMemory:
    """Ordinary memory, in which torch's tensors on the CPU lie."""

    def read(self, address: int, array: Any, _stream: int) -> None:
        """See :class:`DriverMemory`."""
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def write(self, address: int, array: Any, _stream: int) -> None:
        """See :class:`DriverMemory`."""
        ctypes.memmove(address, array.ctypes.data, array.nbytes)


class Bindings:
    """NVIDIA's bindings, but for what needs a GPU.

    Args:
        real: the module.
        memory: where buffers lie.
    """

    def __init__(self, real: Any, memory: Any) -> None:
        self.real = real
        plans: Dict[str, Tuple[bytes, Any]] = {}
        parsed: Dict[int, bytes] = {}

        class OnnxParser(real.OnnxParser):  # type: ignore[misc]
            def __init__(self, network: Any, logger: Any) -> None:
                super().__init__(network, logger)
                self._network = network

            def parse(self, model: bytes) -> bool:
                parsed[id(self._network)] = model
                return bool(super().parse(model))

        class Builder(real.Builder):  # type: ignore[misc]
            def build_serialized_network(self, network: Any, config: Any) -> Any:
                plan = super().build_serialized_network(network, config)
                if plan is not None:
                    plans[hashlib.sha256(bytes(plan)).hexdigest()] = (parsed[id(network)], _tensors(real, network))
                return plan

        class Runtime(StandInRuntime):
            def __init__(self, logger: Any) -> None:
                super().__init__(logger, plans, memory)

        self.OnnxParser, self.Builder, self.Runtime = OnnxParser, Builder, Runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def _tensors(real: Any, network: Any) -> Dict[str, Tuple[Any, Any, Any]]:
    """By name: whether it is read or written, shape, type."""
    modes = real.TensorIOMode
    tensors = [(network.get_input(number), modes.INPUT) for number in range(network.num_inputs)]
    tensors += [(network.get_output(number), modes.OUTPUT) for number in range(network.num_outputs)]
    return {tensor.name: (mode, tuple(tensor.shape), tensor.dtype) for tensor, mode in tensors}


class StandInRuntime:
    """In the place of ``IRuntime``."""

    def __init__(self, logger: Any, plans: Dict[str, Tuple[bytes, Any]], memory: Any) -> None:
        self._plans, self._memory = plans, memory

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        """None where no such plan was built, as the real one does with what it does not take."""
        plan = self._plans.get(hashlib.sha256(bytes(serialized_engine)).hexdigest())
        return None if plan is None else StandInEngine(*plan, self._memory)


class StandInEngine:
    """In the place of ``ICudaEngine``."""

    def __init__(self, onnx: bytes, tensors: Dict[str, Tuple[Any, Any, Any]], memory: Any) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
        self._tensors, self._memory = tensors, memory
        self.num_io_tensors = len(tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return self._tensors[name][0]

    def get_tensor_shape(self, name: str) -> Any:
        return self._tensors[name][1]

    def get_tensor_dtype(self, name: str) -> Any:
        return self._tensors[name][2]

    def create_execution_context(self) -> StandInContext:
        return StandInContext(self)


class StandInContext:
    """In the place of ``IExecutionContext``."""

    def __init__(self, engine: StandInEngine) -> None:
        self._engine = engine
        self._addresses: Dict[str, int] = {}

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine, given = self._engine, {}
        outputs = []
        for name, (mode, shape, dtype) in engine._tensors.items():
            if mode.name == "INPUT":
                given[name] = np.empty(shape, numpy_type(dtype))
                engine._memory.read(self._addresses[name], given[name], stream_handle)
            else:
                outputs.append(name)
        for name, output in zip(outputs, engine._session.run(outputs, given)):
            engine._memory.write(self._addresses[name], np.ascontiguousarray(output), stream_handle)
        return True


def _pointer(array: Any) -> Any:
    return ctypes.c_void_p(array.ctypes.data)
