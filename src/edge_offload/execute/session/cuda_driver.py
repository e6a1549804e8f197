"""CUDA's graphs and page-locked memory, as far as sessions use them, and the captures that wait for an idle moment."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from typing import Any, Callable, List, Optional, Protocol, Set

import torch

from edge_offload.execute.devices import Virtual
from edge_offload.older_torch import CAPTURES_BESIDE_THREADS

#: Environment variable that keeps sessions from using CUDA graphs by being "0".
SWITCH = "EDGE_OFFLOAD_CUDA_GRAPHS"


class Replayable(Protocol):
    """A captured graph."""

    def replay(self) -> None:
        """Launch it on the current stream."""


class NoGraph(RuntimeError):
    """All calls of a capture were issued, and CUDA makes no graph of them."""


class CaptureDriver(Protocol):
    """Functions of CUDA that a capture needs; tests have an emulation on a CPU."""

    def capture(self, launch: Callable[[], None]) -> Replayable:
        """Record the kernels that ``launch`` launches, without running them.

        Raises:
            NoGraph: as a whole they cannot be captured.
            RuntimeError: one of them cannot be captured.
        """

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A page-locked host tensor of the shape and dtype of ``tensor``, dense."""

    def synchronize(self) -> None:
        """Wait for what was launched on the current stream."""

    def graph_bytes(self) -> int:
        """Bytes of the GPU that the graphs of now took when they were captured."""


class CudaGraph:
    """A captured graph, the pool that its memory is of, and the bytes by which it made the pool grow."""

    def __init__(self, graph: Any, pool: Any, nbytes: int) -> None:
        self._graph = graph
        self.pool = pool
        self.nbytes = nbytes

    def replay(self) -> None:
        self._graph.replay()


class CudaDriver:
    """Driver of a GPU, by ``torch.cuda``.

    Args:
        device: the GPU.
        cuda: ``torch.cuda``.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device)
        self._graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
        self._lost: Set[Any] = set()  # pools in which a capture failed

    def capture(self, launch: Callable[[], None]) -> CudaGraph:
        """Captures a graph. Graphs share one pool of memory: they run one after another, and retain nothing."""
        cuda = self._cuda
        graph = cuda.CUDAGraph()
        pool = self._graph_pool()
        before = cuda.memory_reserved(self._device)
        cuda.synchronize(self._device)
        with cuda.stream(self._stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                launch()
            except BaseException:
                self._abandon_capture(graph, pool)
                raise
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._abandon_capture(graph, pool)
                raise NoGraph(str(error)) from error
        captured = CudaGraph(graph, pool, max(0, cuda.memory_reserved(self._device) - before))
        self._graphs.add(captured)
        return captured

    def _graph_pool(self) -> Any:
        """The pool of the graphs that there are. Torch drops a pool with its last graph, and refuses it after that."""
        usable = [graph.pool for graph in self._graphs if graph.pool not in self._lost]
        return usable[0] if usable else self._cuda.graph_pool_handle()

    def _abandon_capture(self, graph: Any, pool: Any) -> None:
        """End a capture that failed. It may leave torch's allocators in ``pool``, which is not used any more."""
        self._lost.add(pool)
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(self._cuda.current_device(), pool)
        with contextlib.suppress(RuntimeError):
            self._cuda.synchronize(self._device)

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def synchronize(self) -> None:
        self._cuda.current_stream(self._device).synchronize()

    def graph_bytes(self) -> int:
        return sum(graph.nbytes for graph in self._graphs)


class Captures:
    """The captures of one session.

    Args:
        driver: of its GPU.
        most_bytes: of GPU memory that graphs may take.

    Attributes:
        captured: how many graphs were made; ``refused``: why others were not.
        replayed: how often a graph ran in place of its calls.
    """

    def __init__(self, driver: CaptureDriver, most_bytes: int) -> None:
        self.driver = driver
        self.captured = 0
        self.replayed = 0
        self.refused: List[str] = []
        self._reported = 0
        self._most_bytes = most_bytes
        self._waiting: List[Callable[[], None]] = []

    def request_capture(self, capture: Callable[[], None]) -> None:
        """Have :meth:`run_pending` call ``capture``."""
        self._waiting.append(capture)

    def run_pending(self) -> None:
        """Capture what was requested. Call it where nobody waits: a capture takes some 20 ms."""
        waiting, self._waiting = self._waiting, []
        for capture in waiting:
            capture()

    @property
    def is_full(self) -> bool:
        """True if the graphs of now have their share of the GPU's memory."""
        return self.driver.graph_bytes() >= self._most_bytes

    def report_graph(self, calls: int, seconds: float) -> None:
        """Report that a step of ``calls`` operators runs as a graph, which took so many ``seconds`` to capture."""
        self._write_line(f"a step of {calls} operators runs as a CUDA graph (captured in {1e3 * seconds:.0f} ms)")

    def report_refusal(self, calls: int, reason: str) -> None:
        """Report that a step of ``calls`` operators runs operator by operator."""
        text = f"a step of {calls} operators runs without a CUDA graph: {reason}"
        if text not in self.refused:
            self.refused.append(text)
            self._write_line(text)

    def _write_line(self, text: str) -> None:
        """Write a line, but not a line for every step of a program that has hundreds."""
        self._reported += 1
        if self._reported <= 20:  # lines of one session
            print(f"edge_offload: {text}", file=sys.stderr, flush=True)


def captures_of(device: torch.device, storage_bytes: int) -> Optional[Captures]:
    """The captures of a session on ``device``; None where there are no graphs.

    Args:
        device: where the session computes.
        storage_bytes: what its tensors may hold.
    """
    switched_on = CAPTURES_BESIDE_THREADS and os.environ.get(SWITCH, "1") != "0"
    if device.type != "cuda" or Virtual.owner or not switched_on:
        return None
    driver: Any = CudaDriver(device)
    return Captures(driver, storage_bytes // 4)  # part of the session's memory that its graphs may take
