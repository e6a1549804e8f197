"""The trace graph that the server runs speculatively: expected steps, and which of them follows which outcome.

A trace step is what a program does between two host reads: a segment, or calls with formulas in place of some
integers. The server runs a step, takes the branch key of its outcome and goes on along that edge, so that it takes the
branch that the program will take, and goes around a loop as often as the data says. Both sides work out the same
integers and storages for a step (:meth:`TraceStep.live_at`, :meth:`TraceStep.integers_at`), so the client can compare
what ran with what the program then does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.calls import Buffer
from edge_offload.ir.trace.keys import pack_codes, unpack_codes
from edge_offload.ir.trace.symbols import BranchKey, Formula, OutcomeHistory, evaluate_formula, parse_formula

#: The branch key of an outcome (None: any other), and the index of the step that then follows.
Edge = Tuple[Optional[BranchKey], int]
#: How the number of an operand's storage is worked out: it is always the same one, it lies that far from the step's
#: first new storage, or that far from the first new storage of the inference.
SAME, FROM_STEP, FROM_START = range(3)
MAX_NODES = 2048
MAX_AHEAD = 2048
MAX_PAYLOAD = 64 << 10
#: Numbers of storages are below: with an offset they still fit 64 bits.
MOST_STORAGES = 1 << 61


class Patch(NamedTuple):
    """The integer at byte ``offset`` of the key of call ``call`` is the value of ``formula``."""

    call: int
    offset: int
    formula: Formula


@dataclass(frozen=True)
class TraceStep:
    """One expected step: a node of a :class:`TraceGraph`.

    Attributes:
        segment: its segment; None if it is given by ``codes``.
        codes: per call the entry and the number of each storage: those that existed before are numbered from 0 on, new
            ones after them.
        patches: what differs in the calls' keys from the entries.
        live: for each storage that existed before: number in the segment, how its own number is found, and from what.
        dead: numbers, in the segment, of new storages that will have been dropped.
        numbers, payloads: the same every time; the first step of a graph gets its payloads with the graph.
        describe: whether the results of the last call are described; ``described_calls``: those before it that are.
    """

    segment: Optional[int]
    codes: Tuple[int, ...]
    patches: Tuple[Patch, ...]
    live: Tuple[Tuple[int, int, int], ...]
    dead: Tuple[int, ...]
    numbers: bytes
    payloads: Tuple[bytes, ...]
    describe: bool
    described_calls: Tuple[int, ...] = ()

    def live_at(self, base: int, start: int) -> List[Tuple[int, int]]:
        """(number in the segment, storage) when the step's first new storage is ``base``, the inference's ``start``."""
        origin = {SAME: 0, FROM_STEP: base, FROM_START: start}
        return [(number, origin[how] + value) for number, how, value in self.live]

    def integers_at(self, since: OutcomeHistory) -> List[int]:
        """The value of each patch.

        Raises:
            ProtocolError: a formula cannot be evaluated.
        """
        values: Dict[Formula, int] = {}  # most formulas are those of others too
        for patch in self.patches:
            if patch.formula not in values:
                values[patch.formula] = evaluate_formula(patch.formula, since)
        return [values[patch.formula] for patch in self.patches]

    def to_wire(self) -> List[Any]:
        """Packs the step for msgpack."""
        codes = pack_codes(self.codes)
        return [self.segment, codes, self.patches, self.live, self.dead, self.numbers, self.payloads, self.describe,
                self.described_calls]  # fmt: skip


def parse_step(data: Any) -> TraceStep:
    """Read a trace step off the wire.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        if len(data) != len(fields(TraceStep)):
            raise ValueError("a step has another number of fields")
        read = TraceStep(*data)
        node = TraceStep(
            _read_count(read.segment) if read.segment is not None else None,
            unpack_codes(_read_bytes(read.codes)),
            tuple(
                Patch(_read_count(at), _read_count(offset), parse_formula(formula))
                for at, offset, formula in read.patches
            ),
            tuple((_read_count(number), _read_count(how), _read_int64(value)) for number, how, value in read.live),
            tuple(_read_count(number) for number in read.dead),
            _read_bytes(read.numbers),
            tuple(_read_bytes(payload) for payload in read.payloads),
            bool(read.describe),
            tuple(_read_count(call) for call in read.described_calls),
        )
        if any(how > FROM_START or abs(value) >= MOST_STORAGES for _, how, value in node.live):
            raise ValueError("a storage is named in no known way")
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise ProtocolError(f"malformed trace step: {error}") from None
    return node


@dataclass
class TraceGraph:
    """A request to run steps speculatively.

    Attributes:
        nodes: for each step, the number of its definition, and its edges. None in place of all of them: those of the
            graph before, which says so in a few bytes.
        first: the same for what comes before: the last step of the message, or nothing (then its branch key is empty).
        base: number of the next new storage; None after a step, which says so itself.
        start: number of the inference's first new storage.
        since: integers of the inference's outcomes so far.
        payloads: of the first step, in place of its own; None for one that is as in the graph before.
    """

    nodes: Optional[List[Tuple[int, List[Edge]]]]
    first: List[Edge]
    base: Optional[int]
    start: int
    since: List[Tuple[int, ...]] = field(default_factory=list)
    payloads: Optional[List[Optional[Buffer]]] = None

    def to_wire(self) -> List[Any]:
        """All but the payloads, which travel as a step's do."""
        return [self.nodes, self.first, self.base, self.start, self.since, self.payloads is not None]


def parse_graph(data: Any) -> Tuple[TraceGraph, bool]:
    """Read a trace graph off the wire; says also whether payloads belong to it.

    Raises:
        ValueError, TypeError: it is malformed.
    """
    if len(data) != len(fields(TraceGraph)):
        raise ValueError("a trace graph has another number of fields")
    read = TraceGraph(*data)  # in place of the payloads: whether there are any
    count = len(read.nodes) if read.nodes is not None else MAX_NODES
    if count > MAX_NODES or len(read.since) > MAX_NODES:
        raise ValueError("a trace graph has too many steps")
    graph = TraceGraph(
        [(_read_count(number), _read_edges(edges, count)) for number, edges in read.nodes]
        if read.nodes is not None
        else None,
        _read_edges(read.first, count),
        _read_count(read.base) if read.base is not None else None,
        _read_count(read.start),
        [tuple(_read_int64(value) for value in item) for item in read.since],
    )
    return graph, bool(read.payloads)


def following_step(edges: Sequence[Edge], kind: BranchKey) -> Optional[int]:
    """The index of the step after an outcome of ``kind``, or None."""
    steps = dict(edges)
    return steps.get(kind, steps.get(None))


def _read_edges(data: Any, count: int) -> List[Edge]:
    edges: List[Edge] = [
        (tuple(_read_int64(value) for value in kind) if kind is not None else None, _read_count(node))
        for kind, node in data
    ]
    if any(node >= count for _, node in edges):
        raise ValueError("an edge leads nowhere")
    return edges


def _read_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MOST_STORAGES:
        raise ValueError(f"{value!r} is not a number of things")
    return value


def _read_int64(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r} is not an integer of 64 bits")
    return value


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("bytes were expected")
    return value
