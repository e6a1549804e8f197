"""Runs stages as CUDA graphs, which launch all kernels of a stage at once, because a GPU may wait for launches."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple

import torch

from edge_offload.execute import devices
from edge_offload.execute.engines.base import Direct, Engine
from edge_offload.execute.engines.cuda_graph import CudaGraphBackend

StageFunction = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
_log = logging.getLogger(__name__)


def graph_backend(device: torch.device) -> Optional[Direct]:
    """Return the backend that captures graphs on ``device``; None: there is none."""
    backend = CudaGraphBackend()
    return None if device.type != "cuda" or devices.Virtual.owner or backend.missing_parts() else backend


class GraphedStage:
    """Runs ``calls``, from its third run with the same layouts on as a graph. Use it from one thread.

    The graph is captured in the second run, and used only if its outputs had equal bytes and strides there.

    Args:
        name: of the stage, for the log.
        calls: returns the function that computes a batch of a size call by call.
        backend: captures graphs; None: everything is computed call by call.
    """

    def __init__(self, name: str, calls: Callable[[int], StageFunction], backend: Optional[Direct]) -> None:
        self._name, self._calls, self._backend = name, calls, backend
        self._graphs: Dict[Tuple[Any, ...], Optional[Engine]] = {}
        self._seen: Set[Tuple[Any, ...]] = set()

    def run(self, batch: int, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the outputs of the stage.

        Args:
            batch: frames in the tensors.
            tensors: inputs of the stage, on its device.
        """
        if self._backend is None:
            return self._calls(batch)(tensors)
        layouts = (batch, *((tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors))
        graph = self._graphs.get(layouts)
        if graph is not None:
            return graph.run(tensors)
        outputs = self._calls(batch)(tensors)
        # a graph is for one size of batch and one layout of its inputs
        if layouts not in self._graphs and len(self._graphs) < 16:
            if layouts in self._seen:
                self._graphs[layouts] = self._capture_graph(batch, tensors, outputs)
            self._seen.add(layouts)
        return outputs

    def _capture_graph(
        self, batch: int, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Optional[Engine]:
        """Return a graph of the calls; None: it cannot be captured, or gives other outputs."""
        assert self._backend is not None
        try:
            graph = self._backend.capture(self._calls(batch), tensors)
            reason = "" if _are_equal(outputs, graph.run(tensors)) else "its outputs differ"
        except Exception as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        if not reason:
            return graph
        _log.info("%s is computed without a CUDA graph in batches of %d: %s", self._name, batch, reason)
        return None


def _are_equal(expected: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """True if tensors have the same values and strides; NaN is equal to itself."""
    return [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in expected] == [
        (tensor.dtype, tensor.shape, tensor.stride()) for tensor in outputs
    ] and all(torch.equal(_as_bytes(tensor), _as_bytes(other)) for tensor, other in zip(expected, outputs))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
