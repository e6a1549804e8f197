"""Locality rules of operators, and the registry that finds the rule of an operator by its name.

An operator is *local* along an axis if a range of its output along that axis needs only a range of its inputs (its
footprint), and *global* otherwise (LOPInfer Sec. IV-A). A rule inspects one call (a :class:`Site`) and returns a
:class:`Local`, or ``None`` for global. No rule depends on a model; an operator without a rule is global.

Recorded programs have internal operators (``_prelu_kernel`` for ``prelu``), traced models the public one; a rule names
both. A server also calls each operator of the registry in its own process for robots, after a check of the arguments on
tensors without data (:mod:`edge_offload.server.services.split.recorded`).

Ranges are half-open and count rows along the axis; a value without an axis is needed whole.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

import torch

from edge_offload.errors import Unsupported
from edge_offload.ir import Operator, OperatorSequence, Ref
from edge_offload.ir.evaluate import flatten_outputs, mentions_tensor, resolve_argument
from edge_offload.ir.operators import Arg
from edge_offload.ir.schemas import find_overload

Range = Tuple[int, int]
Footprint = Callable[[int, int], Range]

EMPTY: Range = (0, 0)

ArgumentSource = Tuple[str, bool, Any, Arg]
"""An argument of a call: its name, whether it is passed by name, its value or the source of that, and its tree."""
_REPLACED, _READ = object(), object()


class Locality(str, enum.Enum):
    """How an operator's output depends on its input."""

    ELEMENT = "element"
    """An output row needs the same row (activations, arithmetic, views that keep the axis)."""
    BLOCK = "block"
    """An output row needs a window of rows (convolution, pooling, interpolation, padding)."""
    ROW = "row"
    """An output row needs its own row as a whole (matrix product, softmax and norms along other axes)."""
    GLOBAL = "global"
    """An output needs all inputs: runs as a whole, on one side."""
    FREE = "free"
    """Depends on no input of the inference (a class token, a mask): runs on any side that needs it, at no cost."""


class RowReader(Protocol):
    """Reader of rows of a rule's footprint, and of whole values."""

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        """Return rows [low, high) of a value that has an axis; none for an empty range."""

    def whole(self, number: int) -> torch.Tensor:
        """Return all of a value."""


RunRows = Callable[[int, int, RowReader], List[Any]]


@dataclass(frozen=True)
class Local:
    """A local operator.

    Attributes:
        kind: ELEMENT, BLOCK or ROW.
        axes: axis of the rows of each output; ``None`` for an output that nothing may use.
        length: number of rows of the outputs.
        needs: value with an axis -> its rows that the output rows [low, high) need. All other tensors among the
            arguments are needed whole.
        run: computes output rows [low, high); low < high.
    """

    kind: Locality
    axes: Tuple[Optional[int], ...]
    length: int
    needs: Mapping[int, Footprint]
    run: RunRows


@dataclass
class Site:
    """A call and its context, as input of a rule.

    Attributes:
        sequence: the sequence that it is part of.
        operator: the call.
        axes: axis of every value that has one so far.
        used: positions of the outputs that something reads.
    """

    sequence: OperatorSequence
    operator: Operator
    axes: Mapping[int, int]
    used: Sequence[int]
    bound: Dict[str, Arg] = field(default_factory=dict)
    _sources: Dict[Tuple[str, ...], Tuple[ArgumentSource, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.bound = bind_arguments(self.operator)

    def argument(self, name: str, default: Arg = None) -> Any:
        """Return argument ``name``, positional or keyword, or the default."""
        return self.bound.get(name, default)

    def number_of(self, name: str) -> int:
        """Return the number of the tensor given as ``name``; -1 if there is none."""
        arg = self.bound.get(name)
        return arg.id if isinstance(arg, Ref) else -1

    def shape_of(self, number: int) -> Tuple[int, ...]:
        """Shape of a value."""
        return self.sequence.values[number].shape

    def axis_of(self, number: int) -> Optional[int]:
        """Return the axis of a value, or ``None`` if it exists only as a whole."""
        return self.axes.get(number)

    @property
    def output_shape(self) -> Tuple[int, ...]:
        """Shape of the first output."""
        first = self.operator.outputs[0]
        assert first is not None
        return self.sequence.values[first].shape

    @property
    def carried(self) -> Tuple[int, ...]:
        """Numbers of the arguments that have an axis."""
        return tuple(number for number in self.operator.input_ids() if number in self.axes)

    def one_axis(self, axis: int) -> Tuple[Optional[int], ...]:
        """Return ``axis`` for the first output, none for the others."""
        return (axis,) + (None,) * (len(self.operator.outputs) - 1)

    def call_overload(self, reader: RowReader, /, **replaced: Any) -> List[Any]:
        """Run the overload with some arguments replaced by finished Python objects; the rest is read whole."""
        place: str = getattr(reader, "place", "cpu")  # values of a GPU's are there
        names = (place, *replaced)
        sources = self._sources.get(names)
        if sources is None:
            sources = self._sources[names] = self._arrange_arguments(tuple(replaced), reader, place)
        positional: List[Any] = []
        keywords: Dict[str, Any] = {}
        for name, by_name, source, arg in sources:
            value = (
                replaced[name]
                if source is _REPLACED
                else resolve_argument(arg, reader.whole, place)
                if source is _READ
                else source
            )
            if by_name:
                keywords[name] = value
            else:
                positional.append(value)
        return flatten_outputs(find_overload(self.operator.name)(*positional, **keywords))

    def _arrange_arguments(
        self, replaced: Tuple[str, ...], reader: RowReader, place: str
    ) -> Tuple[ArgumentSource, ...]:
        """Arrange the sources of all arguments once: torch's schemas are slow, and a runtime calls often."""
        sources: List[ArgumentSource] = []
        gap = False  # behind an argument left at its default, the rest goes by name
        for argument in _schema_arguments(self.operator.name):
            name = argument.name
            arg = self.bound.get(name)
            if name in replaced:
                source = _REPLACED
            elif name not in self.bound:
                gap = True
                continue
            else:
                source = _READ if mentions_tensor(arg) else resolve_argument(arg, reader.whole, place)
            sources.append((name, gap or argument.kwarg_only, source, arg))
        return tuple(sources)


LocalityRule = Callable[[Site], Optional[Local]]
_RULES: Dict[str, LocalityRule] = {}


def register_rule(*names: str) -> Callable[[LocalityRule], LocalityRule]:
    """Register a rule for overloads: ``aten.relu.default``, or ``aten.relu`` for every overload of it."""

    def register(function: LocalityRule) -> LocalityRule:
        for name in names:
            if name in _RULES:
                raise ValueError(f"{name} has two locality rules")
            _RULES[name] = function
        return function

    return register


def find_rule(operator: Operator) -> Optional[LocalityRule]:
    """Return the rule for this overload, or ``None`` (the operator is global)."""
    return _RULES.get(operator.name) or _RULES.get(operator.base_name)


def same_rows(low: int, high: int) -> Range:
    """Return the footprint of element-wise and row-wise operators."""
    return low, high


def all_rows(length: int) -> Footprint:
    """Return the footprint of an operand that is needed whole although its producer is split."""
    return lambda low, high: (0, length)


def normalise_axis(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the front."""
    return axis + rank if axis < 0 else axis


def window_rows(low: int, high: int, size: int, kernel: int, stride: int, padding: int, dilation: int) -> Range:
    """Input rows that a sliding window touches for output rows [low, high), within [0, size).

    Exact at the borders too: a dilated window that starts in the padding may skip the first real rows. Empty if the
    windows see padding only.
    """
    first, last = size, 0
    for row in range(low, high):
        start = row * stride - padding
        tap = start if start >= 0 else start + -(start // dilation) * dilation
        if tap < min(size, start + dilation * (kernel - 1) + 1):
            first = min(first, tap)
        if start >= 0:
            break
    for row in range(high - 1, low - 1, -1):
        start = row * stride - padding
        end = start + dilation * (kernel - 1)
        tap = end if end < size else start + (size - 1 - start) // dilation * dilation
        if tap >= max(0, start):
            last = max(last, tap + 1)
        if end < size:
            break
    return (first, last) if first < last else EMPTY


def per_axis(value: Any, count: int, default: int) -> Tuple[int, ...]:
    """Expand an int-list argument to one number per spatial axis (torch accepts one number and short lists)."""
    if value is None or value == ():
        return (default,) * count
    if isinstance(value, int):
        return (value,) * count
    if len(value) == 1:
        return tuple(value) * count
    return tuple(value)


@lru_cache(maxsize=4096)
def _schema_arguments(name: str) -> Tuple[Any, ...]:
    return tuple(find_overload(name)._schema.arguments)


def bind_arguments(operator: Operator) -> Dict[str, Arg]:
    """Return given arguments by the schema's names; empty if torch has no such overload."""
    try:
        arguments = _schema_arguments(operator.name)
    except Unsupported:
        return {}
    bound: Dict[str, Arg] = {}
    for argument, arg in zip((a for a in arguments if not a.kwarg_only), operator.args):
        bound[argument.name] = arg
    bound.update(operator.kwargs)
    return bound
