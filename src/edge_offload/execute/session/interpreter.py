"""One run of a compiled step, instruction by instruction: the reference in Python of ``native/cpp/nodes.cpp``."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch

from edge_offload.errors import ProtocolError
from edge_offload.execute.session.instructions import ALLOCATION, KERNEL, READ, WRITE, Instruction, StepCode
from edge_offload.execute.session.results import failed_call
from edge_offload.execute.session.storages import Storages
from edge_offload.execute.session.undo import Undo
from edge_offload.ir.operators import SIZE, STRIDE, Layout
from edge_offload.ir.trace.calls import Buffer, Result, host_copy
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.storage import StorageBuffer, layout_of


class StepInterpreter:
    """Runs the instructions of ``code`` on storages.

    Args:
        code: the step.
        storages: of the session.
        base: number of the step's first new storage.
        payloads: buffers of the host that come with the step.
        values: of the integers that vary.
        uploads: host tensors that are copied to the device.
        undo: where what is made is entered; None: nothing is rolled back.

    Attributes:
        outcome: what the step has returned so far.
        buffers: storages by canonical number.
        made: tensors that kernels returned, by the canonical number of their storage.
        registers: tensors as the calls read them.
    """

    def __init__(
        self, code: StepCode, storages: Storages, base: int, payloads: Sequence[Buffer], values: List[int],
        uploads: Sequence[torch.Tensor], undo: Optional[Undo],
    ) -> None:  # fmt: skip
        self.code = code
        self.storages = storages
        self.base = base
        self.payloads = payloads
        self.values = values
        self.uploads = uploads
        self.undo = undo
        self.outcome = StepOutcome()
        self.layouts: List[Optional[Layout]] = []
        self.registers: List[Optional[torch.Tensor]] = []
        self.made: Dict[int, torch.Tensor] = {}
        self.buffers: Dict[int, StorageBuffer] = {}

    def make_room(self) -> None:
        """Make room for what the calls use."""
        self.layouts = self.code.plain.copy()
        self.registers = [None] * self.code.registers

    def release_tensors(self) -> None:
        """Drop the tensors of the run."""
        self.registers, self.made, self.buffers, self.undo, self.payloads = [], {}, {}, None, ()
        self.outcome = StepOutcome()

    def bind_storages(self, live: Sequence[int]) -> None:
        """Look the storages up that existed before, by number.

        Raises:
            BadInput: one does not exist.
        """
        self.make_room()
        existing = self.storages.buffers
        for (canonical, _, _), number in zip(self.code.live, live):
            self.buffers[canonical] = existing.get(number) or self.storages.buffer_of(number)

    def save_written(self) -> None:
        """Keep the bytes of the storages that the step will write, if it may be rolled back."""
        if self.undo is not None:
            for canonical in self.code.written:
                self.undo.save_bytes(self.buffers[canonical])

    def execute_calls(self, instructions: Sequence[Instruction]) -> None:
        """Run calls in order.

        Raises:
            CallFailed, DeviceLost: an operator raised.
            ProtocolError, BadInput: the step does not fit what the session holds.
        """
        registers = self.registers
        for op in instructions:
            self.begin_call(op)
            for register, canonical, layout, may_reuse in op.fetched:
                registers[register] = self.view_of(canonical, layout, may_reuse)
            if op.how == KERNEL:
                self._launch_kernel(op)
            elif op.how == READ:
                self.read(registers[op.holes[0][1]])  # type: ignore[arg-type]
            elif op.how == WRITE:
                try:
                    self.upload(registers[op.holes[0][1]], op.upload)  # type: ignore[arg-type]
                except RuntimeError as error:
                    raise failed_call(op.entry.name, error) from None
            elif op.how == ALLOCATION:
                self.allocate_storage(op)
            else:
                self.run_by_storages(op)
            for register in op.done:
                registers[register] = None
            for canonical in op.dropped:
                self.made.pop(canonical, None)
                self.buffers.pop(canonical, None)

    def _launch_kernel(self, op: Instruction) -> None:
        arguments: List[Any] = op.arguments.copy()
        registers = self.registers
        for position, register in op.holes:
            arguments[position] = registers[register]
        for position, several in op.lists:
            arguments[position] = [registers[register] if register >= 0 else None for register in several]
        for position, item, value in op.integers:
            if item < 0:
                arguments[position] = self.values[value]
            else:
                items = arguments[position] = arguments[position].copy()
                items[item] = self.values[value]
        try:
            returned = op.kernel(*arguments, **op.named)
        except Exception as error:
            raise failed_call(op.entry.name, error) from None
        outputs = (returned,) if op.single else returned
        for output, canonical, ordinal, stored in op.new:
            tensor = self.made[canonical] = outputs[output]
            if stored:
                buffer = self.buffers[canonical] = StorageBuffer(tensor=tensor)
                self.store(ordinal, canonical, buffer)
        if op.descriptions is not None:
            self.describe_results(op, outputs)

    # -- what a capture or a trial does otherwise (:mod:`~edge_offload.execute.session.graphs`)

    def begin_call(self, op: Instruction) -> None:
        """Note that ``op`` is about to run."""
        self.storages.note_call(op.entry)

    def store(self, ordinal: int, canonical: int, buffer: StorageBuffer) -> None:
        """Give a new storage its number in the session."""
        self.storages.store_buffer(self.base + ordinal, buffer, self.undo)

    def read(self, tensor: torch.Tensor) -> None:
        """Bring ``tensor`` to the host."""
        self.bring_back(tensor.numel() * tensor.element_size())
        self.outcome.tensor = host_copy(tensor)

    def bring_back(self, size: int) -> None:
        """Count ``size`` bytes more that the answer brings back.

        Raises:
            BadInput: they are too many.
        """
        self.storages.bring_back(size)

    def upload(self, tensor: torch.Tensor, number: int) -> None:
        """Copy the host tensor ``number`` of the step to ``tensor``."""
        tensor.copy_(self.uploads[number])

    # -- storages and views

    def buffer_of(self, canonical: int) -> StorageBuffer:
        """The storage; one that a kernel has made gets its place when it is asked for."""
        buffer = self.buffers.get(canonical)
        if buffer is None:
            tensor = self.made.get(canonical)
            if tensor is None:
                raise ProtocolError(f"a node uses value {canonical} before it exists")
            buffer = self.buffers[canonical] = StorageBuffer(tensor=tensor)
        return buffer

    def view_of(self, canonical: int, number: int, may_reuse: bool) -> torch.Tensor:
        """The storage in the layout ``number``: what a kernel returned, if it lies so."""
        layout = self.layouts[number]
        if layout is None:
            layout = self.layouts[number] = self._filled_layout(number)
        if may_reuse:
            tensor = self.made.get(canonical)
            if (
                tensor is not None
                and tensor.shape == layout.sizes
                and tensor.stride() == layout.strides
                and tensor.storage_offset() == layout.offset
            ):
                return tensor
        return self.buffer_of(canonical).view(layout)

    def _filled_layout(self, number: int) -> Layout:
        layout, holes = self.code.layouts[number]
        sizes, strides, offset = list(layout.sizes), list(layout.strides), layout.offset
        for field, dimension, value in holes:
            if self.values[value] < 0:
                raise ProtocolError("a node asks for a negative size, stride or offset")
            if field == SIZE:
                sizes[dimension] = self.values[value]
            elif field == STRIDE:
                strides[dimension] = self.values[value]
            else:
                offset = self.values[value]
        return Layout(layout.dtype, layout.flags, tuple(sizes), tuple(strides), offset)

    def allocate_storage(self, op: Instruction) -> None:
        """A storage of undefined contents."""
        size = op.allocation_bytes(self.values)
        self.storages.limits.check_room(self.storages.allocated, size)
        (new,) = op.new
        buffer = self.buffers[new.canonical] = StorageBuffer(torch.UntypedStorage(size, device=self.storages.device))
        if new.outlives:
            self.store(new.ordinal, new.canonical, buffer)

    def describe_results(self, op: Instruction, outputs: Sequence[torch.Tensor]) -> None:
        """Describes the results of a call."""
        results: List[Any] = []
        for output, (kind, reference, register) in enumerate(op.descriptions or ()):
            tensor = outputs[output] if register < 0 else self.registers[register]
            assert tensor is not None
            result = Result(kind, reference, layout_of(tensor), tensor.untyped_storage().nbytes())
            results.append(["t", result.to_wire()])
        self._set_results(op, results)

    def _set_results(self, op: Instruction, described: Optional[List[Any]]) -> None:
        if op.final:
            self.outcome.results = described
        elif described is not None:
            self.outcome.described[op.call] = described

    def run_session_call(
        self, position: int, operands: Dict[int, Union[StorageBuffer, torch.Tensor]], stored_bytes: int
    ) -> Tuple[Dict[int, StorageBuffer], int, int]:
        """Runs a call for the C++ runner.

        Args:
            position: of the instruction.
            operands: by canonical number.
            stored_bytes: of storages that outlive the step, and that the runner has made since the call before.

        Returns:
            Storages of operands and results by canonical number; bytes and storages that the session may hold more.
        """
        op, storages = self.code.instructions[position], self.storages
        storages.allocated += stored_bytes
        self.buffers = {number: given for number, given in operands.items() if isinstance(given, StorageBuffer)}
        self.made = {number: given for number, given in operands.items() if isinstance(given, torch.Tensor)}
        with torch.inference_mode():
            self.run_by_storages(op)
        buffers, self.buffers, self.made = self.buffers, {}, {}
        limits = storages.limits
        return buffers, limits.storage_bytes - storages.allocated, limits.storages - len(storages.buffers)

    def run_by_storages(self, op: Instruction) -> None:
        """Have the storages run a call as one that is new."""
        changes = [(offset, self.values[value]) for offset, value in op.changes]
        entry = self.code.changed(op.entry, changes) if changes else op.entry
        number, numbers, host, hosts = op.parts
        raw, payloads = self.code.numbers[16 * number : 16 * numbers], list(self.payloads[host:hosts])
        used = [self.buffer_of(canonical) for canonical in op.references]
        before = StepOutcome(self.outcome.tensor)
        new, outcome = self.storages.run_call(entry, used, raw, payloads, before, op.descriptions is not None)
        self.outcome.tensor = outcome.tensor
        if op.descriptions is not None:
            self._set_results(op, outcome.results)
        elif len(new) != len(op.new):
            raise ProtocolError(f"{entry.name} makes another number of storages than the last time")
        ordinal = op.new[0].ordinal if op.new else self.code.grown
        for i, buffer in enumerate(new):
            buffer.lay_out()  # registers hold views for longer than one call
            self.buffers[op.first + i] = buffer
            if op.first + i not in self.code.dead:
                self.store(ordinal + i, op.first + i, buffer)
        self.outcome.grown = ordinal + len(new)
        if entry.overload is not None and not entry.fixed:  # the layout of an operand has changed
            for canonical in op.references:
                self.made.pop(canonical, None)
