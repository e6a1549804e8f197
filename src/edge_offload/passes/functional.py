"""Writes turned into new values: a recorded sequence with in-place operators as an equal one without.

torch's own functionalisation does it: the sequence is run once on meta-like (fake) tensors under
``torch.func.functionalize``, which knows how a write through one view shows in every other.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from edge_offload.errors import Unsupported
from edge_offload.ir.build import Program, from_graph_module
from edge_offload.ir.evaluate import call
from edge_offload.ir.sequence import OperatorSequence


def functionalize(sequence: OperatorSequence, constants: Mapping[str, torch.Tensor]) -> Program:
    """The same inference without writes.

    Inputs that were written get a rebind to their new value, as do those that already had one. View operators stay,
    so that kernels and bits stay too. A functional sequence is returned as it is.

    Raises:
        Unsupported: a size is only known after running, or there are live-outs (they are handles of the recorder).
    """
    if sequence.is_functional:
        return Program(sequence, dict(constants))
    if sequence.live_outs:
        raise Unsupported("a sequence with live-outs cannot be functionalised", remedy="close it over its outputs")
    for value in sequence.values.values():
        if not value.is_static:
            raise Unsupported(f"value {value.id} has a size that only running tells")
    written = {number for operator in sequence.operators for number in operator.mutates}
    storages = {sequence.values[number].storage for number in written} - {None}
    state = [
        number for number in sequence.inputs
        if number in written or sequence.values[number].storage in storages or number in dict(sequence.rebinds)
    ]  # fmt: skip
    targets = dict(sequence.rebinds)
    numbers = list(sequence.constants)
    tensors = [constants[sequence.constants[number]] for number in numbers]

    def replay(*given: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        """Runs on copies of the inputs, so that functionalisation has no write to hand back by itself."""
        environment: Dict[int, Any] = dict(zip(sequence.inputs, [tensor.clone() for tensor in given]))
        environment.update(zip(numbers, tensors))
        for operator in sequence.operators:
            for number, result in zip(operator.outputs, call(operator, environment.__getitem__)):
                if number is not None:
                    environment[number] = result
        kept = [*sequence.outputs, *(targets.get(number, number) for number in state)]
        return tuple(environment[number] for number in kept)

    example: List[torch.Tensor] = []
    for number in sequence.inputs:
        value = sequence.values[number]
        tensor = torch.zeros(value.shape, dtype=getattr(torch, value.dtype))
        if value.strides is not None:
            tensor = torch.empty_strided(value.shape, value.strides, dtype=tensor.dtype).zero_()
        example.append(tensor)
    with torch.no_grad():
        traced = make_fx(torch.func.functionalize(replay, remove="mutations"), tracing_mode="fake",
                         _allow_non_fake_inputs=True)(*example)  # fmt: skip
    rebinds = [(sequence.inputs.index(number), len(sequence.outputs) + k) for k, number in enumerate(state)]
    return from_graph_module(traced, rebinds)
