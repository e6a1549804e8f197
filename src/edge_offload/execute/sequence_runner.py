"""Running an operator sequence on real tensors, whole or by range, with the very kernels that were recorded."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput, RemoteError
from edge_offload.ir import OperatorSequence
from edge_offload.ir.evaluate import call
from edge_offload.ir.liveness import free_after
from edge_offload.ir.values import DYNAMIC, Value

Allowed = Callable[[str], bool]


class SequenceRunner:
    """Runs one sequence again and again.

    Whole operators run with the overloads that were recorded, so that results are bit-equal to eager execution for
    the same build, instruction set and thread count.

    Args:
        sequence: validated here.
        constants: tensors by content digest; every digest of ``sequence.constants`` must be there.
        allowed: which overload names may run; everything when absent. A server passes its allow-list.
        device: where to run.

    Raises:
        BadInput: a constant is missing or has not the recorded dtype and shape.
        RemoteError: an overload is not allowed.
    """

    def __init__(
        self,
        sequence: OperatorSequence,
        constants: Mapping[str, torch.Tensor],
        allowed: Optional[Allowed] = None,
        device: str = "cpu",
    ) -> None:
        self.sequence = sequence.validate()
        self.device = device
        if allowed is not None:
            for operator in sequence.operators:
                if not allowed(operator.name):
                    raise RemoteError(f"operator {operator.name} is not on the list of operators that may run")
        self._constants: Dict[int, torch.Tensor] = {}
        for number, digest in sequence.constants.items():
            if digest not in constants:
                raise BadInput(f"constant {digest[:12]} of value {number} is missing", remedy="load it first")
            self._constants[number] = _laid_out(constants[digest], sequence.values[number], device)
        self._free = free_after(sequence)

    def begin(self, inputs: Sequence[torch.Tensor]) -> Dict[int, torch.Tensor]:
        """A fresh environment (value number -> tensor) with constants and ``inputs`` in it.

        Raises:
            BadInput: wrong number, dtype or shape of inputs.
        """
        if len(inputs) != len(self.sequence.inputs):
            raise BadInput(f"{len(inputs)} inputs given, the sequence takes {len(self.sequence.inputs)}")
        environment = dict(self._constants)
        for number, tensor in zip(self.sequence.inputs, inputs):
            environment[number] = _fitting(tensor, self.sequence.values[number]).to(self.device)
        return environment

    def run_range(self, environment: Dict[int, torch.Tensor], start: int, stop: int) -> None:
        """Run operators ``start`` to ``stop`` (exclusive) in ``environment``, dropping what is not needed again."""
        for index in range(start, stop):
            operator = self.sequence.operators[index]
            results = call(operator, environment.__getitem__, self.device)
            for number, result in zip(operator.outputs, results):
                if number is not None:
                    environment[number] = result
            for number in self._free[index]:
                environment.pop(number, None)

    @torch.no_grad()
    def run(self, inputs: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
        """Outputs (host reads) of one inference, in order. State inputs are not replaced: see :meth:`run_all`."""
        outputs, _, _ = self.run_all(inputs)
        return outputs

    @torch.no_grad()
    def run_all(
        self, inputs: Sequence[torch.Tensor]
    ) -> Tuple[Tuple[torch.Tensor, ...], List[torch.Tensor], Dict[int, torch.Tensor]]:
        """Outputs, live-outs, and new state by the number of the input that it replaces."""
        environment = self.begin(inputs)
        self.run_range(environment, 0, len(self.sequence))
        return (
            tuple(environment[number] for number in self.sequence.outputs),
            [environment[number] for number in self.sequence.live_outs],
            {state: environment[number] for state, number in self.sequence.rebinds},
        )


def _fitting(tensor: torch.Tensor, value: Value) -> torch.Tensor:
    dtype = str(tensor.dtype).split(".")[-1]
    shape = tuple(tensor.shape)
    same = len(shape) == len(value.shape) and all(want in (DYNAMIC, got) for want, got in zip(value.shape, shape))
    if dtype != value.dtype or not same:
        raise BadInput(f"value {value.id} must be {value.dtype}{list(value.shape)}, got {dtype}{list(shape)}")
    return tensor


def _laid_out(tensor: torch.Tensor, value: Value, device: str) -> torch.Tensor:
    """A weight with the recorded strides: the memory layout decides which kernel runs, and so the last bits."""
    tensor = _fitting(tensor, value).to(device)
    if value.strides is None:
        return tensor.contiguous()
    if tuple(tensor.stride()) == value.strides:
        return tensor
    return torch.empty_strided(value.shape, value.strides, dtype=tensor.dtype, device=device).copy_(tensor)
