"""Making a :class:`~edge_offload.execute.session.program.Program` of a step whose calls have all run before."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.errors import ProtocolError
from edge_offload.execute.session.instructions import (
    ALLOCATION,
    KERNEL,
    READ,
    WHOLE,
    WRITE,
    Holes,
    Instruction,
    New,
    StepCode,
    Upload,
)
from edge_offload.execute.session.program import Program
from edge_offload.ir.operators import HostNumber, HostTensor, Layout, Operator, Varying, View
from edge_offload.ir.schemas import enumerated
from edge_offload.ir.trace.calls import ALLOC, ARGUMENT, DOWNLOAD, NEW, RESIZE, UPLOAD, BoundOperator, host_number
from edge_offload.ir.trace.keys import decode
from edge_offload.ir.trace.segments import Segment, Step
from edge_offload.ir.trace.symbols import Formula
from edge_offload.ir.trace.trace_graph import SAME, TraceStep

#: A call with other integers, (offset, integer).
Changed = Callable[[BoundOperator, Sequence[Tuple[int, int]]], BoundOperator]


def compile_segment(segment: Segment, step: Step) -> Optional[Program]:
    """The program for ``segment`` and steps that are like ``step`` but for the storages that existed before."""
    live = tuple((canonical, SAME, number) for canonical, number in step.live)
    node = TraceStep(
        step.segment, (), (), live, tuple(step.dead), step.numbers, (), step.describe, tuple(sorted(step.wanted))
    )
    return compile_step(node, segment, segment, unchanged)


def unchanged(operator: BoundOperator, changes: Sequence[Tuple[int, int]]) -> BoundOperator:
    """For steps in whose calls no integer varies."""
    raise ProtocolError("a segment's calls do not change")


def compile_step(node: TraceStep, segment: Segment, ran: Segment, changed: Changed) -> Optional[Program]:
    """The program of a trace step; None if a call of it must run as a new one every time.

    Args:
        node: the trace step.
        segment: its calls with the integers of their definitions.
        ran: the same with those of a time when it ran.
        changed: makes a call with other integers.
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
    tail = _tail(segment.calls[-1].operator, changes.get(len(segment.calls) - 1, ()))
    code = StepCode(
        list(node.live), compiler.layouts, len(compiler.registers), instructions, compiler.uploads, written,
        segment.random, compiler.grown, frozenset(node.dead), node.numbers, changed,
    )  # fmt: skip
    return Program(code, node.payloads, list(formulas), tail)


def _tail(operator: BoundOperator, changes: Sequence[Tuple[int, int]]) -> Tuple[Tuple[int, ...], List[Tuple[int, int]]]:
    """The integers of a call, and which of them are values: (position, value)."""
    place = {offset: position for position, offset in enumerate(operator.offsets)}
    return operator.integers, [(place[offset], value) for offset, value in changes if offset in place]


class _Compiler:
    """Gives out registers and layouts, and writes the instructions of one trace step."""

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
        for index, call in enumerate(self._segment.calls):
            self._last.update((canonical, index) for canonical in call.references)
        found: List[Instruction] = []
        there = {canonical for canonical, _, _ in self._node.live}
        following, number, host = self._segment.first_new, 0, 0
        final = len(self._segment.calls) - 1
        for index, (entry, references, least) in enumerate(self._segment.calls):
            ran = self._ran.calls[index].operator
            unknown = entry.overload is not None and ran.results is None
            if entry.refused is not None or unknown or entry.name == RESIZE or not there.issuperset(references):
                return None
            if not self._changes and not _settled(ran):
                return None
            following = max(following, least)
            parts = (number, number + entry.number_count, host, host + len(entry.hosts))
            number, host = parts[1], parts[3]
            kinds = _kinds(ran)
            count = 1 if entry.name == ALLOC else kinds.count(NEW)
            asked = index in self._node.wanted or (index == final and self._node.describe)
            makes = range(following, following + count)
            if not there.isdisjoint(makes):
                return None
            there.update(makes)
            changes = dict(self._changes.get(index, ()))
            if not changes.keys() <= set(entry.offsets):
                return None
            operator = decode(entry.name, entry.key, changes).operator if changes else entry.operator
            how = self._how(operator, entry, ran, kinds, asked)
            new = tuple(New(-1, following + i, self.grown + i, following + i not in self._dead) for i in range(count))
            if how != WHOLE and entry.overload is not None:
                outputs = [output for output, kind in enumerate(kinds) if kind == NEW]
                new = tuple(item._replace(output=output) for item, output in zip(new, outputs))
            if how != ALLOCATION or makes[0] in self._last or new[0].kept:  # else nobody uses it
                found.append(self._instruction(index, how, operator, ran, parts, new, asked, final, following))
            following += count
            self.grown += count
        return found

    def _how(self, operator: Operator, entry: BoundOperator, ran: BoundOperator, kinds: List[int], asked: bool) -> int:
        """Who runs the call ``entry``, whose integers that vary are leaves of ``operator``."""
        if any(isinstance(leaf, HostTensor) and leaf.varying for leaf in operator.leaves()):
            return WHOLE
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
        checked = [position for position, _, _ in enumerated(entry.overload)]
        if any(position >= entry.positional or position in checked for position, _, _ in _varying(operator)):
            return WHOLE
        return KERNEL if _plain(entry) else WHOLE

    def _instruction(
        self, index: int, how: int, operator: Operator, ran: BoundOperator, parts: Tuple[int, int, int, int],
        new: Tuple[New, ...], asked: bool, final: int, following: int,
    ) -> Instruction:  # fmt: skip
        entry, references, _ = self._segment.calls[index]
        arguments = list(entry.arguments if entry.overload is not None else entry.operator.args)
        fetched: List[Tuple[int, int, int, bool]] = []
        operands: List[int] = []
        if how in (KERNEL, READ, WRITE):
            for leaf in operator.leaves():
                if isinstance(leaf, View):
                    operands.append(self._operand(references[leaf.reference], leaf, fetched))
        holes: List[Tuple[int, int]] = [(0, operands[0])] if how in (READ, WRITE) else []
        upload = -1
        if how == WRITE:
            upload = len(self.uploads)
            self.uploads.append(Upload(parts[2], entry.hosts[0]))
        lists: List[Tuple[int, Tuple[int, ...]]] = []
        positional = entry.positional if entry.overload is not None else len(arguments)
        if how == KERNEL:
            for position, hole in entry.direct:
                if isinstance(hole, HostNumber):
                    arguments[position] = host_number(self._node.numbers[16 * (parts[0] + hole.number) :], hole)
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
            tuple(fetched), tuple(holes), tuple(lists), _varying(operator) if how != WHOLE else (),
            len(ran.results or ()) == 1, new, told, index == final, done, tuple(over), index, references, parts,
            following, tuple(self._changes.get(index, ())), upload,
        )  # fmt: skip

    def _told(self, ran: BoundOperator, operands: List[int]) -> Tuple[Tuple[int, int, int], ...]:
        results = [known[0] for _, known in ran.results or ()]
        return tuple((r.kind, r.ref, operands[r.ref] if r.kind == ARGUMENT else -1) for r in results)

    def _operand(
        self, canonical: int, view: View, fetched: List[Tuple[int, int, int, bool]],
    ) -> int:  # fmt: skip
        """The register of a storage in a layout, which is fetched when it is wanted for the first time."""
        layout, named = view.layout, (view.layout, view.varying)
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


def _settled(entry: BoundOperator) -> bool:
    """Whether a call makes as many storages every time; one that makes none may resize what it gets."""
    return entry.overload is None or entry.fixed or NEW not in _kinds(entry)


def _kinds(ran: BoundOperator) -> List[int]:
    """What each result was; a value is none."""
    return [result.kind for _, known in ran.results or () for result in known]


def _promises(entry: BoundOperator) -> bool:
    """Whether the schema tells what the results are: new storages, or operands that are written and keep their size."""
    schema = entry.overload._schema  # type: ignore[union-attr]
    if torch._C._dispatch_has_kernel_for_dispatch_key(entry.name, "CompositeImplicitAutograd"):
        return False
    if any(argument.kwarg_only and argument.alias_info is not None for argument in schema.arguments):
        return False  # out=
    if any(str(result.type) != "Tensor" for result in schema.returns):
        return False
    return all(result.alias_info is None or result.alias_info.is_write for result in schema.returns)


def _plain(entry: BoundOperator) -> bool:
    """Whether its operands are tensors and Python numbers."""
    for position, hole in entry.direct:
        if not isinstance(hole, (View, HostNumber)) or position >= entry.positional:
            return False
    for argument, value in zip(entry.overload._schema.arguments, entry.arguments):  # type: ignore[union-attr]
        if isinstance(value, HostNumber) and argument.alias_info is not None:
            return False  # a number of the host that is written to
    items = [item for _, values in entry.nested for item in values]
    return all(item is None or isinstance(item, View) for item in items)


def _varying(operator: Operator) -> Tuple[Tuple[int, int, int], ...]:
    """Integer arguments that vary: position, index in a list or -1, value."""
    found: List[Tuple[int, int, int]] = []
    for position, argument in enumerate(operator.args):
        listed = isinstance(argument, tuple)
        for index, leaf in enumerate(argument if isinstance(argument, tuple) else (argument,)):
            if isinstance(leaf, Varying):
                found.append((position, index if listed else -1, leaf.value))
    return tuple(found)
