"""What one side of a plan has, and what it computes of it: rows that it neither made nor received are poison.

They read as NaN (or as the dtype's extreme), so that a plan with a missing halo gives a wrong result and not the right
one by luck.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.execute.sequence_runner import Values
from edge_offload.split.footprints.registry import Local, Locality
from edge_offload.split.model.locality import LocalityMap

HOST = torch.device("cpu")

VIEWS = ("aten._unsafe_view",)
"""Views that do not call themselves one."""


class SideValues(Values):
    """What one side has: pieces of values, each with the row that it starts at.

    Args:
        located: the sequence and its axes.
        shared: what both sides have.
        device: where the values are.
    """

    def __init__(self, located: LocalityMap, shared: Mapping[int, torch.Tensor], device: torch.device = HOST) -> None:
        super().__init__(located.kernels_on(device), {}, located.stored)
        self.located = located
        self.device, self.place = device, str(device)
        self.shared = shared
        self.pieces: Dict[int, List[Tuple[int, torch.Tensor]]] = {}

    def store_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Add ``tensor`` as the rows of a value from ``low`` on."""
        self.pieces.setdefault(number, []).append((low, tensor))

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        """Rows [low, high); poison where this side has none."""
        axis = self.located.axes[number]
        for start, piece in self.pieces.get(number, []):
            size = piece.shape[axis]
            if start == low and high == start + size:
                return piece
            if start <= low and high <= start + size:
                return piece.narrow(axis, low - start, high - low)
        value = self.located.sequence.values[number]
        shape = list(value.shape)
        shape[axis] = high - low
        result = make_poison(shape, getattr(torch, value.dtype), self.device)
        for start, piece in self.pieces.get(number, []):
            first, last = max(low, start), min(high, start + piece.shape[axis])
            if first < last:
                result.narrow(axis, first - low, last - first).copy_(piece.narrow(axis, first - start, last - first))
        return result

    def whole(self, number: int) -> torch.Tensor:
        """Return all of a value; poison if this side has none."""
        if number in self.shared:
            return self.shared[number]
        if number in self.located.axes:
            return self.rows(number, 0, self.located.count_rows(number))
        pieces = self.pieces.get(number)
        if pieces:
            return pieces[0][1]
        value = self.located.sequence.values[number]
        return make_poison(list(value.shape), getattr(torch, value.dtype), self.device)

    def has_rows(self, number: int, low: int, high: int) -> bool:
        """True if all of these rows are present."""
        if number not in self.located.axes:
            return bool(self.pieces.get(number))
        axis = self.located.axes[number]
        pieces = self.pieces.get(number)
        if not pieces:
            return low >= high
        if len(pieces) == 1:
            start, piece = pieces[0]
            return low >= high or (start <= low and high <= start + int(piece.shape[axis]))
        position = low
        for start, piece in sorted(pieces, key=lambda item: item[0]):
            if start > position:
                break
            position = max(position, start + int(piece.shape[axis]))
        return position >= high

    def free_value(self, number: int) -> None:
        """Free a value."""
        self.pieces.pop(number, None)

    def compute_rows(self, index: int, low: int, high: int) -> List[Any]:
        """Compute results of a step from the present rows; see :class:`Values`."""
        local = self.located.operators[index].local
        if local is None:
            return self.kernels[index](self.whole)
        results = self._run_whole(local, index, low, high)
        return local.run(low, high, self) if results is None else results

    def _run_whole(self, local: Local, index: int, low: int, high: int) -> Optional[List[Any]]:
        """Results of a step that is the whole operator, on whole values: nothing has to be cut or padded for it.

        None if it is a part of the operator, if rows are missing (some may not be needed), or if it is a view, which
        depends on how its operand, that may have come in pieces, lies in memory.
        """
        operator = self.kernels.operators[index]
        if low != 0 or high != local.length or operator.aliases or operator.base_name in VIEWS:
            return None
        operands: Dict[int, torch.Tensor] = {}
        for number in local.needs:
            length = self.located.count_rows(number)
            if not self.has_rows(number, 0, length):
                return None
            operands[number] = self.rows(number, 0, length)

        def read_value(number: int) -> torch.Tensor:
            operand = operands.get(number)
            return self.whole(number) if operand is None else operand

        return self.kernels[index](read_value)


def make_poison(shape: Sequence[int], dtype: torch.dtype, device: torch.device = HOST) -> torch.Tensor:
    """A tensor that spoils whatever is computed from it: NaN, or the smallest number of an integer dtype.

    A size that only running tells is taken as 1.
    """
    shape = [abs(size) for size in shape]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(list(shape), float("nan"), dtype=dtype, device=device)
    worst = False if dtype == torch.bool else torch.iinfo(dtype).min
    return torch.full(list(shape), worst, dtype=dtype, device=device)


def shared_values(located: LocalityMap, constants: Mapping[str, torch.Tensor]) -> Dict[int, torch.Tensor]:
    """Constants and everything computed from constants alone: what both sides have before the first inference."""
    sequence = located.sequence
    shared = Values(located.kernels, {number: constants[digest] for number, digest in sequence.constants.items()})
    with torch.no_grad():
        for index, entry in enumerate(located.operators):
            if entry.kind is Locality.FREE:
                shared.run_operator(index)
    return shared.tensors


def copy_values(values: Mapping[int, torch.Tensor], device: torch.device) -> Dict[int, torch.Tensor]:
    """Copy values of the host to a half's device, and wait for it."""
    return dict(values) if device.type == "cpu" else {number: tensor.to(device) for number, tensor in values.items()}
