"""One-operator and small sequences built call by call, without tracing."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from edge_offload.ir import Kind, Operator, OperatorSequence, Ref, Value
from edge_offload.ir.build import tensor_digest
from edge_offload.ir.evaluate import flatten_outputs
from edge_offload.ir.schemas import find_overload


class Chain:
    """Builds a sequence call by call, running each call to learn its outputs. Value 0 is the input."""

    def __init__(self, x: torch.Tensor) -> None:
        self.tensors: List[torch.Tensor] = []
        self.values: Dict[int, Value] = {}
        self.constants: Dict[int, str] = {}
        self.operators: List[Operator] = []
        self.blobs: Dict[str, torch.Tensor] = {}
        self.last = self.add(x, Kind.INPUT)

    def add(self, tensor: torch.Tensor, kind: Kind) -> int:
        number = len(self.tensors)
        self.tensors.append(tensor)
        self.values[number] = Value(number, str(tensor.dtype).split(".")[-1], tuple(tensor.shape), kind)
        return number

    def constant(self, tensor: torch.Tensor) -> Ref:
        number = self.add(tensor, Kind.CONSTANT)
        self.constants[number] = tensor_digest(tensor)
        self.blobs[self.constants[number]] = tensor
        return Ref(number)

    def call(self, name: str, *args: Any, **kwargs: Any) -> int:
        """Issue a call; tensors become constants, ``Ref``s stay. Returns the number of the first output."""

        def place(arg: Any) -> Any:
            if isinstance(arg, torch.Tensor):
                return self.constant(arg)
            return tuple(place(item) for item in arg) if isinstance(arg, (list, tuple)) else arg

        def real(arg: Any) -> Any:
            if isinstance(arg, Ref):
                return self.tensors[arg.id]
            return [real(item) for item in arg] if isinstance(arg, tuple) else arg

        placed, named = tuple(map(place, args)), {key: place(arg) for key, arg in kwargs.items()}
        results = flatten_outputs(
            find_overload(name)(*map(real, placed), **{key: real(arg) for key, arg in named.items()})
        )
        outputs = tuple(self.add(result, Kind.INTERMEDIATE) for result in results)
        self.operators.append(Operator(name, placed, tuple(named.items()), outputs))
        self.last = outputs[0]
        return outputs[0]

    def finish(self, *outputs: int) -> OperatorSequence:
        return OperatorSequence(
            self.values, (0,), self.constants, tuple(self.operators), outputs or (self.last,)
        ).validate()

    @property
    def tail(self) -> Ref:
        return Ref(self.last)
