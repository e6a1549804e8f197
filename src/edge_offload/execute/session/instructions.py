"""Instructions of a compiled step: per call, the registers that it reads and the storages that it makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from edge_offload.ir.operators import Hole, HostTensor, Layout
from edge_offload.ir.trace.calls import BoundOperator

#: Who runs a call: its kernel, this module, or the storages.
KERNEL, ALLOCATION, READ, WRITE, BY_STORAGES = range(5)
Holes = Tuple[Hole, ...]


class New(NamedTuple):
    """A result: number of the output, its storage, what that adds to the step's base, whether it outlives the step."""

    output: int
    canonical: int
    ordinal: int
    outlives: bool


class Instruction(NamedTuple):
    """One call.

    Attributes:
        how: who runs it.
        arguments, named: of the kernel, with holes.
        fetched: (register, storage, layout, whether a result may lie so) of tensors that are looked up before.
        holes: position of an argument, its register.
        lists: position of an argument that is a list of tensors, their registers (-1: none).
        integers: (position, index in a list or -1, value).
        single: whether the kernel returns one tensor.
        descriptions: of its results, for the robot: (kind, reference, register of the operand or -1); None: nothing.
        final: whether that is the step's outcome.
        done: registers, and ``dropped`` storages, after their last use.
        call, references, parts, first: for the storages: position, storages, numbers and payloads, first new storage.
        changes: (offset in the key, value) of each integer.
        upload: which of the program's uploads it copies, or -1.
    """

    how: int
    entry: BoundOperator
    kernel: Callable[..., Any]
    arguments: List[Any]
    named: Dict[str, Any]
    fetched: Tuple[Tuple[int, int, int, bool], ...]
    holes: Tuple[Tuple[int, int], ...]
    lists: Tuple[Tuple[int, Tuple[int, ...]], ...]
    integers: Tuple[Tuple[int, int, int], ...]
    single: bool
    new: Tuple[New, ...]
    descriptions: Optional[Tuple[Tuple[int, int, int], ...]]
    final: bool
    done: Tuple[int, ...]
    dropped: Tuple[int, ...]
    call: int
    references: Tuple[int, ...]
    parts: Tuple[int, int, int, int]
    first: int
    changes: Tuple[Tuple[int, int], ...]
    upload: int = -1

    def allocation_bytes(self, values: Sequence[int]) -> int:
        """Bytes of an allocation."""
        nbytes: int = values[self.integers[0][2]] if self.integers else self.arguments[0]
        return nbytes


class Upload(NamedTuple):
    """A host tensor that comes with the step: which of its payloads, and what it is."""

    payload: int
    spec: HostTensor


@dataclass
class StepCode:
    """A compiled step.

    Attributes:
        live: (canonical number, where its number counts from, number) of each storage that existed before.
        layouts: of tensors, with the values that are filled in.
        registers: how many there are.
        written: canonical numbers of the storages, of those that existed before, to which it writes.
        random: whether it draws random numbers.
        grown: how many storages it makes.
        dead: canonical numbers of new storages that the client has dropped already.
        numbers: 16 bytes for each number of the host.
        changed: makes a call with other integers.
        plain: the layouts, None where values are filled in.
    """

    live: Sequence[Tuple[int, int, int]]
    layouts: List[Tuple[Layout, Holes]]
    registers: int
    instructions: List[Instruction]
    uploads: List[Upload]
    written: List[int]
    random: bool
    grown: int
    dead: FrozenSet[int]
    numbers: bytes
    changed: Callable[[BoundOperator, Sequence[Tuple[int, int]]], BoundOperator]
    plain: List[Optional[Layout]] = field(init=False)

    def __post_init__(self) -> None:
        self.plain = [layout if not holes else None for layout, holes in self.layouts]
