"""CUDA's graphs and page-locked memory, as far as sessions use them, and the captures that wait for an idle moment."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Callable, List, Optional, Protocol

import torch

from edge_offload.execute.devices import Virtual

#: Environment variable that keeps sessions from using CUDA graphs by being "0".
SWITCH = "EDGE_OFFLOAD_CUDA_GRAPHS"
#: Part of the memory of a session that its graphs may take.
MAX_SHARE = 4
#: Lines that one session writes of its graphs.
MAX_REPORTED = 20


class Replayable(Protocol):
    """A captured graph."""

    def replay(self) -> None:
        """Launch it on the current stream."""


class NoGraph(RuntimeError):
    """All calls of a capture were issued, and CUDA makes no graph of them."""


class Driver(Protocol):
    """What a capture needs of CUDA; tests have an emulation on a CPU."""

    def capture(self, launch: Callable[[], None]) -> Replayable:
        """Record the kernels that ``launch`` launches, without running them.

        Raises:
            NoGraph: as a whole they cannot be captured.
            RuntimeError: one of them cannot be captured.
        """

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A page-locked host tensor of the shape and dtype of ``tensor``, dense."""

    def synchronize(self) -> None:
        """Wait for what was launched on the current stream."""

    def reserved_bytes(self) -> int:
        """Bytes that the process has taken from the GPU."""


class CudaDriver:
    """See :class:`Driver`.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """See :class:`Driver`. Graphs share one pool of memory: they run one after another, and keep nothing."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                launch()
            except BaseException:
                self._abandon(graph)
                raise
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._abandon(graph)
                raise NoGraph(str(error)) from error
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed: the stream and the allocator are as before it."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        # a capture that ends with an error leaves the allocators of the GPU and of the host in its pool
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        self._pool = torch.cuda.graph_pool_handle()
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize(self._device)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Driver`."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def synchronize(self) -> None:
        """See :class:`Driver`."""
        torch.cuda.current_stream(self._device).synchronize()

    def reserved_bytes(self) -> int:
        """See :class:`Driver`."""
        return int(torch.cuda.memory_reserved(self._device))


class Captures:
    """The captures of one session.

    Args:
        driver: of its GPU.
        most_bytes: of GPU memory that graphs may take.

    Attributes:
        captured: how many graphs were made; ``refused``: why others were not.
        replayed: how often a graph ran in place of its calls.
    """

    def __init__(self, driver: Driver, most_bytes: int) -> None:
        self.driver = driver
        self.captured = 0
        self.replayed = 0
        self.refused: List[str] = []
        self._reported = 0
        self._room = most_bytes
        self._waiting: List[Callable[[], None]] = []

    def request(self, capture: Callable[[], None]) -> None:
        """Have :meth:`run_pending` call ``capture``."""
        self._waiting.append(capture)

    def run_pending(self) -> None:
        """Capture what was requested. Call it where nobody waits: a capture takes some 20 ms."""
        waiting, self._waiting = self._waiting, []
        for capture in waiting:
            if self._room <= 0:
                break
            before = self.driver.reserved_bytes()
            capture()
            self._room -= max(0, self.driver.reserved_bytes() - before)

    def accept(self, calls: int, seconds: float) -> None:
        """Report that a step of ``calls`` operators runs as a graph, which took so many ``seconds`` to capture."""
        self._report(f"a step of {calls} operators runs as a CUDA graph (captured in {1e3 * seconds:.0f} ms)")

    def refuse(self, calls: int, reason: str) -> None:
        """Report that a step of ``calls`` operators runs operator by operator."""
        text = f"a step of {calls} operators runs without a CUDA graph: {reason}"
        if text not in self.refused:
            self.refused.append(text)
            self._report(text)

    def _report(self, text: str) -> None:
        """Write a line, but not a line for every step of a program that has hundreds."""
        self._reported += 1
        if self._reported <= MAX_REPORTED:
            print(f"edge_offload: {text}", file=sys.stderr, flush=True)


def captures_of(device: torch.device, storage_bytes: int) -> Optional[Captures]:
    """The captures of a session on ``device``; None where there are no graphs.

    Args:
        device: where the session computes.
        storage_bytes: what its tensors may hold.
    """
    if device.type != "cuda" or Virtual.owner or os.environ.get(SWITCH, "1") == "0":
        return None
    driver: Any = CudaDriver(device)
    return Captures(driver, storage_bytes // MAX_SHARE)
