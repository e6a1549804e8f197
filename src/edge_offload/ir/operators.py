"""Operator calls: a name and an argument tree, what a call makes, writes and aliases.

A call of an :class:`~edge_offload.ir.sequence.OperatorSequence` takes values by number (:class:`Ref`). A call as a
program made it (:mod:`edge_offload.ir.trace.keys` decodes it) takes views of storages and parameters instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, NamedTuple, Optional, Tuple, Union

from edge_offload.errors import BadInput

_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*")
SYMBOL_KINDS = ("dtype", "device", "layout", "memory_format", "generator")
MAX_DEPTH = 8
SIZE, STRIDE, OFFSET = range(3)
"""Fields of a :class:`Layout`, where an integer of a recorded call belongs."""


@dataclass(frozen=True)
class Ref:
    """The tensor with number ``id``, used as an argument."""

    id: int


@dataclass(frozen=True)
class Symbol:
    """An enumerated torch constant: ``Symbol("dtype", "float32")``, ``Symbol("device", "cuda:0")``."""

    kind: str
    name: str

    def __post_init__(self) -> None:
        if self.kind not in SYMBOL_KINDS:
            raise BadInput(f"unknown kind of constant {self.kind!r}", remedy=f"one of {', '.join(SYMBOL_KINDS)}")


class Layout(NamedTuple):
    """Placement of a tensor in its storage.

    Attributes:
        dtype: torch's number of it (``c10::ScalarType``).
        flags: 1 conjugate, 2 negated.
        sizes, strides, offset: in elements.
    """

    dtype: int
    flags: int
    sizes: Tuple[int, ...]
    strides: Tuple[int, ...]
    offset: int


class Hole(NamedTuple):
    """An integer that varies: its field (SIZE, STRIDE, OFFSET), its dimension, and the value that goes there."""

    field: int
    dimension: int
    value: int


@dataclass(frozen=True)
class View:
    """A device tensor of a recorded call.

    Attributes:
        number: among the call's device tensors.
        reference: among the call's references to storages, in order.
        storage: the storage that it is a view of, counted by first use in the call.
        layout: how it lies there; 0 where ``varying`` says what goes there.
        varying: its integers that vary.
    """

    number: int
    reference: int
    storage: int
    layout: Layout
    varying: Tuple[Hole, ...] = ()


@dataclass(frozen=True)
class StorageRef:
    """A device storage of a recorded call; see :class:`View`."""

    reference: int
    storage: int


@dataclass(frozen=True)
class HostTensor:
    """A parameter: a tensor of the host that travels with the call, the ``number``-th; ``dtype`` as in a layout."""

    number: int
    dtype: int
    sizes: Tuple[int, ...]
    varying: Tuple[Hole, ...] = ()


@dataclass(frozen=True)
class HostNumber:
    """A parameter: a number of the host that travels with the call, the ``number``-th.

    Attributes:
        kind: d, i or b.
        dtype: as in a layout.
        wrapped: whether it is a Python number to the operator.
    """

    number: int
    kind: str
    dtype: int
    wrapped: bool


@dataclass(frozen=True)
class Varying:
    """An integer argument that varies: the value that goes there."""

    value: int


Operand = Union[View, StorageRef, HostTensor, HostNumber]
"""Leaves in whose place a kernel gets a tensor or a number."""
Leaf = Union[Ref, Symbol, Varying, Operand]
Arg = Union[None, bool, int, float, complex, str, Leaf, Tuple["Arg", ...]]
"""An argument: an immutable tree. Lists are tuples. A number where the schema says Tensor is a wrapped number."""
_LEAVES = (bool, int, float, complex, str, Ref, Symbol, View, StorageRef, HostTensor, HostNumber, Varying)


@dataclass(frozen=True)
class Operator:
    """One call.

    Attributes:
        name: overload, ``aten.relu.default``; of a recorded call as the dispatcher has it, ``aten::relu``.
        args: positional arguments; of a recorded call all arguments of the schema.
        kwargs: keyword arguments, sorted by name.
        outputs: numbers of the values it makes, flattened; ``None`` where the overload returned no tensor there.
        mutates: numbers of the argument values whose bytes it overwrites (in-place and ``out=`` overloads).
        aliases: pairs (position in ``outputs``, number of an argument value): that output shares the argument's
            storage, as views and in-place overloads do.
        scope: where it came from (``layer1.0.conv1``); for people, not part of identity.
    """

    name: str
    args: Tuple[Arg, ...] = ()
    kwargs: Tuple[Tuple[str, Arg], ...] = ()
    outputs: Tuple[Optional[int], ...] = ()
    mutates: Tuple[int, ...] = ()
    aliases: Tuple[Tuple[int, int], ...] = ()
    scope: str = ""

    def __post_init__(self) -> None:
        if self.kwargs and list(self.kwargs) != sorted(self.kwargs, key=lambda pair: pair[0]):
            object.__setattr__(self, "kwargs", tuple(sorted(self.kwargs, key=lambda pair: pair[0])))

    def check_names(self) -> None:
        """Raise BadInput unless the name is ``namespace.operator.overload`` and each keyword is given once."""
        if not _NAME.fullmatch(self.name):
            raise BadInput(f"{self.name!r} is not an operator overload", remedy="write namespace.operator.overload")
        keys = [key for key, _ in self.kwargs]
        if len(set(keys)) != len(keys):
            raise BadInput(f"{self.name}: a keyword is given twice: {keys}")

    @property
    def keywords(self) -> Dict[str, Arg]:
        """Keyword arguments as a dictionary."""
        return dict(self.kwargs)

    @property
    def base_name(self) -> str:
        """Name without the overload: ``aten.convolution``."""
        return self.name.rsplit(".", 1)[0]

    def leaves(self) -> Iterator[Arg]:
        """All leaves of positional, then keyword arguments, in order."""
        for arg in self.args:
            yield from walk_arguments(arg)
        for _, arg in self.kwargs:
            yield from walk_arguments(arg)

    def input_ids(self) -> Tuple[int, ...]:
        """Numbers of the values it takes, each once, in order of first appearance."""
        return tuple(dict.fromkeys(leaf.id for leaf in self.leaves() if isinstance(leaf, Ref)))

    def output_ids(self) -> Tuple[int, ...]:
        """Numbers of the values it makes."""
        return tuple(number for number in self.outputs if number is not None)

    def renumber_values(self, rename: Callable[[int], int]) -> Operator:
        """Copies the call with every value number passed through ``rename``."""
        return Operator(
            self.name,
            tuple(map_refs(arg, rename) for arg in self.args),
            tuple((key, map_refs(arg, rename)) for key, arg in self.kwargs),
            tuple(None if number is None else rename(number) for number in self.outputs),
            tuple(rename(number) for number in self.mutates),
            tuple((position, rename(number)) for position, number in self.aliases),
            self.scope,
        )


def walk_arguments(arg: Arg, depth: int = 0) -> Iterator[Arg]:
    """Leaves of an argument tree.

    Raises:
        BadInput: the tree is deeper than :data:`MAX_DEPTH`, or a leaf is of a type that no argument has.
    """
    if depth > MAX_DEPTH:
        raise BadInput(f"arguments nested deeper than {MAX_DEPTH}")
    if isinstance(arg, tuple):
        for item in arg:
            yield from walk_arguments(item, depth + 1)
    elif arg is None or isinstance(arg, _LEAVES):
        yield arg
    else:
        raise BadInput(f"an argument cannot be of type {type(arg).__name__}")


def map_refs(arg: Arg, rename: Callable[[int], int]) -> Arg:
    """Copies the tree with every value number passed through ``rename``."""
    if isinstance(arg, Ref):
        return Ref(rename(arg.id))
    if isinstance(arg, tuple):
        return tuple(map_refs(item, rename) for item in arg)
    return arg
