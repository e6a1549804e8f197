"""Both halves of a plan in one process, exactly as the plan says: what a side neither made nor received is poison.

This executor is the yardstick, not the runtime. It does not consult ``check``: rows that a side does not have read as
NaN (or as the dtype's extreme), so that a plan with a missing halo gives a wrong result and not the right one by luck.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput
from edge_offload.execute.sequence_runner import Values
from edge_offload.split.footprints.registry import Local, Locality
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import Plan, Side, Step, Transfer

HOST = torch.device("cpu")

VIEWS = ("aten._unsafe_view",)
"""Views that do not call themselves one."""


class Half(Values):
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

    def put(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Add ``tensor`` as the rows of a value from ``low`` on."""
        self.pieces.setdefault(number, []).append((low, tensor))

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        """Rows [low, high); poison where this side has none. See :class:`footprint.Rows`."""
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
        result = poison(shape, getattr(torch, value.dtype), self.device)
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
            return self.rows(number, 0, self.located.length(number))
        found = self.pieces.get(number)
        if found:
            return found[0][1]
        value = self.located.sequence.values[number]
        return poison(list(value.shape), getattr(torch, value.dtype), self.device)

    def has(self, number: int, low: int, high: int) -> bool:
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

    def forget(self, number: int) -> None:
        """Free a value."""
        self.pieces.pop(number, None)

    def results(self, index: int, low: int, high: int) -> List[Any]:
        """Compute results of a step from the present rows; see :class:`Values`."""
        local = self.located.operators[index].local
        if local is None:
            return self.kernels[index](self.whole)
        results = self._in_one_piece(local, index, low, high)
        return local.run(low, high, self) if results is None else results

    def _in_one_piece(self, local: Local, index: int, low: int, high: int) -> Optional[List[Any]]:
        """Results of a step that is the whole operator, on whole values: nothing has to be cut or padded for it.

        None if it is a part of the operator, if rows are missing (some may not be needed), or if it is a view, which
        depends on how its operand, that may have come in pieces, lies in memory.
        """
        operator = self.kernels.operators[index]
        if low != 0 or high != local.length or operator.aliases or operator.base_name in VIEWS:
            return None
        held: Dict[int, torch.Tensor] = {}
        for number in local.needs:
            length = self.located.length(number)
            if not self.has(number, 0, length):
                return None
            held[number] = self.rows(number, 0, length)

        def fetch(number: int) -> torch.Tensor:
            found = held.get(number)
            return self.whole(number) if found is None else found

        return self.kernels[index](fetch)


def poison(shape: Sequence[int], dtype: torch.dtype, device: torch.device = HOST) -> torch.Tensor:
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
                shared.compute(index)
    return shared.held


def on_device(values: Mapping[int, torch.Tensor], device: torch.device) -> Dict[int, torch.Tensor]:
    """Copy values of the host to a half's device, and wait for it."""
    return dict(values) if device.type == "cpu" else {number: tensor.to(device) for number, tensor in values.items()}


@torch.no_grad()
def run_plan(
    plan: Plan,
    located: LocalityMap,
    constants: Mapping[str, torch.Tensor],
    inputs: Sequence[torch.Tensor],
    shared: Optional[Mapping[int, torch.Tensor]] = None,
) -> Tuple[torch.Tensor, ...]:
    """Outputs of one inference under ``plan``.

    Each side takes its steps in order, and waits for the transfers that the plan promises it; when nobody can go on,
    whoever is next computes with what it has. The robot's outputs are returned.

    Raises:
        BadInput: wrong number of inputs.
    """
    sequence = located.sequence
    if len(inputs) != len(sequence.inputs):
        raise BadInput(f"{len(inputs)} inputs given, the sequence takes {len(sequence.inputs)}")
    shared = shared_values(located, constants) if shared is None else shared
    halves = {side: Half(located, shared) for side in Side}
    for number, tensor in zip(sequence.inputs, inputs):
        halves[Side.ROBOT].put(number, 0, tensor)
    waiting: List[Transfer] = list(plan.transfers)
    done = dict.fromkeys(Side, 0)
    while True:
        progress = False
        for side in Side:
            steps = plan.steps(side)
            while done[side] < len(steps) and _ready(located, halves[side], steps[done[side]]):
                halves[side].compute(*steps[done[side]])
                done[side] += 1
                progress = True
        late = [transfer for transfer in waiting if not _send(located, halves, transfer)]
        progress = progress or len(late) < len(waiting)
        waiting = late
        if progress:
            continue
        behind = [side for side in Side if done[side] < len(plan.steps(side))]
        if not behind:
            break
        side = min(behind, key=lambda item: plan.steps(item)[done[item]].operator)
        halves[side].compute(*plan.steps(side)[done[side]])
        done[side] += 1
    return tuple(halves[Side.ROBOT].whole(number) for number in sequence.outputs)


def _ready(located: LocalityMap, half: Half, step: Step) -> bool:
    needs = located.footprint(step.operator, step.low, step.high)
    return all(half.has(number, low, high) for number, (low, high) in needs.items())


def _send(located: LocalityMap, halves: Mapping[Side, Half], transfer: Transfer) -> bool:
    source, target = halves[transfer.sender], halves[transfer.sender.other]
    if not source.has(transfer.value, transfer.low, transfer.high):
        return False
    if transfer.value in located.axes:
        rows = source.rows(transfer.value, transfer.low, transfer.high)
        target.put(transfer.value, transfer.low, rows.clone())
    else:
        target.put(transfer.value, 0, source.whole(transfer.value).clone())
    return True
