"""Segments of calls, the steps that run them on operands, and the outcome of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.ir.trace.calls import BoundOperator, Buffer


class CallFailed(EdgeOffloadError):
    """An operator raised: carries its name, and the type and text of what it raised."""

    def __init__(self, operator: str, error: BaseException) -> None:
        self.operator = operator
        self.kind = type(error).__name__
        self.text = str(error)[:10_000]
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in self.text:  # it has no error of its own for that
            self.kind = torch.cuda.OutOfMemoryError.__name__
            self.text = f"CUDA out of memory. {self.text} (edge_offload)"
        super().__init__(f"{operator}: {self.text}")


#: Facts of a step that a program relies on: canonical numbers of what existed before and of what was dropped,
#: numbers, whether and which results are wanted.
StepSignature = Tuple[Tuple[int, ...], Tuple[int, ...], bytes, bool, FrozenSet[int]]


class SegmentCall(NamedTuple):
    """A call of a segment: canonical numbers of the storages that it touches, and the least of its first new one."""

    operator: BoundOperator
    references: Tuple[int, ...]
    least: int


class Segment:
    """Calls in order, on storages by canonical number.

    New storages are numbered from ``first_new`` on, after every number that was used before. ``tail``: the integers of
    its last call.
    """

    def __init__(self) -> None:
        self.calls: List[SegmentCall] = []
        self.written: Set[int] = set()
        self.last_used: Dict[int, List[int]] = {}
        self.random = False
        self.first_new = 0
        self.tail: Optional[Tuple[int, ...]] = None

    @staticmethod
    def from_calls(calls: Iterable[Tuple[BoundOperator, Tuple[int, ...]]], first_new: int = 0) -> Segment:
        """Builds a segment of ``calls``, each with the canonical numbers of its storages."""
        segment = Segment()
        segment.first_new = first_new
        for operator, references in calls:
            segment.calls.append(SegmentCall(operator, references, max(references, default=-1) + 1))
            segment.written.update(references[written] for written in operator.written)
            segment.random = segment.random or operator.random
        last = {canonical: index for index, call in enumerate(segment.calls) for canonical in call.references}
        for canonical, index in last.items():
            segment.last_used.setdefault(index, []).append(canonical)
        return segment

    def copy(self) -> Segment:
        """Copies the segment; calls of the copy may be replaced by others that touch the same storages."""
        made = Segment()
        made.calls = self.calls.copy()
        made.written, made.last_used, made.random = self.written, self.last_used, self.random
        made.first_new = self.first_new
        return made


@dataclass
class SegmentStep:
    """A segment to run.

    Attributes:
        segment: its number.
        base: number of its first new storage; the others follow in the order in which the calls make them.
        live: (canonical number, storage number) of each storage that existed before.
        dead: canonical numbers of new storages that the client has dropped already.
        numbers: 16 bytes for each W operand.
        payloads: bytes of each P operand and upload.
        describe: whether the results of the last call are wanted.
        described_calls: positions of further calls whose results are wanted.
    """

    segment: int
    base: int
    live: Sequence[Tuple[int, int]]
    dead: Sequence[int]
    numbers: bytes
    payloads: List[Buffer]
    describe: bool = False
    described_calls: FrozenSet[int] = frozenset()

    def signature(self) -> StepSignature:
        """Facts of a step that a program relies on."""
        return (
            tuple([name for name, _ in self.live]),
            tuple(self.dead),
            self.numbers,
            self.describe,
            self.described_calls,
        )


@dataclass
class StepOutcome:
    """Result of a step: the tensor of a download, or the results of its last call, and those of calls in between.

    Attributes:
        described: results by the position of the call, where they were requested.
        grown: new storages that it made; known on the server alone.
    """

    tensor: Optional[torch.Tensor] = None
    results: Optional[List[Any]] = None
    described: Dict[int, List[Any]] = field(default_factory=dict)
    grown: int = 0
