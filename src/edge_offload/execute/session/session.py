"""The server's half of the virtual device: calls by entry, segments of them, run in order on its storages.

One :class:`DeviceSession` belongs to one client. Steps run in the order in which they arrive. A speculative step keeps
a journal of what it overwrites, so that it can be undone when the client turns out to have done something else.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union
from weakref import WeakKeyDictionary

import torch

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError
from edge_offload.execute.session.compiler import compile_segment
from edge_offload.execute.session.limits import SessionLimits
from edge_offload.execute.session.program import Program
from edge_offload.execute.session.speculative import SpeculativeExecutor
from edge_offload.execute.session.storages import Storages
from edge_offload.execute.session.undo import Undo
from edge_offload.ir.trace.calls import BoundOperator
from edge_offload.ir.trace.keys import calls_in, unpack_codes
from edge_offload.ir.trace.segments import Segment, SegmentStep, StepOutcome, StepSignature
from edge_offload.ir.trace.storage import StorageBuffer


@dataclass
class _Compiled:
    """Program of a segment for steps of one signature, that of its latest step, and how often it was compiled."""

    program: Optional[Program] = None
    made_for: Optional[StepSignature] = None
    seen: Optional[StepSignature] = None
    times: int = 0


class DeviceSession(Storages):
    """Storages, operators and segments of one client, on ``device``.

    Args:
        running: memory in which it leaves the name of the operator that is running, which is read after a crash.
    """

    def __init__(
        self, device: Union[str, torch.device] = "cpu", limits: Optional[SessionLimits] = None,
        running: Optional[mmap.mmap] = None,
    ) -> None:  # fmt: skip
        super().__init__(device, limits, running)
        self.operators: List[Union[BoundOperator, EdgeOffloadError]] = []
        self.segments: Dict[int, Union[Segment, EdgeOffloadError]] = {}
        self._compiled: WeakKeyDictionary[Segment, _Compiled] = WeakKeyDictionary()
        self.ahead = SpeculativeExecutor(self, self)

    # -- definitions

    def drop_definitions(self) -> None:
        """Drop all calls, segments and nodes; storages stay."""
        self.operators.clear()
        self.segments.clear()
        self.ahead.drop_steps()

    def define_operator(self, name: str, key: bytes, claimed: Optional[List[Any]] = None, schema: int = 0) -> None:
        """Add a call; its number is the count of those before it. One that is refused raises when it is run.

        What is malformed keeps its number too, or the calls after it would be taken for others.
        """
        if len(self.operators) >= self.limits.operators:
            raise BadInput("the session defines too many distinct calls")
        try:
            self.operators.append(BoundOperator(name, key, self.device, claimed, schema))
        except EdgeOffloadError as error:
            self.operators.append(error)

    def define_segment(self, number: int, codes: bytes) -> None:
        """Add a segment from its canonical form: per call the entry, then the canonical number of each reference.

        One that is malformed raises when it is run.
        """
        if len(self.segments) >= self.limits.segments or len(codes) % 4 or len(codes) // 4 > self.limits.segment_codes:
            raise BadInput("the session defines too many or too long segments")
        try:
            self.segments[number] = Segment.from_calls(calls_in(unpack_codes(codes), self.operator_of))
        except EdgeOffloadError as error:
            self.segments[number] = error

    def operator_of(self, number: int) -> BoundOperator:
        """Looks up a call by number; raises the error with which it was refused, or that it is not defined."""
        if number >= len(self.operators):
            raise ProtocolError(f"call {number} is not defined")
        operator = self.operators[number]
        if isinstance(operator, EdgeOffloadError):
            raise operator
        return operator

    # -- running

    def run(self, step: SegmentStep, speculative: bool = False, segment: Optional[Segment] = None) -> StepOutcome:
        """Run one step, remembering how to undo it if it is ``speculative``; ``segment`` in place of the step's own.

        Raises:
            CallFailed: an operator raised. What ran before it has taken effect.
            DeviceLost: the GPU failed; nothing can be run any more.
            ProtocolError, BadInput: the step does not fit what the session holds.
        """
        defined = segment if segment is not None else self.segments.get(step.segment)
        if defined is None:
            raise ProtocolError(f"segment {step.segment} is not defined")
        if isinstance(defined, EdgeOffloadError):
            raise defined
        segment = defined
        compiled = self._program_for(segment, step)
        if compiled is not None:
            live = [number for _, number in step.live]
            return compiled.run(self, step.base, 0, (), step.payloads, live, speculative)[0]
        self.check_room(0)
        undo: Optional[Undo] = None
        with torch.inference_mode():
            if speculative:
                live_numbers = dict(step.live)
                written = [
                    self.buffer_of(live_numbers[canonical])
                    for canonical in segment.written
                    if canonical in live_numbers
                ]
                undo = self.journal_step(written, segment.random)
            return self._run_calls(segment, step, undo)

    def _program_for(self, segment: Segment, step: SegmentStep) -> Optional[Program]:
        """Program of the segment; it is compiled when such a step comes for the second time."""
        like = step.signature()
        compiled = self._compiled.setdefault(segment, _Compiled())
        if compiled.program is not None and compiled.made_for == like:
            return compiled.program
        # a segment whose operands keep changing is run call by call
        if compiled.seen != like or compiled.times >= 4:
            compiled.seen = like
            return None
        compiled.times += 1
        compiled.program, compiled.made_for = compile_segment(segment, step), like
        return compiled.program

    def _run_calls(self, segment: Segment, step: SegmentStep, undo: Optional[Undo]) -> StepOutcome:
        buffers: Dict[int, StorageBuffer] = {canonical: self.buffer_of(number) for canonical, number in step.live}
        following, storage, number_at, payload_at = segment.first_new, step.base, 0, 0
        outcome, described = StepOutcome(), {}
        dead = frozenset(step.dead)
        final = len(segment.calls) - 1
        new: List[StorageBuffer]
        for index, (operator, references, least) in enumerate(segment.calls):
            if following < least:
                following = least
            try:
                used = [buffers[canonical] for canonical in references]
            except KeyError as error:
                raise ProtocolError(f"segment {step.segment} uses value {error} before it exists") from None
            numbers = step.numbers[16 * number_at : 16 * (number_at + operator.number_count)]
            hosts = step.payloads[payload_at : payload_at + len(operator.hosts)]
            number_at += operator.number_count
            payload_at += len(operator.hosts)
            last, describes = index == final, index in step.described_calls
            new, outcome = self.run_call(operator, used, numbers, hosts, outcome, describes or (last and step.describe))
            if describes and outcome.results is not None:
                described[index] = outcome.results
            if not last:
                outcome.results = None
            for buffer in new:
                if following in buffers:
                    raise ProtocolError(f"segment {step.segment} makes value {following} twice")
                buffers[following] = buffer
                if following not in dead:
                    self.store_buffer(storage, buffer, undo)
                following, storage = following + 1, storage + 1
            for canonical in segment.last_used.get(index, ()):
                if canonical in dead:
                    del buffers[canonical]
        outcome.described, outcome.grown = described, storage - step.base
        return outcome
