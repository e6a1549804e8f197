"""CUDA graphs emulated on a CPU: what is issued during a capture is recorded, and a replay computes it again in place.

As with a real graph, operands and results stay where they were at the capture, and what a capture issues changes
nothing. Not as with a real one: what is issued during a capture is computed, so that operators that wait for data
succeed where CUDA would refuse them; ``refuse`` names operators that raise as CUDA does.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Recorded(TorchDispatchMode):
    """Operators as they are issued, with operands and results."""

    def __init__(self, refuse: Sequence[str]) -> None:
        super().__init__()
        self.calls: List[Tuple[Any, Any, Any, List[torch.Tensor]]] = []
        self.saved: Dict[int, Tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._refuse = refuse

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if operator._schema.name.split("::")[1] in self._refuse:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        tensors = [one for one in tree_flatten((arguments, named))[0] if isinstance(one, torch.Tensor)]
        if operator._schema.is_mutable:
            for one in tensors:
                storage = one.untyped_storage()
                self.saved.setdefault(storage._cdata, (storage, storage.clone()))
        results = operator(*arguments, **named)
        if operator._schema.name.startswith(("aten::empty", "aten::new_empty")):
            return results  # memory is given out at the capture
        operands = {one.untyped_storage()._cdata for one in tensors}
        made = [one for one in tree_flatten(results)[0] if isinstance(one, torch.Tensor)]
        fresh = [one for one in made if one.untyped_storage()._cdata not in operands]
        self.calls.append((operator, arguments, named, fresh if len(fresh) == len(made) else []))
        return results


class EmulatedGraph:
    def __init__(self, calls: List[Tuple[Any, Any, Any, List[torch.Tensor]]]) -> None:
        self._calls = calls

    def replay(self) -> None:
        for operator, arguments, named, made in self._calls:
            results = [one for one in tree_flatten(operator(*arguments, **named))[0] if isinstance(one, torch.Tensor)]
            for place, result in zip(made, results):
                place.copy_(result)


class EmulatedDriver:
    """See :class:`edge_offload.execute.session.cuda_driver.CaptureDriver`."""

    def __init__(self, *refuse: str) -> None:
        self.refuse = refuse
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.graph: Callable[..., Any] = EmulatedGraph

    def capture(self, launch: Callable[[], None]) -> Any:
        recorded = Recorded(self.refuse)
        try:
            with torch.inference_mode(), recorded:
                launch()
        finally:
            for storage, saved in recorded.saved.values():
                storage.copy_(saved)
        graph = self.graph(recorded.calls)
        self.graphs.add(graph)
        return graph

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def synchronize(self) -> None:
        pass

    def graph_bytes(self) -> int:
        return len(self.graphs) << 20
