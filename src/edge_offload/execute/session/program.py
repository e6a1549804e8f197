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
from typing import Any, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError
from edge_offload.execute.session.graphs import StepGraphs
from edge_offload.execute.session.instructions import ALLOCATION, StepCode
from edge_offload.execute.session.interpreter import StepInterpreter
from edge_offload.execute.session.native_runner import library
from edge_offload.execute.session.results import failed_call
from edge_offload.execute.session.storages import Storages
from edge_offload.ir.trace.calls import Buffer, host_tensor
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.storage import StorageBuffer
from edge_offload.ir.trace.symbols import Formula, OutcomeHistory, evaluate_formula
from edge_offload.ir.trace.trace_graph import SAME

#: Why the C++ runner says that a step does not fit, in place of the position of a call: what it asks for does not
#: exist, or is against the protocol, or more than a session may hold, or bring back.
UNFIT, MALFORMED, NO_ROOM, TOO_LONG = -1, -2, -3, -4


class Program:
    """Runs a step whose integers are values of ``formulas`` (:mod:`~edge_offload.execute.session.compiler` makes it).

    Args:
        code: the step.
        payloads: of the host, in place of which a run may bring others.
        formulas: of the integers that vary.
        tail: integers of the last call, with holes: (position, value).
    """

    def __init__(
        self, code: StepCode, payloads: Sequence[Buffer], formulas: Sequence[Formula],
        tail: Tuple[Sequence[int], Sequence[Tuple[int, int]]],
    ) -> None:  # fmt: skip
        self.code = code
        self._payloads = payloads
        self._formulas = formulas
        self._allocations = [op for op in code.instructions if op.how == ALLOCATION]
        self._names = {op.call: op.entry.name for op in code.instructions}
        self._tail = tail
        # numbers of storages that existed before the inference do not change
        self._same = [number for _, _, number in code.live] if all(how == SAME for _, how, _ in code.live) else []
        self._native: Optional[Any] = None
        self._native_tried = False  # whether there can be one is known
        self._graphs: Optional[StepGraphs] = None

    def run(
        self, storages: Storages, base: int, start: int, since: OutcomeHistory,
        payloads: Optional[Sequence[Buffer]] = None, live: Optional[Sequence[int]] = None, speculative: bool = True,
    ) -> Tuple[StepOutcome, Tuple[int, ...]]:  # fmt: skip
        """Runs the step; returns its outcome and the integers of its last call.

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
        values = [evaluate_formula(formula, since) for formula in self._formulas]
        given = self._payloads if payloads is None else payloads
        uploads = [host_tensor(given[item.payload :], item.spec) for item in self.code.uploads]
        if live is None:
            origin = (0, base, start)
            live = self._same or [origin[how] + number for _, how, number in self.code.live]
        storages.check_room(0)
        if not speculative:  # what runs ahead of the program frees nothing that this may still use
            storages.make_room(sum(op.allocation_bytes(values) for op in self._allocations))
        if not self._native_tried and library.module is not None:
            self._try_native(library.module, storages)
        undo = storages.journal_step((), self.code.random) if speculative else None
        run = StepInterpreter(self.code, storages, base, given, values, uploads, undo)
        if storages.graphs is None:
            outcome = self._run_eagerly(run, live)
        else:
            if self._graphs is None:
                self._graphs = StepGraphs(self.code, storages.graphs)
            outcome = self._graphs.run(run, live, self._run_eagerly)
        outcome.grown = max(outcome.grown, self.code.grown)
        plain, holes_of = self._tail
        if not holes_of:
            return outcome, plain  # type: ignore[return-value]
        tail = list(plain)
        for position, value in holes_of:
            tail[position] = values[value]
        return outcome, tuple(tail)

    def _try_native(self, native: Any, storages: Storages) -> None:
        """Tries to build the step for the C++ runner."""
        self._native_tried = True
        with contextlib.suppress(native.Unsupported):
            code = self.code
            self._native = native.Node(
                code.layouts, code.registers, code.instructions, [canonical for canonical, _, _ in code.live],
                code.written, StorageBuffer, storages.device,
            )  # fmt: skip

    def _run_eagerly(self, run: StepInterpreter, live: Sequence[int]) -> StepOutcome:
        """Launch call by call: in C++ where that takes the step."""
        if self._native is not None:
            return self._run_native(run, live)
        with torch.inference_mode():
            run.bind_storages(live)
            run.save_written()
            run.execute_calls(self.code.instructions)
        return run.outcome

    def _run_native(self, run: StepInterpreter, live: Sequence[int]) -> StepOutcome:
        storages, undo = run.storages, run.undo
        limits, buffers = storages.limits, storages.buffers
        created, grown, overwritten, described, results, tensor, failed = self._native.run(  # type: ignore[union-attr]
            buffers, run.base, live, run.values, run.uploads, undo is not None,
            limits.storage_bytes - storages.allocated, limits.storages - len(buffers),
            limits.storage_bytes - storages.returned, storages.running, run.run_session_call,
        )  # fmt: skip
        if undo is not None:
            undo.created += created
            undo.overwritten += overwritten
        storages.allocated += grown
        storages.returned += tensor.nbytes if tensor is not None else 0
        if failed is not None:
            call, error = failed
            if isinstance(error, EdgeOffloadError):  # of a call that the session has run
                raise error
            if call >= 0:
                raise failed_call(self._names[call], error)
            if call == NO_ROOM:
                limits.check_room(storages.allocated, int(error))
            limits.check_answer(limits.storage_bytes + int(call == TOO_LONG))
            raise ProtocolError(error) if call == MALFORMED else BadInput(error)
        outcome = run.outcome  # of the calls that the session has run
        outcome.tensor = outcome.tensor if tensor is None else tensor
        outcome.results = outcome.results if results is None else results
        outcome.described.update(described)
        return outcome
