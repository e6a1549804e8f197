"""A step that runs again and again: what to call with which tensors, worked out once but for the integers that vary.

:meth:`DeviceSession._run` finds storages by number, tensors by layout and results by description, for every call. When
a step has run, all of that is known, and a :class:`Program` holds it: registers for tensors, and per call the registers
that it reads and the storages that it makes. Where calls differ from one inference to the next it is in integers alone:
sizes and strides of operands, whole numbers among the arguments; a program knows where each of them goes. A result is a
new storage where it was one before and the schema promises it; a call of which that is not known beforehand is run by
the storages, as one that is new.

:meth:`Program.run` is the reference in Python. Where the C++ runner (:mod:`~.native_runner`) is there and takes the
step, that does the same without an interpreter between the calls.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput, ProtocolError
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.results import failed_call
from edge_offload.execute.session.storages import Storages
from edge_offload.execute.session.undo import Undo
from edge_offload.ir.operators import SIZE, STRIDE, Hole, HostTensor, Layout
from edge_offload.ir.trace.calls import BoundOperator, Buffer, Result, StorageBuffer, host_tensor, layout_of
from edge_offload.ir.trace.segments import Outcome
from edge_offload.ir.trace.symbols import Formula, OutcomeHistory, evaluate
from edge_offload.ir.trace.trace_graph import TraceStep

#: Who runs a call: its kernel, this module, or the storages.
KERNEL, ALLOCATION, READ, WRITE, WHOLE = range(5)
#: Why the C++ runner says that a step does not fit, in place of the position of a call: what it asks for does not
#: exist, or is against the protocol, or more than a session may hold, or bring back.
UNFIT, MALFORMED, NO_ROOM, TOO_LONG = -1, -2, -3, -4
Holes = Tuple[Hole, ...]


class New(NamedTuple):
    """A result: number of the output, its storage, what that adds to the step's base, whether it outlives the step."""

    output: int
    canonical: int
    ordinal: int
    kept: bool


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
        told: what is said of its results: (kind, reference, register of the operand or -1); None: nothing.
        final: whether that is the step's outcome.
        done: registers, and ``dropped`` storages, that nothing uses any more.
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
    told: Optional[Tuple[Tuple[int, int, int], ...]]
    final: bool
    done: Tuple[int, ...]
    dropped: Tuple[int, ...]
    call: int
    references: Tuple[int, ...]
    parts: Tuple[int, int, int, int]
    first: int
    changes: Tuple[Tuple[int, int], ...]
    upload: int = -1

    def size(self, values: Sequence[int]) -> int:
        """Of an allocation: how many bytes it is."""
        found: int = values[self.integers[0][2]] if self.integers else self.arguments[0]
        return found


class Upload(NamedTuple):
    """A host tensor that comes with the step: which of its payloads, and what it is."""

    payload: int
    spec: HostTensor


class Program:
    """Runs a step whose integers are values of ``formulas`` (:mod:`~edge_offload.execute.session.compiler` makes it).

    Args:
        written: storages, of those that existed before, to which it writes; ``random``: whether it draws numbers.
        tail: integers of the last call, with holes: (position, value).
        changed: makes a call with other integers.
        uploads: what is copied to the device.
    """

    def __init__(
        self, node: TraceStep, formulas: Sequence[Formula], layouts: Sequence[Tuple[Layout, Holes]], registers: int,
        instructions: Sequence[Instruction], written: Sequence[int], random: bool, grown: int,
        tail: Tuple[Sequence[int], Sequence[Tuple[int, int]]],
        changed: Callable[[BoundOperator, Sequence[Tuple[int, int]]], BoundOperator], uploads: Sequence[Upload],
    ) -> None:  # fmt: skip
        self._live = list(node.live)
        self._numbers = node.numbers
        self._payloads = node.payloads
        self._dead = frozenset(node.dead)
        self._formulas = formulas
        self._layouts = list(layouts)
        self._plain = [layout if not holes else None for layout, holes in layouts]
        self._registers: List[Optional[torch.Tensor]] = [None] * registers
        self._instructions = list(instructions)
        self._allocations = [op for op in instructions if op.how == ALLOCATION]
        self._names = {op.call: op.entry.name for op in instructions}
        self._written = list(written)
        self._random = random
        self._grown = grown
        self._tail = tail
        self._changed = changed
        self._uploads = list(uploads)
        self._native: Optional[Any] = None
        self._native_tried = False  # whether there can be one is known

    def run(
        self, storages: Storages, base: int, start: int, since: OutcomeHistory,
        payloads: Optional[Sequence[Buffer]] = None, live: Optional[Sequence[int]] = None, speculative: bool = True,
    ) -> Tuple[Outcome, Tuple[int, ...]]:  # fmt: skip
        """The outcome of the step, and the integers of its last call.

        Args:
            storages: of the session.
            base: number of the step's first new storage.
            start: number of the inference's first new storage.
            since: integers of the inference's outcomes so far.
            payloads: in place of the step's own.
            live: numbers of the storages that existed before, in place of those that the step works out.
            speculative: whether to keep what it takes to roll it back.

        Raises:
            CallFailed, DeviceLost, ProtocolError, BadInput: as
                :meth:`~edge_offload.execute.session.session.DeviceSession.run`.
        """
        values = [evaluate(formula, since) for formula in self._formulas]
        given = self._payloads if payloads is None else payloads
        uploads = [host_tensor(given[item.payload :], item.spec) for item in self._uploads]
        if live is None:
            origin = (0, base, start)
            live = [origin[how] + number for _, how, number in self._live]
        storages.check_room(0)
        if not speculative:  # what runs ahead of the program frees nothing that this may still use
            storages.make_room(sum(op.size(values) for op in self._allocations))
        if not self._native_tried and library.module is not None:
            self._try_native(library.module, storages)
        undo = storages.journal((), self._random) if speculative else None
        if self._native is not None:
            outcome = self._run_native(storages, base, live, values, uploads, undo)
        else:
            with torch.inference_mode():
                outcome = self._run_here(storages, base, live, values, uploads, undo, given)
        outcome.grown = max(outcome.grown, self._grown)
        plain, holes_of = self._tail
        if not holes_of:
            return outcome, plain  # type: ignore[return-value]
        tail = list(plain)
        for position, value in holes_of:
            tail[position] = values[value]
        return outcome, tuple(tail)

    def _try_native(self, native: Any, storages: Storages) -> None:
        """Whether the C++ runner takes this step."""
        self._native_tried = True
        with contextlib.suppress(native.NotHere):
            self._native = native.Node(
                self._layouts, len(self._registers), self._instructions, [canonical for canonical, _, _ in self._live],
                self._written, StorageBuffer, storages.device,
            )  # fmt: skip

    def _run_native(
        self, storages: Storages, base: int, live: Sequence[int], values: List[int], uploads: List[torch.Tensor],
        undo: Optional[Undo],
    ) -> Outcome:  # fmt: skip
        limits, slots = storages.limits, storages.slots
        created, grown, overwritten, told, results, tensor, failed = self._native.run(  # type: ignore[union-attr]
            slots, base, live, values, uploads, undo is not None, limits.storage_bytes - storages.allocated,
            limits.storages - len(slots), limits.storage_bytes - storages.returned, storages.running,
        )  # fmt: skip
        if undo is not None:
            undo.created, undo.overwritten = created, overwritten
        storages.allocated += grown
        storages.returned += tensor.nbytes if tensor is not None else 0
        if failed is not None:
            call, error = failed
            if call >= 0:
                raise failed_call(self._names[call], error)
            if call == NO_ROOM:
                limits.check_held(storages.allocated, int(error))
            limits.check_answer(limits.storage_bytes + int(call == TOO_LONG))
            raise ProtocolError(error) if call == MALFORMED else BadInput(error)
        return Outcome(tensor, results, told)

    def _run_here(
        self, storages: Storages, base: int, live: Sequence[int], values: List[int], uploads: List[torch.Tensor],
        undo: Optional[Undo], payloads: Sequence[Buffer],
    ) -> Outcome:  # fmt: skip
        run = _Run(self, storages, base, payloads, values, undo)
        slots, held = run.slots, storages.slots
        for (canonical, _, _), number in zip(self._live, live):
            slots[canonical] = held.get(number) or storages.slot(number)
        if undo is not None:
            for canonical in self._written:
                undo.save(slots[canonical])
        registers, made = run.registers, run.made
        note, keep, outcome = storages.note, storages.keep, run.outcome
        for op in self._instructions:
            note(op.entry)
            for register, canonical, layout, own in op.fetched:
                registers[register] = run.view(canonical, layout, own)
            if op.how == KERNEL:
                arguments: List[Any] = op.arguments.copy()
                for position, register in op.holes:
                    arguments[position] = registers[register]
                for position, several in op.lists:
                    arguments[position] = [registers[register] if register >= 0 else None for register in several]
                for position, item, value in op.integers:
                    if item < 0:
                        arguments[position] = values[value]
                    else:
                        items = arguments[position] = arguments[position].copy()
                        items[item] = values[value]
                try:
                    returned = op.kernel(*arguments, **op.named)
                except Exception as error:
                    raise failed_call(op.entry.name, error) from None
                outputs = (returned,) if op.single else returned
                for output, canonical, ordinal, kept in op.new:
                    tensor = made[canonical] = outputs[output]
                    if kept:
                        slot = slots[canonical] = StorageBuffer(tensor=tensor)
                        keep(base + ordinal, slot, undo)
                if op.told is not None:
                    run.tell(op, outputs)
                arguments = returned = outputs = tensor = None  # type: ignore[assignment]
            elif op.how == READ:
                outcome.tensor = storages.read(registers[op.holes[0][1]])  # type: ignore[arg-type]
            elif op.how == WRITE:
                try:
                    registers[op.holes[0][1]].copy_(uploads[op.upload])  # type: ignore[union-attr]
                except RuntimeError as error:
                    raise failed_call(op.entry.name, error) from None
            elif op.how == ALLOCATION:
                run.allocate(op)
            else:
                run.whole(op)
            for register in op.done:
                registers[register] = None
            for canonical in op.dropped:
                made.pop(canonical, None)
                slots.pop(canonical, None)
        return outcome


class _Run:
    """One run of a program: what there is so far."""

    __slots__ = (
        "base", "layouts", "made", "outcome", "payloads", "program", "registers", "slots", "storages", "undo", "values"
    )  # fmt: skip

    def __init__(
        self, program: Program, storages: Storages, base: int, payloads: Sequence[Buffer], values: List[int],
        undo: Optional[Undo],
    ) -> None:  # fmt: skip
        self.program = program
        self.storages = storages
        self.base = base
        self.payloads = payloads
        self.values = values
        self.undo = undo
        self.outcome = Outcome()
        self.layouts: List[Optional[Layout]] = program._plain.copy()
        self.registers: List[Optional[torch.Tensor]] = program._registers.copy()
        self.made: Dict[int, torch.Tensor] = {}
        self.slots: Dict[int, StorageBuffer] = {}

    def slot(self, canonical: int) -> StorageBuffer:
        """The storage; one that a kernel has made gets its place when it is asked for."""
        found = self.slots.get(canonical)
        if found is None:
            tensor = self.made.get(canonical)
            if tensor is None:
                raise ProtocolError(f"a node uses value {canonical} before it exists")
            found = self.slots[canonical] = StorageBuffer(tensor=tensor)
        return found

    def view(self, canonical: int, number: int, own: bool) -> torch.Tensor:
        """The storage in the layout ``number``: what a kernel returned, if it lies so."""
        layout = self.layouts[number]
        if layout is None:
            layout = self.layouts[number] = self._layout(number)
        if own:
            tensor = self.made.get(canonical)
            if (
                tensor is not None
                and tensor.shape == layout.sizes
                and tensor.stride() == layout.strides
                and tensor.storage_offset() == layout.offset
            ):
                return tensor
        return self.slot(canonical).view(layout)

    def _layout(self, number: int) -> Layout:
        known, holes = self.program._layouts[number]
        sizes, strides, offset = list(known.sizes), list(known.strides), known.offset
        for field, dimension, value in holes:
            if self.values[value] < 0:
                raise ProtocolError("a node asks for a negative size, stride or offset")
            if field == SIZE:
                sizes[dimension] = self.values[value]
            elif field == STRIDE:
                strides[dimension] = self.values[value]
            else:
                offset = self.values[value]
        return Layout(known.dtype, known.flags, tuple(sizes), tuple(strides), offset)

    def allocate(self, op: Instruction) -> None:
        """A storage of undefined contents."""
        size = op.size(self.values)
        self.storages.limits.check_held(self.storages.allocated, size)
        (new,) = op.new
        slot = self.slots[new.canonical] = StorageBuffer(torch.UntypedStorage(size, device=self.storages.device))
        if new.kept:
            self.storages.keep(self.base + new.ordinal, slot, self.undo)

    def tell(self, op: Instruction, outputs: Sequence[torch.Tensor]) -> None:
        """What the results look like."""
        found: List[Any] = []
        for output, (kind, reference, register) in enumerate(op.told or ()):
            tensor = outputs[output] if register < 0 else self.registers[register]
            assert tensor is not None
            result = Result(kind, reference, layout_of(tensor), tensor.untyped_storage().nbytes())
            found.append(["t", result.to_wire()])
        self._told(op, found)

    def _told(self, op: Instruction, found: Optional[List[Any]]) -> None:
        if op.final:
            self.outcome.results = found
        elif found is not None:
            self.outcome.described[op.call] = found

    def whole(self, op: Instruction) -> None:
        """Have the storages run a call as one that is new."""
        changes = [(offset, self.values[value]) for offset, value in op.changes]
        entry = self.program._changed(op.entry, changes) if changes else op.entry
        number, numbers, host, hosts = op.parts
        raw, payloads = self.program._numbers[16 * number : 16 * numbers], list(self.payloads[host:hosts])
        used = [self.slot(canonical) for canonical in op.references]
        kept = Outcome(self.outcome.tensor)
        new, outcome = self.storages.call(entry, used, raw, payloads, kept, op.told is not None)
        self.outcome.tensor = outcome.tensor
        if op.told is not None:
            self._told(op, outcome.results)
        elif len(new) != len(op.new):
            raise ProtocolError(f"{entry.name} makes another number of storages than the last time")
        ordinal = op.new[0].ordinal if op.new else self.program._grown
        for i, slot in enumerate(new):
            self.slots[op.first + i] = slot
            if op.first + i not in self.program._dead:
                self.storages.keep(self.base + ordinal + i, slot, self.undo)
        self.outcome.grown = ordinal + len(new)
        if entry.overload is not None and not entry.fixed:  # the layout of an operand has changed
            for canonical in op.references:
                self.made.pop(canonical, None)
