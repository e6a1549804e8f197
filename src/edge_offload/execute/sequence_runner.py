"""Running an operator sequence on real tensors, whole or by range, with the very kernels that were recorded."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput
from edge_offload.ir import OperatorSequence
from edge_offload.ir.evaluate import Kernels
from edge_offload.ir.liveness import free_after
from edge_offload.ir.values import DYNAMIC, Value


class Values:
    """Values of one inference by number, and the loop that runs operators on them.

    Here a value has all its rows; :class:`~edge_offload.split.model.reference.SideValues` has, and computes, rows.

    Args:
        kernels: the operators.
        tensors: those that exist already, by number.
        outputs: which values the outputs of each operator are; None for one that is not kept. By default all are.
    """

    def __init__(
        self, kernels: Kernels, tensors: Mapping[int, torch.Tensor], outputs: Sequence[Sequence[Optional[int]]] = ()
    ) -> None:
        self.kernels = kernels
        self.tensors = dict(tensors)
        self.outputs = outputs or kernels.outputs

    def whole(self, number: int) -> torch.Tensor:
        """Tensor of all rows of a value."""
        return self.tensors[number]

    def store_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Stores ``tensor`` as the rows of a value from ``low`` on."""
        self.tensors[number] = tensor

    def free_value(self, number: int) -> None:
        """Free a value."""
        self.tensors.pop(number, None)

    def compute_rows(self, index: int, low: int, high: int) -> List[Any]:
        """Rows [low, high) of operator ``index``, output by output."""
        return self.kernels[index](self.whole)

    def run_operator(self, index: int, low: int = 0, high: int = 1) -> None:
        """Compute rows of an operator; one whose values are not divided has the one row 0."""
        for number, result in zip(self.outputs[index], self.compute_rows(index, low, high)):
            if number is not None:
                self.store_rows(number, low, result)

    def run(self, steps: Iterable[Tuple[int, int, int]], unused: Iterable[Sequence[int]]) -> None:
        """Runs ``steps``, (operator, first row, end), in order, and frees values after their last use."""
        for (index, low, high), numbers in zip(steps, unused):
            self.run_operator(index, low, high)
            for number in numbers:  # at once: fresh memory for everything costs as much as computing
                self.free_value(number)


class SequenceRunner:
    """Runs one sequence again and again.

    Whole operators run with the overloads that were recorded, so that results are bit-equal to eager execution for
    the same build, instruction set and thread count.

    Args:
        sequence: validated here.
        constants: tensors by content digest; every digest of ``sequence.constants`` must be there.
        device: where to run.

    Raises:
        BadInput: a constant is missing or has not the recorded dtype and shape.
    """

    def __init__(self, sequence: OperatorSequence, constants: Mapping[str, torch.Tensor], device: str = "cpu") -> None:
        self.sequence = sequence.validate()
        self.device = device
        self._kernels = Kernels(sequence.operators, device)
        self._constants: Dict[int, torch.Tensor] = {}
        for number, digest in sequence.constants.items():
            if digest not in constants:
                raise BadInput(f"constant {digest[:12]} of value {number} is missing", remedy="load it first")
            self._constants[number] = laid_out(constants[digest], sequence.values[number], device)
        self._free = free_after(sequence)

    def start_inference(self, inputs: Sequence[torch.Tensor]) -> Values:
        """Starts an inference with the constants and ``inputs``.

        Raises:
            BadInput: wrong number, dtype or shape of inputs.
        """
        if len(inputs) != len(self.sequence.inputs):
            raise BadInput(f"{len(inputs)} inputs given, the sequence takes {len(self.sequence.inputs)}")
        values = Values(self._kernels, self._constants)
        for number, tensor in zip(self.sequence.inputs, inputs):
            values.store_rows(number, 0, _check_fit(tensor, self.sequence.values[number]).to(self.device))
        return values

    def resume_inference(self, tensors: Mapping[int, torch.Tensor]) -> Values:
        """The values of an inference of which others have computed a part: constants and ``tensors``, by number.

        Raises:
            BadInput: a value is not of the sequence, or has another dtype or shape.
        """
        values = Values(self._kernels, self._constants)
        for number, tensor in tensors.items():
            if number not in self.sequence.values:
                raise BadInput(f"the sequence has no value {number}")
            values.store_rows(number, 0, _check_fit(tensor, self.sequence.values[number]).to(self.device))
        return values

    def run_range(self, values: Values, start: int, stop: int) -> None:
        """Run operators ``start`` to ``stop`` (exclusive) on ``values``, dropping what is not needed again."""
        values.run(((index, 0, 1) for index in range(start, stop)), self._free[start:stop])

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
        values = self.start_inference(inputs)
        self.run_range(values, 0, len(self.sequence))
        return (
            tuple(values.whole(number) for number in self.sequence.outputs),
            [values.whole(number) for number in self.sequence.live_outs],
            {state: values.whole(number) for state, number in self.sequence.rebinds},
        )


def _check_fit(tensor: torch.Tensor, value: Value) -> torch.Tensor:
    dtype = str(tensor.dtype).split(".")[-1]
    shape = tuple(tensor.shape)
    same = len(shape) == len(value.shape) and all(want in (DYNAMIC, got) for want, got in zip(value.shape, shape))
    if dtype != value.dtype or not same:
        raise BadInput(f"value {value.id} must be {value.dtype}{list(value.shape)}, got {dtype}{list(shape)}")
    return tensor


def laid_out(tensor: torch.Tensor, value: Value, device: str) -> torch.Tensor:
    """A weight on ``device`` with the recorded strides: they decide which kernel runs, and so the last bits.

    It is not copied where it lies so already.

    Raises:
        BadInput: another dtype or shape than the value's.
    """
    tensor = _check_fit(tensor, value).to(device)
    if value.strides is None:
        return tensor.contiguous()
    if tuple(tensor.stride()) == value.strides:
        return tensor
    return torch.empty_strided(value.shape, value.strides, dtype=tensor.dtype, device=device).copy_(tensor)
