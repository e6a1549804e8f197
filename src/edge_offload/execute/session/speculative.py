"""Speculation on the server: steps are run along a trace graph before the program asks for them.

From outcome to outcome, as far as the graph says which step follows. Steps that the program then does not do are
rolled back.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Callable, Dict, Iterator, List, Optional, Protocol, Sequence, Tuple, Union

from edge_offload.errors import BadInput, DeviceLost, EdgeOffloadError, ProtocolError
from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.session.compiler import compile_step
from edge_offload.execute.session.limits import SessionLimits
from edge_offload.execute.session.pacer import FlushPacer
from edge_offload.execute.session.program import Program
from edge_offload.execute.session.storages import Storages
from edge_offload.ir.trace.calls import BoundOperator, Buffer
from edge_offload.ir.trace.keys import calls_in
from edge_offload.ir.trace.segments import Segment, SegmentStep, StepOutcome
from edge_offload.ir.trace.symbols import BranchKey, Formula, evaluate_formula, facts_of
from edge_offload.ir.trace.trace_graph import MAX_AHEAD, MAX_PAYLOAD, TraceGraph, TraceStep, following_step

#: Reads of one run: each is a part of the answer, and a message of the link has at most 1,024.
MAX_READS = 512
#: What the host reads leaves at once if what comes after it took at least so long the last time (seconds).
LEAST_PAUSE_S = 2e-3


class StepRunner(Protocol):
    """Runner of trace steps: a :class:`~edge_offload.execute.session.session.DeviceSession`."""

    segments: Dict[int, Union[Segment, EdgeOffloadError]]
    limits: SessionLimits

    def run(self, step: SegmentStep, speculative: bool = False, segment: Optional[Segment] = None) -> StepOutcome:
        """Run one step."""

    def operator_of(self, number: int) -> BoundOperator:
        """A call that was defined."""


class SpeculativeExecutor:
    """Runs the trace steps that one client has defined on its session, ahead of the program.

    Args:
        session: runs a step.
        storages: what it runs on.
    """

    def __init__(self, session: StepRunner, storages: Storages) -> None:
        self.session = session
        self._storages = storages
        self.nodes: Dict[int, TraceStep] = {}
        self._calls: OrderedDict[Tuple[BoundOperator, Tuple[Tuple[int, int], ...]], BoundOperator] = OrderedDict()
        self._segments: OrderedDict[Tuple[int, Tuple[int, ...]], Segment] = OrderedDict()
        self._plain: Dict[int, Segment] = {}
        self._programs: Dict[int, Optional[Program]] = {}  # None: there cannot be one
        self._tails: Dict[int, Tuple[List[int], List[Tuple[int, Formula]]]] = {}
        self._pauses: Dict[int, float] = {}  # from what a trace step returned to what was read next, or to the end
        self._spans: Dict[int, float] = {}  # how long it took, from a trace step to the end
        self._ways: List[Tuple[int, Dict[Optional[BranchKey], int]]] = []  # of the latest graph: steps and what follows
        self._uploads: List[Optional[bytes]] = []  # what its first trace step got, None where that is long
        self._first_payloads: Optional[List[Buffer]] = None  # what it gets in the graph that is taken

    def drop_steps(self) -> None:
        """Drop all trace steps."""
        self.nodes.clear()
        self._calls.clear()
        self._segments.clear()
        self._plain.clear()
        self._programs.clear()
        self._tails.clear()
        self._pauses.clear()
        self._spans.clear()
        self._ways = []
        self._uploads = []

    def take_graph(self, graph: TraceGraph) -> None:
        """Takes ``graph`` as the one that will be run next.

        Raises:
            ProtocolError: it refers to one before it, of which there is none, or leaves it.
        """
        if graph.nodes is not None:
            self._ways = [(number, dict(edges)) for number, edges in graph.nodes]
        elif not self._ways or any(node >= len(self._ways) for _, node in graph.first):
            raise ProtocolError("a trace graph is said to be like the one before, but there is no such one")
        self._first_payloads = None
        if graph.payloads is not None:
            uploads_before = self._uploads + [None] * len(graph.payloads)
            given = [before if item is None else item for item, before in zip(graph.payloads, uploads_before)]
            self._first_payloads = [item for item in given if item is not None]
            if len(self._first_payloads) < len(given):
                raise ProtocolError("a trace graph leaves out an upload that the one before has not")
            sizes = [memoryview(item).nbytes for item in self._first_payloads]
            self._uploads = [
                bytes(item) if size <= MAX_PAYLOAD else None for item, size in zip(self._first_payloads, sizes)
            ]

    def define_step(self, number: int, node: TraceStep) -> None:
        """Add a trace step, in place of the one that had this number."""
        if len(self.nodes) >= self.session.limits.segments or len(node.codes) > self.session.limits.segment_codes:
            raise BadInput("the session defines too many or too long trace steps")
        self._plain.pop(number, None)
        self._programs.pop(number, None)
        self._tails.pop(number, None)
        self._pauses.pop(number, None)
        self._spans.pop(number, None)
        if number in self.nodes:
            for old in [key for key in self._segments if key[0] == number]:
                del self._segments[old]
        self.nodes[number] = node

    def run(
        self,
        graph: TraceGraph,
        before: Optional[Tuple[SegmentStep, StepOutcome]],
        flush: Callable[[], None] = lambda: None,
    ) -> Iterator[Tuple[int, int, StepOutcome]]:
        """Run along ``graph`` (see :meth:`take_graph`), after the step ``before`` if there is one.

        Yields in order the index of the trace step, its first new storage, and its outcome.

        What cannot be run ends the run: the client will ask for it in another way, and gets the error then. ``flush``
        is called when the host waits for what is there already, and what is computed next takes its time; now and then
        where it waits for sizes alone.

        Raises:
            DeviceLost: the GPU failed.
        """
        since, base = list(graph.since), graph.base
        kind: BranchKey = ()
        if before is not None:
            step, outcome = before
            integers, kind = facts_of(outcome, self._last_integers(self.session.segments[step.segment]))
            since.append(integers)
            base = step.base + outcome.grown
        if base is None:
            raise ProtocolError("a trace graph without a beginning")
        ways = self._ways
        read = ~before[0].segment if before is not None else None
        since_s, flushed, count = time.monotonic(), False, 0
        index = following_step(graph.first, kind)
        departures = FlushPacer(self._spans, ways[index][0] if index is not None else -1, since_s)
        payloads: Optional[Sequence[Buffer]] = self._first_payloads
        reads = 0
        seen: Dict[int, int] = {}
        while index is not None and count < MAX_AHEAD and reads < MAX_READS:
            if seen.setdefault(index, reads) != reads:
                break  # once more around, after the host has read something: that is the next inference
            if read is not None and not flushed and self._pauses.get(read, LEAST_PAUSE_S) >= LEAST_PAUSE_S:
                flush()
                flushed = True
                departures.note_flush(time.monotonic())
            number, edges = ways[index]
            try:
                with gpu_failures():
                    outcome, last = self._run_step(number, base, graph.start, since, payloads)
            except DeviceLost:
                raise
            except EdgeOffloadError:
                break
            count += 1
            yield index, base, outcome
            integers, kind = facts_of(outcome, last)
            since.append(integers)
            base += outcome.grown
            payloads = None
            if outcome.tensor is not None:
                reads += 1
                self._note_pause(read, since_s)
                read, since_s, flushed = number, time.monotonic(), False
            index = edges.get(kind, edges.get(None))
            if index is not None and (outcome.results is not None or outcome.described):
                now_s = time.monotonic()
                if departures.is_due(now_s):
                    flush()
                    departures.note_flush(now_s)
        self._note_pause(read, since_s)
        departures.note_end(time.monotonic())

    def _note_pause(self, read: Optional[int], since_s: float) -> None:
        if read is not None:
            self._pauses[read] = time.monotonic() - since_s

    def _tail_integers(self, number: int, since: List[Tuple[int, ...]]) -> Tuple[int, ...]:
        """Integers of the last call of a trace step."""
        node = self._step_of(number)
        if node.segment is not None:
            return self._last_integers(self.session.segments.get(node.segment))
        tail = self._tails.get(number)
        if tail is None:
            like = self._unchanged_of(number, node)
            final = len(like.calls) - 1
            place = {offset: position for position, offset in enumerate(like.calls[final].operator.offsets)}
            holes = [(place.get(patch.offset, -1), patch.formula) for patch in node.patches if patch.call == final]
            tail = self._tails[number] = list(self._last_integers(like)), [hole for hole in holes if hole[0] >= 0]
        integers, holes = list(tail[0]), tail[1]
        for position, formula in holes:
            integers[position] = evaluate_formula(formula, since)
        return tuple(integers)

    def _last_integers(self, segment: Union[Segment, EdgeOffloadError, None]) -> Tuple[int, ...]:
        """Integers of the last call of a segment."""
        if not isinstance(segment, Segment) or not segment.calls:
            raise ProtocolError("a segment without calls, or one that is not defined")
        if segment.tail is None:
            segment.tail = segment.calls[-1].operator.integers
        return segment.tail

    def _step_of(self, number: int) -> TraceStep:
        node = self.nodes.get(number)
        if node is None:
            raise ProtocolError(f"trace step {number} is not defined")
        return node

    def _run_step(
        self, number: int, base: int, start: int, since: List[Tuple[int, ...]], payloads: Optional[Sequence[Buffer]]
    ) -> Tuple[StepOutcome, Tuple[int, ...]]:
        """The outcome of a trace step, and the integers of its last call."""
        program = self._programs.get(number)
        if program is not None:
            return program.run(self._storages, base, start, since, payloads)
        node = self._step_of(number)
        buffers: Sequence[Buffer] = node.payloads if payloads is None else payloads
        last = self._tail_integers(number, since)
        step = SegmentStep(
            node.segment or 0, base, node.live_at(base, start), node.dead, node.numbers, list(buffers), node.describe,
            frozenset(node.described_calls),
        )  # fmt: skip
        if node.segment is None:
            segment = self._segment_with(number, node, since)
            outcome = self.session.run(step, speculative=True, segment=segment)
            if number not in self._programs:
                self._programs[number] = compile_step(node, self._plain[number], segment, self._with_integers)
            return outcome, last
        outcome = self.session.run(step, speculative=True)
        if number not in self._programs:
            segment_run = self.session.segments[node.segment]
            assert isinstance(segment_run, Segment)  # it has just run
            self._programs[number] = compile_step(node, segment_run, segment_run, self._with_integers)
        return outcome, last

    def _segment_with(self, number: int, node: TraceStep, since: List[Tuple[int, ...]]) -> Segment:
        """The calls of ``trace step`` with the integers of this time."""
        integers = tuple(node.integers_at(since))
        cached = self._segments.get((number, integers))
        if cached is not None:
            self._segments.move_to_end((number, integers))
            return cached
        changes: Dict[int, List[Tuple[int, int]]] = {}
        for patch, value in zip(node.patches, integers):
            changes.setdefault(patch.call, []).append((patch.offset, value))
        like = self._unchanged_of(number, node)
        if any(call >= len(like.calls) for call in changes):
            raise ProtocolError("a trace step changes a call that it has not")
        segment = like.copy()
        for call, changed in changes.items():
            made = segment.calls[call]
            segment.calls[call] = made._replace(operator=self._with_integers(made.operator, changed))
        self._segments[number, integers] = segment
        while len(self._segments) > 128:  # segments kept for the next time
            self._segments.popitem(last=False)
        return segment

    def _unchanged_of(self, number: int, node: TraceStep) -> Segment:
        """The segment that the calls of a trace step are with the integers of their definitions."""
        plain = self._plain.get(number)
        if plain is None:
            plain = Segment.from_calls(calls_in(node.codes, self.session.operator_of), len(node.live))
            if not plain.calls:
                raise ProtocolError("a trace step has no calls")
            self._plain[number] = plain
        return plain

    def _with_integers(self, operator: BoundOperator, changes: Sequence[Tuple[int, int]]) -> BoundOperator:
        """A call of the session with other integers."""
        named = (operator, tuple(changes))
        call = self._calls.get(named)
        if call is None:
            call = self._calls[named] = operator.with_integers(changes)
            while len(self._calls) > 4096:  # distinct calls kept for the next time
                self._calls.popitem(last=False)
        else:
            self._calls.move_to_end(named)
        return call
