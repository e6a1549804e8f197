"""A stand-in for CUDA graphs on tensors of the CPU: what is captured computes nothing, and runs when it is replayed."""

from __future__ import annotations

import contextlib
from typing import Any, List

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: CUDAGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._graph.calls.append((func, args, kwargs or {}, result))
        return result


class CUDAGraph:
    """In the place of ``torch.cuda.CUDAGraph``: the same addresses at every replay."""

    def __init__(self) -> None:
        self.calls: List[Any] = []

    def replay(self) -> None:
        for func, args, kwargs, outputs in self.calls:
            for stored, new in zip(_written_tensors(args, outputs), _written_tensors(args, func(*args, **kwargs))):
                stored.copy_(new)

    def reset(self) -> None:
        self.calls = []


def _written_tensors(args: Any, outputs: Any) -> List[torch.Tensor]:
    """Outputs that are no views of an argument."""
    given = {one.untyped_storage().data_ptr() for one in _tensors(args)}
    return [one for one in _tensors(outputs) if one.untyped_storage().data_ptr() not in given]


def _tensors(values: Any) -> List[torch.Tensor]:
    return [one for one in tree_flatten(values)[0] if isinstance(one, torch.Tensor)]


class Stream:
    """In the place of ``torch.cuda.Stream``; the calls are counted."""

    def __init__(self) -> None:
        self.calls: List[str] = []

    def wait_stream(self, stream: Any) -> None:
        self.calls.append("wait_stream")

    def synchronize(self) -> None:
        self.calls.append("synchronize")


@contextlib.contextmanager
def graph(cuda_graph: CUDAGraph, stream: Stream, capture_error_mode: str) -> Any:
    assert capture_error_mode == "thread_local", "torch answers frames in another thread meanwhile"
    with _Recorder(cuda_graph):
        yield
    for _, args, _, outputs in cuda_graph.calls:  # no kernel has run
        for one in _written_tensors(args, outputs):
            if one.is_floating_point():
                one.fill_(float("nan"))


def stream(stream: Stream) -> Any:
    return contextlib.nullcontext()


def default_stream() -> None:
    return None
