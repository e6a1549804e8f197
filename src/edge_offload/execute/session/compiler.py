"""Making a :class:`~edge_offload.execute.session.program.Program` of a step whose calls have all run before."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.errors import ProtocolError
from edge_offload.execute.session.instructions import (
    ALLOCATION,
    BY_STORAGES,
    KERNEL,
    READ,
    WRITE,
    Holes,
    Instruction,
    New,
    StepCode,
    Upload,
)
from edge_offload.execute.session.program import Program
from edge_offload.ir.operators import HostNumber, HostTensor, Layout, Operator, Varying, View
from edge_offload.ir.schemas import enumerated_arguments
from edge_offload.ir.trace.calls import ALLOC, ARGUMENT, DOWNLOAD, NEW, RESIZE, UPLOAD, BoundOperator, host_number
from edge_offload.ir.trace.keys import decode_key
from edge_offload.ir.trace.segments import Segment, SegmentStep
from edge_offload.ir.trace.symbols import Formula
from edge_offload.ir.trace.trace_graph import SAME, TraceStep

#: A call with other integers, (offset, integer).
Changed = Callable[[BoundOperator, Sequence[Tuple[int, int]]], BoundOperator]


def compile_segment(segment: Segment, step: SegmentStep) -> Optional[Program]:
    """Compiles ``segment`` for steps that differ from ``step`` only in the storages that existed before."""
    live = tuple((canonical, SAME, number) for canonical, number in step.live)
    described = tuple(sorted(step.described_calls))
    node = TraceStep(step.segment, (), (), live, tuple(step.dead), step.numbers, (), step.describe, described)
    return compile_step(node, segment, segment, refuse_changes)


def refuse_changes(operator: BoundOperator, changes: Sequence[Tuple[int, int]]) -> BoundOperator:
    """Refuses changes, for steps in whose calls no integer varies."""
    raise ProtocolError("a segment's calls do not change")


def compile_step(node: TraceStep, segment: Segment, ran: Segment, changed: Changed) -> Optional[Program]:
    """Compiles a trace step; None if a call of it must run as a new one every time.

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
    instructions = compiler.compile_calls()
    if instructions is None:
        return None
    written = [canonical for canonical, _, _ in node.live if canonical in segment.written]
    tail = _tail_integers(segment.calls[-1].operator, changes.get(len(segment.calls) - 1, ()))
    code = StepCode(
        list(node.live), compiler.layouts, len(compiler.registers), instructions, compiler.uploads, written,
        segment.random, compiler.grown, frozenset(node.dead), node.numbers, changed,
    )  # fmt: skip
    return Program(code, node.payloads, list(formulas), tail)


def _tail_integers(
    operator: BoundOperator, changes: Sequence[Tuple[int, int]]
) -> Tuple[Tuple[int, ...], List[Tuple[int, int]]]:
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

    def compile_calls(self) -> Optional[List[Instruction]]:
        """Compiles all calls; None if one must run as a new one."""
        for index, call in enumerate(self._segment.calls):
            self._last.update((canonical, index) for canonical in call.references)
        instructions: List[Instruction] = []
        existing = {canonical for canonical, _, _ in self._node.live}
        following, number, host = self._segment.first_new, 0, 0
        final = len(self._segment.calls) - 1
        for index, (entry, references, least) in enumerate(self._segment.calls):
            ran = self._ran.calls[index].operator
            unknown = entry.overload is not None and ran.results is None
            if entry.refused is not None or unknown or entry.name == RESIZE or not existing.issuperset(references):
                return None
            if not self._changes and not _makes_fixed_count(ran):
                return None
            following = max(following, least)
            parts = (number, number + entry.number_count, host, host + len(entry.hosts))
            number, host = parts[1], parts[3]
            kinds = _result_kinds(ran)
            count = 1 if entry.name == ALLOC else kinds.count(NEW)
            described = index in self._node.described_calls or (index == final and self._node.describe)
            makes = range(following, following + count)
            if not existing.isdisjoint(makes):
                return None
            existing.update(makes)
            changes = dict(self._changes.get(index, ()))
            if not changes.keys() <= set(entry.offsets):
                return None
            operator = decode_key(entry.name, entry.key, changes).operator if changes else entry.operator
            how = self._choose_executor(operator, entry, ran, kinds, described)
            new = tuple(New(-1, following + i, self.grown + i, following + i not in self._dead) for i in range(count))
            if how != BY_STORAGES and entry.overload is not None:
                outputs = [output for output, kind in enumerate(kinds) if kind == NEW]
                new = tuple(item._replace(output=output) for item, output in zip(new, outputs))
            if how != ALLOCATION or makes[0] in self._last or new[0].outlives:  # else nobody uses it
                instructions.append(
                    self._make_instruction(index, how, operator, ran, parts, new, described, final, following)
                )
            following += count
            self.grown += count
        return instructions

    def _choose_executor(
        self, operator: Operator, entry: BoundOperator, ran: BoundOperator, kinds: List[int], described: bool
    ) -> int:
        """Chooses who runs the call ``entry``, whose integers that vary are leaves of ``operator``."""
        if any(isinstance(leaf, HostTensor) and leaf.varying for leaf in operator.leaves()):
            return BY_STORAGES
        if entry.name == ALLOC:
            return ALLOCATION
        if entry.name == DOWNLOAD:
            return READ
        if entry.name == UPLOAD:
            return WRITE
        if entry.overload is None or not ran.fixed or any(kind != "t" for kind, _ in ran.results or ()):
            return BY_STORAGES
        if (self._changes and not _schema_fixes_results(entry)) or (
            (self._changes or described) and set(kinds) - {NEW, ARGUMENT}
        ):
            return BY_STORAGES
        checked = [position for position, _, _ in enumerated_arguments(entry.overload)]
        if any(position >= entry.positional or position in checked for position, _, _ in _varying_integers(operator)):
            return BY_STORAGES
        return KERNEL if _has_plain_operands(entry) else BY_STORAGES

    def _make_instruction(
        self, index: int, how: int, operator: Operator, ran: BoundOperator, parts: Tuple[int, int, int, int],
        new: Tuple[New, ...], described: bool, final: int, following: int,
    ) -> Instruction:  # fmt: skip
        entry, references, _ = self._segment.calls[index]
        arguments = list(entry.arguments if entry.overload is not None else entry.operator.args)
        fetched: List[Tuple[int, int, int, bool]] = []
        operands: List[int] = []
        if how in (KERNEL, READ, WRITE):
            for leaf in operator.leaves():
                if isinstance(leaf, View):
                    operands.append(self._operand_register(references[leaf.reference], leaf, fetched))
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
            for item, (_, results) in zip(new, [r for r in ran.results or () if r[1][0].kind == NEW]):
                self._made[item.canonical] = results[0].layout
        reported: Optional[Tuple[Tuple[int, int, int], ...]] = None
        if described and how in (KERNEL, BY_STORAGES):
            reported = () if how == BY_STORAGES else self._described_results(ran, operands)
        over = [n for n in dict.fromkeys(references) if self._last[n] == index and n in self._dead]
        over += [item.canonical for item in new if item.canonical not in self._last and item.canonical in self._dead]
        done = tuple(register for (canonical, _), register in self.registers.items() if canonical in over)
        if how == BY_STORAGES:  # it may have changed what it touches
            self._filled -= {register for (canonical, _), register in self.registers.items() if canonical in references}
        return Instruction(
            how, entry, entry.kernel, arguments[:positional],
            dict(zip(entry.keywords, arguments[positional:])) if how == KERNEL else {},
            tuple(fetched), tuple(holes), tuple(lists), _varying_integers(operator) if how != BY_STORAGES else (),
            len(ran.results or ()) == 1, new, reported, index == final, done, tuple(over), index, references, parts,
            following, tuple(self._changes.get(index, ())), upload,
        )  # fmt: skip

    def _described_results(self, ran: BoundOperator, operands: List[int]) -> Tuple[Tuple[int, int, int], ...]:
        layouts = [results[0] for _, results in ran.results or ()]
        return tuple((r.kind, r.ref, operands[r.ref] if r.kind == ARGUMENT else -1) for r in layouts)

    def _operand_register(
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
            may_reuse = made is not None and made.dtype == layout.dtype and not (made.flags or layout.flags)
            fetched.append((register, canonical, number, may_reuse))
        return register


def _makes_fixed_count(entry: BoundOperator) -> bool:
    """True if a call makes as many storages every time; one that makes none may resize its operands."""
    return entry.overload is None or entry.fixed or NEW not in _result_kinds(entry)


def _result_kinds(ran: BoundOperator) -> List[int]:
    """Kind of each result that is a tensor."""
    return [result.kind for _, results in ran.results or () for result in results]


def _schema_fixes_results(entry: BoundOperator) -> bool:
    """True if the schema fixes the results: new storages, or operands that are written and retain their size."""
    schema = entry.overload._schema  # type: ignore[union-attr]
    if torch._C._dispatch_has_kernel_for_dispatch_key(entry.name, "CompositeImplicitAutograd"):
        return False
    if any(argument.kwarg_only and argument.alias_info is not None for argument in schema.arguments):
        return False  # out=
    if any(str(result.type) != "Tensor" for result in schema.returns):
        return False
    return all(result.alias_info is None or result.alias_info.is_write for result in schema.returns)


def _has_plain_operands(entry: BoundOperator) -> bool:
    """True if the operands are tensors and Python numbers."""
    for position, hole in entry.direct:
        if not isinstance(hole, (View, HostNumber)) or position >= entry.positional:
            return False
    for argument, value in zip(entry.overload._schema.arguments, entry.arguments):  # type: ignore[union-attr]
        if isinstance(value, HostNumber) and argument.alias_info is not None:
            return False  # a number of the host that is written to
    items = [item for _, values in entry.nested for item in values]
    return all(item is None or isinstance(item, View) for item in items)


def _varying_integers(operator: Operator) -> Tuple[Tuple[int, int, int], ...]:
    """Integer arguments that vary: position, index in a list or -1, value."""
    integers: List[Tuple[int, int, int]] = []
    for position, argument in enumerate(operator.args):
        listed = isinstance(argument, tuple)
        for index, leaf in enumerate(argument if isinstance(argument, tuple) else (argument,)):
            if isinstance(leaf, Varying):
                integers.append((position, index if listed else -1, leaf.value))
    return tuple(integers)
