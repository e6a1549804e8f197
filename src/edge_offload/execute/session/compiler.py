"""Making a :class:`~edge_offload.execute.session.program.Program` of a step whose calls have all run before."""

from __future__ import annotations

import struct
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.errors import ProtocolError
from edge_offload.execute.session.program import (
    ALLOCATION,
    BYTES,
    ITEM,
    KERNEL,
    OFFSET,
    PLAIN,
    READ,
    SIZE,
    STRIDE,
    WHOLE,
    WRITE,
    Holes,
    Instruction,
    New,
    Program,
    Upload,
)
from edge_offload.ir.schemas import enumerated
from edge_offload.ir.trace.calls import ALLOC, ARGUMENT, DOWNLOAD, NEW, RESIZE, UPLOAD, Entry, plain_number
from edge_offload.ir.trace.keys import Layout, Operand, integer_offsets, integers_of
from edge_offload.ir.trace.segments import Segment, Step
from edge_offload.ir.trace.symbols import Formula
from edge_offload.ir.trace.trace_graph import SAME, TraceStep

#: Where an integer of a key belongs: one of SIZE to ITEM, number of the operand or position of the argument, dimension
#: or position in the list.
Place = Tuple[int, int, int]
_FIXED_SIZE = {b"W": 3, b"F": 8, b"G": 8, b"B": 1, b"Z": 16, b"S": 1}


def compile_segment(segment: Segment, step: Step) -> Optional[Program]:
    """The program for ``segment`` and steps that are like ``step`` but for the storages that existed before."""
    live = tuple((canonical, SAME, number) for canonical, number in step.live)
    node = TraceStep(
        step.segment, (), (), live, tuple(step.dead), step.numbers, (), step.describe, tuple(sorted(step.wanted))
    )
    return compile_node(node, segment, segment, unchanged)


def unchanged(call: int, changes: Sequence[Tuple[int, int]]) -> Entry:
    """For steps in whose calls no integer varies."""
    raise ProtocolError("a segment's calls do not change")


def compile_node(
    node: TraceStep, segment: Segment, ran: Segment, changed: Callable[[int, Sequence[Tuple[int, int]]], Entry]
) -> Optional[Program]:
    """The program of a node; None if it has a call that needs looking at every time.

    Args:
        node: one expected step.
        segment: its calls with the integers of their definitions.
        ran: the same with those of a time when it ran.
        changed: a call of the node with other integers, by its position.
    """
    changes: Dict[int, List[Tuple[int, int]]] = {}
    formulas: Dict[Formula, int] = {}
    for patch in node.patches:
        value = formulas.setdefault(patch.formula, len(formulas))
        changes.setdefault(patch.call, []).append((patch.offset, value))
    compiler = _Compiler(node, segment, ran, changes)
    instructions = compiler.instructions()
    if instructions is None:
        return None
    written = [canonical for canonical, _, _ in node.live if canonical in segment.written]
    tail = _tail(segment.calls[-1][0].key, changes.get(len(segment.calls) - 1, ()))
    return Program(
        node, list(formulas), compiler.layouts, len(compiler.registers), instructions, written, segment.random,
        compiler.grown, tail, changed, compiler.uploads,
    )  # fmt: skip


def _tail(key: bytes, changes: Sequence[Tuple[int, int]]) -> Tuple[Tuple[int, ...], List[Tuple[int, int]]]:
    """The integers of a call, and which of them are values: (position, value)."""
    offsets, _ = integer_offsets(key)
    place = {offset: position for position, offset in enumerate(offsets)}
    return integers_of(key), [(place[offset], value) for offset, value in changes if offset in place]


class _Compiler:
    """Gives out registers and layouts, and writes the instructions of one node."""

    def __init__(
        self, node: TraceStep, segment: Segment, ran: Segment, changes: Dict[int, List[Tuple[int, int]]]
    ) -> None:
        self._node = node
        self._segment = segment
        self._ran = ran
        self._changes = changes
        self._dead = frozenset(node.dead)
        self.layouts: List[Tuple[Layout, Holes]] = []
        self._layout_numbers: Dict[Tuple[Layout, Holes], int] = {}
        self.registers: Dict[Tuple[int, int], int] = {}
        self._filled: Set[int] = set()
        self._made: Dict[int, Optional[Layout]] = {}  # of each new storage, how a kernel's result lay in it when it ran
        self._last: Dict[int, int] = {}
        self.grown = 0
        self.uploads: List[Upload] = []

    def instructions(self) -> Optional[List[Instruction]]:
        """All of them, or None."""
        for index, (_, references, _) in enumerate(self._segment.calls):
            self._last.update((canonical, index) for canonical in references)
        found: List[Instruction] = []
        there = {canonical for canonical, _, _ in self._node.live}
        following, number, host = self._segment.first_new, 0, 0
        final = len(self._segment.calls) - 1
        for index, (entry, references, least) in enumerate(self._segment.calls):
            ran = self._ran.calls[index][0]
            unknown = entry.overload is not None and ran.results is None
            if entry.refused is not None or unknown or entry.name == RESIZE or not there.issuperset(references):
                return None
            if not self._changes and not _settled(ran):
                return None
            following = max(following, least)
            parts = (number, number + entry.number_count, host, host + entry.host_count)
            number, host = parts[1], parts[3]
            kinds = _kinds(ran)
            count = 1 if entry.name == ALLOC else kinds.count(NEW)
            asked = index in self._node.wanted or (index == final and self._node.describe)
            makes = range(following, following + count)
            if not there.isdisjoint(makes):
                return None
            there.update(makes)
            places = _places(entry.key) if index in self._changes else {}
            if any(offset not in places for offset, _ in self._changes.get(index, ())):
                return None
            how = self._how(index, entry, ran, kinds, asked)
            new = tuple(New(-1, following + i, self.grown + i, following + i not in self._dead) for i in range(count))
            if how != WHOLE and entry.overload is not None:
                outputs = [output for output, kind in enumerate(kinds) if kind == NEW]
                new = tuple(item._replace(output=output) for item, output in zip(new, outputs))
            if how != ALLOCATION or makes[0] in self._last or new[0].kept:  # else nobody looks at it
                found.append(
                    self._instruction(index, how, ran, references, parts, new, asked, final, places, following)
                )
            following += count
            self.grown += count
        return found

    def _how(self, index: int, entry: Entry, ran: Entry, kinds: List[int], asked: bool) -> int:
        changes = self._changes.get(index, ())
        if entry.name == ALLOC:
            return ALLOCATION
        if entry.name == DOWNLOAD:
            return READ
        if entry.name == UPLOAD:
            return WRITE
        if entry.overload is None or not ran.fixed or any(kind != "t" for kind, _ in ran.results or ()):
            return WHOLE
        if (self._changes and not _promises(entry)) or ((self._changes or asked) and set(kinds) - {NEW, ARGUMENT}):
            return WHOLE
        places = _places(entry.key) if changes else {}
        checked = [position for position, _, _ in enumerated(entry.overload)]
        for field, which, _ in (places[offset] for offset, _ in changes):
            if field < 0 or (field in (PLAIN, ITEM) and (which >= entry.positional or which in checked)):
                return WHOLE
        return KERNEL if _plain(entry) else WHOLE

    def _instruction(
        self, index: int, how: int, ran: Entry, references: Tuple[int, ...], parts: Tuple[int, int, int, int],
        new: Tuple[New, ...], asked: bool, final: int, places: Dict[int, Place], following: int,
    ) -> Instruction:  # fmt: skip
        entry = self._segment.calls[index][0]
        changes = tuple(self._changes.get(index, ()))
        integers: List[Tuple[int, int, int]] = []
        holes_of: Dict[int, List[Tuple[int, int, int]]] = {}
        for offset, value in changes if how != WHOLE else ():
            field, which, where = places[offset]
            if field in (PLAIN, ITEM):
                integers.append((which, where if field == ITEM else -1, value))
            elif field != BYTES:
                holes_of.setdefault(which, []).append((field, where, value))
        arguments = list(entry.arguments) if entry.overload is not None else list(entry.parsed.arguments)
        fetched: List[Tuple[int, int, int, bool]] = []
        operands: List[int] = []
        if how in (KERNEL, READ, WRITE):
            for operand, (reference, layout) in enumerate(entry.operands):
                operands.append(self._operand(references[reference], layout, holes_of.get(operand, ()), fetched))
        holes: List[Tuple[int, int]] = [(0, operands[0])] if how in (READ, WRITE) else []
        upload = -1
        if how == WRITE:
            upload, spec = len(self.uploads), entry.parsed.hosts[0]
            self.uploads.append(Upload(parts[2], spec.dtype, spec.sizes))
        lists: List[Tuple[int, Tuple[int, ...]]] = []
        positional = entry.positional if entry.overload is not None else len(arguments)
        if how == KERNEL:
            for position, hole in entry.direct:
                assert isinstance(hole, Operand)
                if hole.kind == "W":
                    raw = self._node.numbers[16 * (parts[0] + hole.number) :]
                    kind = entry.parsed.numbers[hole.number]
                    plain = plain_number(raw, kind)
                    arguments[position] = plain if kind.wrapped else torch.tensor(plain, dtype=kind.dtype)
                else:
                    holes.append((position, operands[hole.number]))
            for position, items in entry.nested:
                lists.append((position, tuple([-1 if item is None else operands[item.number] for item in items])))
            for item, (_, known) in zip(new, [r for r in ran.results or () if r[1][0].kind == NEW]):
                self._made[item.canonical] = known[0].layout
        told: Optional[Tuple[Tuple[int, int, int], ...]] = None
        if asked and how in (KERNEL, WHOLE):
            told = () if how == WHOLE else self._told(ran, operands)
        over = [n for n in dict.fromkeys(references) if self._last[n] == index and n in self._dead]
        over += [item.canonical for item in new if item.canonical not in self._last and item.canonical in self._dead]
        done = tuple(register for (canonical, _), register in self.registers.items() if canonical in over)
        if how == WHOLE:  # it may have changed what it touches
            self._filled -= {register for (canonical, _), register in self.registers.items() if canonical in references}
        return Instruction(
            how, entry, entry.kernel, arguments[:positional],
            dict(zip(entry.keywords, arguments[positional:])) if how == KERNEL else {},
            tuple(fetched), tuple(holes), tuple(lists), tuple(integers), len(ran.results or ()) == 1, new, told,
            index == final, done, tuple(over), index, references, parts, following, changes, upload,
        )  # fmt: skip

    def _told(self, ran: Entry, operands: List[int]) -> Tuple[Tuple[int, int, int], ...]:
        results = [known[0] for _, known in ran.results or ()]
        return tuple((r.kind, r.ref, operands[r.ref] if r.kind == ARGUMENT else -1) for r in results)

    def _operand(
        self, canonical: int, layout: Layout, holes: Sequence[Tuple[int, int, int]],
        fetched: List[Tuple[int, int, int, bool]],
    ) -> int:  # fmt: skip
        """The register of a storage in a layout, which is fetched when it is wanted for the first time."""
        bare = layout
        for field, dimension, _ in holes:  # what a hole holds in the definition tells nothing apart
            if field == SIZE:
                bare = bare._replace(sizes=(*bare.sizes[:dimension], 0, *bare.sizes[dimension + 1 :]))
            elif field == STRIDE:
                bare = bare._replace(strides=(*bare.strides[:dimension], 0, *bare.strides[dimension + 1 :]))
            else:
                bare = bare._replace(offset=0)
        named = (bare, tuple(sorted(holes)))
        number = self._layout_numbers.setdefault(named, len(self.layouts))
        if number == len(self.layouts):
            self.layouts.append(named)
        register = self.registers.setdefault((canonical, number), len(self.registers))
        if register not in self._filled:
            self._filled.add(register)
            made = self._made.get(canonical)
            own = made is not None and made.dtype == layout.dtype and not (made.flags or layout.flags)
            fetched.append((register, canonical, number, own))
        return register


def _settled(entry: Entry) -> bool:
    """Whether a call makes as many storages every time; one that makes none may resize what it gets."""
    return entry.overload is None or entry.fixed or NEW not in _kinds(entry)


def _kinds(ran: Entry) -> List[int]:
    """What each result was; a value is none."""
    return [result.kind for _, known in ran.results or () for result in known]


def _promises(entry: Entry) -> bool:
    """Whether the schema tells what the results are: new storages, or operands that are written and keep their size."""
    schema = entry.overload._schema  # type: ignore[union-attr]
    if torch._C._dispatch_has_kernel_for_dispatch_key(entry.name, "CompositeImplicitAutograd"):
        return False
    if any(argument.kwarg_only and argument.alias_info is not None for argument in schema.arguments):
        return False  # out=
    if any(str(result.type) != "Tensor" for result in schema.returns):
        return False
    return all(result.alias_info is None or result.alias_info.is_write for result in schema.returns)


def _plain(entry: Entry) -> bool:
    """Whether its operands are tensors and Python numbers."""
    for position, hole in entry.direct:
        if not isinstance(hole, Operand) or hole.kind not in "TW" or position >= entry.positional:
            return False
    for argument, value in zip(entry.overload._schema.arguments, entry.arguments):  # type: ignore[union-attr]
        if isinstance(value, Operand) and value.kind == "W" and argument.alias_info is not None:
            return False  # a number of the host that is written to
    items = [item for _, values in entry.nested for item in values]
    return all(item is None or (isinstance(item, Operand) and item.kind == "T") for item in items)


def _places(key: bytes) -> Dict[int, Place]:
    """Where each integer of a key belongs, by its offset. One whose field is -1 is for the session to deal with."""
    places: Dict[int, Place] = {}
    position = argument = operand = 0
    inside: List[int] = []  # what is left of the lists that one is in
    while position < len(key):
        tag = key[position : position + 1]
        position += 1
        if tag == b"T":
            dims = key[position + 2]
            position += 3
            for field in (SIZE, STRIDE):
                for dimension in range(dims):
                    places[position] = (field, operand, dimension)
                    position += 8
            places[position], places[position + 8] = (OFFSET, operand, 0), (BYTES, operand, 0)
            position += 17
            operand += 1
        elif tag == b"P":
            count = key[position + 1]
            places.update((position + 2 + 8 * i, (-1, 0, 0)) for i in range(count))
            position += 2 + 8 * count
        elif tag == b"I":
            places[position] = (PLAIN, argument, 0) if not inside else (-1, 0, 0)
            position += 8
        elif tag == b"V":
            (count,) = struct.unpack_from("<I", key, position)
            for i in range(count):
                places[position + 4 + 8 * i] = (ITEM, argument, i) if not inside else (-1, 0, 0)
            position += 4 + 8 * count
        elif tag == b"X":
            position += 4 + struct.unpack_from("<I", key, position)[0]
        elif tag == b"L":
            (count,) = struct.unpack_from("<I", key, position)
            position += 4
            if count:
                inside.append(count)
                continue
        else:
            position += _FIXED_SIZE.get(tag, 0)
        while inside:
            inside[-1] -= 1
            if inside[-1]:
                break
            inside.pop()
        if not inside:
            argument += 1
    return places
