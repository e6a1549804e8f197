"""CUDA graphs: the kernels that torch would launch one by one, launched at once. The same kernels, so the same bits."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

import torch

from edge_offload.execute.engines.base import CUDA, EXACT, NO_GPU, Direct
from edge_offload.older_torch import CAPTURES_BESIDE_THREADS


class CudaGraphBackend(Direct):
    """Backend that replays torch's kernels as a CUDA graph."""

    name: str = "eager+graph"
    accuracy: str = EXACT
    distributions: Tuple[str, ...] = ("torch",)
    device: str = CUDA

    def missing_parts(self) -> str:
        if not torch.cuda.is_available():
            return NO_GPU
        return "" if CAPTURES_BESIDE_THREADS else "torch 2.1 or later"

    def capture(
        self, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
    ) -> CudaGraphEngine:
        return CudaGraphEngine(run, inputs)


class CudaGraphEngine:
    """One graph with its inputs and outputs at fixed addresses, on a stream of its own.

    Args:
        run: launches the kernels for tensors on the GPU.
        inputs: of the shapes that the graph is for.
        cuda: ``torch.cuda``.
    """

    def __init__(
        self,
        run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        cuda: Any = torch.cuda,
    ) -> None:
        self._cuda = cuda
        self._stream = cuda.Stream()
        self._inputs = [one.clone() for one in inputs]
        self._stream.wait_stream(cuda.default_stream())
        with torch.inference_mode(), cuda.stream(self._stream):
            # what is made on first use (handles, workspaces) must not be captured
            for _ in range(3):
                run(self._inputs)
        self._stream.synchronize()
        self._graph = cuda.CUDAGraph()
        # frames are answered by torch in another thread meanwhile: what that one allocates is none of the graph's
        with torch.inference_mode(), cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            self._outputs = list(run(self._inputs))

    def run(self, inputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        with torch.inference_mode(), self._cuda.stream(self._stream):
            self._stream.wait_stream(self._cuda.default_stream())
            for fixed, given in zip(self._inputs, inputs):
                fixed.copy_(given)
            self._graph.replay()
            # the next run writes its outputs to the same memory
            outputs = [one.clone() for one in self._outputs]
        self._stream.synchronize()
        for one in outputs:
            one.record_stream(self._cuda.default_stream())
        return outputs

    def close(self) -> None:
        self._graph.reset()
        self._inputs, self._outputs = [], []
