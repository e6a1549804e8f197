"""Where an engine's inputs and outputs lie on the GPU: in memory that pycuda allocates, or in torch's tensors."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Protocol, Sequence, Tuple

import numpy as np
import torch

from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import driver_release

#: By whom buffers are allocated: torch where it has CUDA, else pycuda, unless one of the two was asked for.
TORCH, PYCUDA = "torch", "pycuda"


class Buffers(Protocol):
    """Memory of one engine on one GPU, and the stream on which everything happens. One thread uses it."""

    def use_gpu(self) -> ContextManager[None]:
        """Context in which the GPU is used."""

    def stream_handle(self) -> int:
        """The CUDA stream."""

    def allocate_buffer(self, name: str, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Address on the GPU of a new buffer for the tensor ``name``."""

    def upload_tensor(self, name: str, value: torch.Tensor) -> None:
        """Begin to copy ``value`` there; it may be changed when the next :meth:`download_tensors` has ended."""

    def download_tensors(self, names: Sequence[str]) -> List[torch.Tensor]:
        """Waits for all work begun before and copies the buffers to tensors of the caller's own."""

    def release(self) -> None:
        """Give all of it back."""


def choose_allocator(requested: str = "") -> str:
    """Chooses who allocates buffers here.

    Raises:
        BadInput: neither :data:`TORCH` nor :data:`PYCUDA` was asked for.
    """
    if requested not in ("", TORCH, PYCUDA):
        raise BadInput(f"no buffers {requested!r}", remedy=f"use one of: {TORCH}, {PYCUDA}")
    return requested or (TORCH if torch.cuda.is_available() else PYCUDA)


def make_buffers(requested: str = "") -> Buffers:
    """Buffers on the first GPU; errors as of :func:`choose_allocator`."""
    return TorchBuffers() if choose_allocator(requested) == TORCH else PycudaBuffers()


def gpu_facts(requested: str = "") -> Dict[str, str]:
    """Facts that a plan depends on: the GPU, its compute capability, and the driver (its release, and its CUDA)."""
    if choose_allocator(requested) == TORCH:
        properties = torch.cuda.get_device_properties(0)
        name, capability = properties.name, (properties.major, properties.minor)
        cuda = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
    else:
        import pycuda.driver

        pycuda.driver.init()
        device = pycuda.driver.Device(0)
        name, capability, cuda = device.name(), device.compute_capability(), pycuda.driver.get_driver_version()
    level = ".".join(map(str, capability))
    return {"gpu": str(name), "capability": level, "cuda": str(cuda), "driver": driver_release()}


class PycudaBuffers:
    """Buffers in the GPU's primary context, which torch and CUDA's runtime use as well.

    A context of its own (``pycuda.autoinit`` makes one) would be another address space: nothing of TensorRT's would be
    valid in it. A context is current in a thread, not in a process; so it is pushed wherever it is needed.
    """

    def __init__(self) -> None:
        import pycuda.driver

        self._cuda: Any = pycuda.driver
        self._cuda.init()
        self._context: Any = self._cuda.Device(0).retain_primary_context()
        self._host: Dict[str, Any] = {}
        self._device: Dict[str, Any] = {}
        with self.use_gpu():
            self._stream: Any = self._cuda.Stream()

    @contextlib.contextmanager
    def use_gpu(self) -> Iterator[None]:
        self._context.push()
        try:
            yield
        finally:
            self._cuda.Context.pop()

    def stream_handle(self) -> int:
        return int(self._stream.handle)

    def allocate_buffer(self, name: str, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> int:
        # copies from and to other memory would not be asynchronous
        self._host[name] = self._cuda.pagelocked_empty(shape, dtype)
        self._device[name] = self._cuda.mem_alloc(max(self._host[name].nbytes, 1))
        return int(self._device[name])

    def upload_tensor(self, name: str, value: torch.Tensor) -> None:
        np.copyto(self._host[name], value.cpu().numpy())
        self._cuda.memcpy_htod_async(self._device[name], self._host[name], self._stream)

    def download_tensors(self, names: Sequence[str]) -> List[torch.Tensor]:
        for name in names:
            self._cuda.memcpy_dtoh_async(self._host[name], self._device[name], self._stream)
        self._stream.synchronize()
        return [torch.from_numpy(self._host[name].copy()) for name in names]

    def release(self) -> None:
        with self.use_gpu():
            for memory in self._device.values():
                memory.free()
            for array in self._host.values():
                array.base.free()
            self._stream = None
        # pycuda (2026.1) leaves it current in this thread, which ends after this
        self._context.detach()


class TorchBuffers:
    """Buffers that are torch's tensors: inputs on the GPU are copied there, and outputs stay there.

    Args:
        cuda: ``torch.cuda``.
        device: of the buffers.
    """

    def __init__(self, cuda: Any = torch.cuda, device: str = "cuda") -> None:
        self._cuda, self._at = cuda, torch.device(device)
        self._tensors: Dict[str, torch.Tensor] = {}
        self._stream: Optional[Any] = cuda.Stream()

    @contextlib.contextmanager
    def use_gpu(self) -> Iterator[None]:
        with torch.inference_mode(), self._cuda.stream(self._stream):
            yield

    def stream_handle(self) -> int:
        assert self._stream is not None
        return int(self._stream.cuda_stream)

    def allocate_buffer(self, name: str, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> int:
        like = torch.from_numpy(np.empty(0, dtype)).dtype
        self._tensors[name] = torch.empty(shape, dtype=like, device=self._at)
        return self._tensors[name].data_ptr()

    def upload_tensor(self, name: str, value: torch.Tensor) -> None:
        assert self._stream is not None
        # what gives the value was launched on the stream that every module is run on
        self._stream.wait_stream(self._cuda.default_stream())
        self._tensors[name].copy_(value)

    def download_tensors(self, names: Sequence[str]) -> List[torch.Tensor]:
        assert self._stream is not None
        copies = [self._tensors[name].clone() for name in names]
        self._stream.synchronize()
        for one in copies:
            one.record_stream(self._cuda.default_stream())
        return copies

    def release(self) -> None:
        self._tensors, self._stream = {}, None
