"""Which operators of a sequence are local, along which axes: the registry applied from the inputs to the outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Mapping, Optional, Tuple

import torch

from edge_offload.errors import BadInput, Unsupported
from edge_offload.ir import Operator, OperatorSequence
from edge_offload.ir.evaluate import Kernels
from edge_offload.ir.schemas import find_overload
from edge_offload.split.footprints import element as footprint_element
from edge_offload.split.footprints import rows as footprint_rows
from edge_offload.split.footprints import shape as footprint_shape
from edge_offload.split.footprints import window as footprint_window
from edge_offload.split.footprints.registry import EMPTY, Local, Locality, Range, Site, bind_arguments, find_rule

_REGISTERED = (footprint_element, footprint_rows, footprint_shape, footprint_window)


@dataclass(frozen=True)
class OperatorLocality:
    """One operator's locality.

    Attributes:
        kind: see :class:`Locality`.
        length: rows of its outputs; 1 for a global or free operator, which is one piece.
        local: the rule's answer; ``None`` for a global or free operator.
    """

    kind: Locality
    length: int
    local: Optional[Local]


@dataclass(frozen=True)
class LocalityMap:
    """Locality of a whole sequence for one choice of input axes.

    Attributes:
        sequence: what was analysed.
        operators: one entry per operator.
        axes: value -> axis along which its rows count. A value without one exists only whole.
        free: values that depend on no input; both sides have them.
        made_by, producer: what the sequence says of outputs, kept because planners ask often.
        kernels: the operators in one piece, on whole values.
        stored: the outputs of each operator that a side keeps; None for those of a local one that have no axis.
    """

    sequence: OperatorSequence
    operators: Tuple[OperatorLocality, ...]
    axes: Mapping[int, int]
    free: FrozenSet[int]
    made_by: Tuple[Tuple[int, ...], ...] = field(default=(), repr=False, compare=False)
    producer: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)
    _memo: Dict[Tuple[int, int, int], Dict[int, Range]] = field(default_factory=dict, repr=False, compare=False)
    stored: Tuple[Tuple[Optional[int], ...], ...] = field(default=(), repr=False, compare=False)
    kernels: Kernels = field(default_factory=lambda: Kernels(()), repr=False, compare=False)

    _device_kernels: Dict[str, Kernels] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "made_by", tuple(operator.output_ids() for operator in self.sequence.operators))
        object.__setattr__(self, "producer", self.sequence.producer_indices())
        object.__setattr__(self, "kernels", Kernels(self.sequence.operators))
        stored = [
            tuple(number if entry.local is None or number in self.axes else None for number in operator.outputs)
            for entry, operator in zip(self.operators, self.sequence.operators)
        ]
        object.__setattr__(self, "stored", tuple(stored))

    def kernels_on(self, device: torch.device) -> Kernels:
        """Return :attr:`kernels` on this device."""
        if device.type == "cpu":
            return self.kernels
        kernels = self._device_kernels.get(str(device))
        if kernels is None:
            kernels = self._device_kernels[str(device)] = Kernels(self.sequence.operators, str(device))
        return kernels

    def count_rows(self, number: int) -> int:
        """Return the rows of a value; 1 if it exists only whole."""
        axis = self.axes.get(number)
        return 1 if axis is None else self.sequence.values[number].shape[axis]

    def nbytes(self, number: int) -> int:
        """Return bytes of a value; of one with dynamic sizes, those of a usual read-out."""
        value = self.sequence.values[number]
        # a size that only running tells is taken for 25 people of 39 numbers
        return value.nbytes if value.is_static else 4096

    def row_bytes(self, number: int) -> float:
        """Bytes of one row of a value."""
        return self.nbytes(number) / self.count_rows(number)

    def footprint(self, index: int, low: int, high: int) -> Dict[int, Range]:
        """Return rows of every non-free argument that output rows [low, high) of operator ``index`` need.

        A value without axis appears as (0, 1): all of it. Free values and constants do not appear.
        """
        if low >= high:
            return {}
        cached = self._memo.get((index, low, high))
        if cached is not None:
            return cached
        entry = self.operators[index]
        needs: Dict[int, Range] = {}
        for number in self.sequence.operators[index].input_ids():
            if number in self.free:
                continue
            if entry.local is not None and number in entry.local.needs:
                rows = entry.local.needs[number](low, high)
            else:
                rows = (0, self.count_rows(number))
            if rows[0] < rows[1]:
                needs[number] = rows
        self._memo[(index, low, high)] = needs
        return needs

    def count_kinds(self) -> Dict[str, int]:
        """Count operators per kind, with ``local`` as the sum of the three local ones."""
        counted = Counter(entry.kind.value for entry in self.operators)
        local = sum(counted[kind.value] for kind in (Locality.ELEMENT, Locality.BLOCK, Locality.ROW))
        return {**{kind.value: counted[kind.value] for kind in Locality}, "local": local}

    def count_global(self) -> Counter[str]:
        """Count operators that run in one piece, by name."""
        pairs = zip(self.operators, self.sequence.operators)
        return Counter(operator.name for entry, operator in pairs if entry.kind is Locality.GLOBAL)

    def needed_rows(self) -> Dict[int, Range]:
        """Return rows of every value that the network's outputs depend on, unsplit (hull)."""
        hull: Dict[int, Range] = {}
        for number in self.sequence.retained_ids():
            if number not in self.free:
                hull[number] = (0, self.count_rows(number))
        for index in range(len(self.sequence.operators) - 1, -1, -1):
            low, high = self.made_rows(index, hull)
            for number, rows in self.footprint(index, low, high).items():
                hull[number] = unite_rows(hull.get(number, EMPTY), rows)
        return hull

    def made_rows(self, index: int, hull: Mapping[int, Range]) -> Range:
        """Return rows of operator ``index`` that are in ``hull``, over all its outputs."""
        rows = EMPTY
        for number in self.made_by[index]:
            needed = hull.get(number)
            if needed is not None:
                rows = unite_rows(rows, needed)
        return rows


def analyse_locality(sequence: OperatorSequence, input_axes: Mapping[int, int]) -> LocalityMap:
    """Apply the registry.

    Args:
        sequence: functional (no writes).
        input_axes: input value -> axis to split it along; inputs that are not named exist only whole.

    Raises:
        BadInput: the sequence writes, or an axis does not exist.
    """
    if not sequence.is_functional:
        raise BadInput("a sequence with in-place operators cannot be split", remedy="functionalise it first")
    axes: Dict[int, int] = {}
    for number, axis in input_axes.items():
        shape = sequence.values[number].shape
        if number not in sequence.inputs or not 0 <= axis < len(shape) or shape[axis] < 2:
            raise BadInput(f"value {number} of shape {list(shape)} cannot be split along axis {axis}")
        axes[number] = axis
    consumers = sequence.consumer_indices()
    outputs = set(sequence.retained_ids())
    free = set(sequence.constants)
    entries: List[OperatorLocality] = []
    for operator in sequence.operators:
        if all(number in free for number in operator.input_ids()) and not _is_random(operator):
            free.update(operator.output_ids())
            entries.append(OperatorLocality(Locality.FREE, 1, None))
            continue
        used = [position for position, number in enumerate(operator.outputs)
                if number is not None and (consumers[number] or number in outputs)]  # fmt: skip
        local = _apply_rule(Site(sequence, operator, axes, used))
        if local is None:
            entries.append(OperatorLocality(Locality.GLOBAL, 1, None))
            continue
        for output, place in zip(operator.outputs, local.axes):
            if output is not None and place is not None:
                axes[output] = place
        entries.append(OperatorLocality(local.kind, local.length, local))
    return LocalityMap(sequence, tuple(entries), axes, frozenset(free))


def axis_choices(sequence: OperatorSequence) -> List[Dict[int, int]]:
    """Return ways to split the inputs, best first: those under which most operators are local.

    Only the largest input is split; for an image the choices are its height and its width.
    """
    main = max(sequence.inputs, key=lambda number: sequence.values[number].nbytes)
    shape = sequence.values[main].shape
    choices = [{main: axis} for axis, size in enumerate(shape) if size > 1]
    scored = [(analyse_locality(sequence, choice).count_kinds()["local"], -position, choice)
              for position, choice in enumerate(choices)]  # fmt: skip
    ranked = sorted(scored, key=lambda item: item[:2], reverse=True)
    return [choice for count, _, choice in ranked if count]


def unite_rows(one: Range, other: Range) -> Range:
    """Return the smallest range that contains both; an empty range contains no rows."""
    if one[0] >= one[1]:
        return other
    if other[0] >= other[1]:
        return one
    return min(one[0], other[0]), max(one[1], other[1])


def _apply_rule(site: Site) -> Optional[Local]:
    """The rule's answer, or ``None`` where a rule, or what the operator is used for, makes it global."""
    function = find_rule(site.operator)
    values = site.sequence.values
    if function is None or not site.carried or not site.operator.output_ids() or _is_random(site.operator):
        return None
    if any(not values[number].is_static for number in (*site.operator.input_ids(), *site.operator.output_ids())):
        return None
    local = function(site)
    if local is None or local.length < 2:
        return None
    if any(local.axes[position] is None for position in site.used):
        return None
    if any(number not in local.needs for number in site.carried):
        return None
    return local


def _is_random(operator: Operator) -> bool:
    """Whether two calls may differ, as far as anyone knows: the two sides must not both make such a value.

    Operators with built-in dropout are tagged as random by torch even where the dropout is off.
    """
    try:
        schema = find_overload(operator.name)
    except Unsupported:
        return True
    if torch.Tag.nondeterministic_seeded not in schema.tags:
        return False
    bound = bind_arguments(operator)
    names = {argument.name for argument in schema._schema.arguments}
    return not (("train" in names and bound.get("train") is False)
                or ("dropout_p" in names and bound.get("dropout_p", 0.0) == 0.0))  # fmt: skip
