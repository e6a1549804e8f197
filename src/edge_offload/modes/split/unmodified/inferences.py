"""What mode ``split`` knows of a program: its inferences, which are segments that come again on the same storages."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Deque, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload import background
from edge_offload.errors import LinkLost
from edge_offload.ir.trace.segments import Segment
from edge_offload.modes.split.robot.runner import SplitRunner
from edge_offload.modes.split.unmodified.cut import SegmentUses
from edge_offload.modes.split.unmodified.join import JoinedSegments
from edge_offload.modes.split.unmodified.lift import CallReader, capture_sequence
from edge_offload.notices import Once
from edge_offload.replay.definitions import Definitions
from edge_offload.replay.flushed import CUT, READ
from edge_offload.replay.signatures import Definition, SegmentInvocation
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.runtime.tracing import locate_along

REPEATS = 3
"""Runs after which a segment is taken for an inference."""
_ONE_AT_A_TIME = threading.Lock()

#: A segment, the storages that it uses (canonical number and storage), and its host numbers.
InferenceKey = Tuple[int, Tuple[Tuple[int, int], ...], bytes]


@dataclass(frozen=True)
class FollowUpRead:
    """The calls that lead to another read of the same inference, on what the inference left.

    Attributes:
        segment: its number.
        live: (number in it, storage, whether that is counted from the inference's first new one).
        numbers: host numbers of its calls.
        definition: what it consists of, once the inference is recorded.
        made: numbers, in it, of the storages that it makes, in order; likewise.
    """

    segment: int
    live: Tuple[Tuple[int, int, bool], ...]
    numbers: bytes
    definition: Optional[Definition] = field(default=None, compare=False)
    made: Tuple[int, ...] = field(default=(), compare=False)

    @staticmethod
    def describe_segment(segment: int, live: Sequence[Tuple[int, int]], numbers: bytes, base: int) -> FollowUpRead:
        """Describe a segment relative to the inference whose first new storage is ``base``."""
        placed = ((number, storage - base if storage >= base else storage, storage >= base) for number, storage in live)
        return FollowUpRead(segment, tuple(placed), numbers)

    @property
    def is_follow_up(self) -> bool:
        """True if it uses a storage of the inference."""
        return any(inside for _, _, inside in self.live)


@dataclass
class RecordedInference:
    """A segment on certain storages, and how far its split has come."""

    name: str
    reads: FrozenSet[int]
    runs: int = 0
    problem: str = ""
    definition: Optional[Definition] = None
    examples: List[torch.Tensor] = field(default_factory=list)
    made: Tuple[int, ...] = ()
    later: Tuple[FollowUpRead, ...] = ()
    uses: SegmentUses = field(default_factory=SegmentUses)
    runner: Optional[SplitRunner] = None
    checked: bool = False
    touched: int = 0
    failures: int = 0
    seconds: Deque[float] = field(default_factory=lambda: deque(maxlen=9))


class InferenceStore:
    """The segments of a program that may be inferences, by the storages that they use.

    Args:
        definitions: of the program's segments.
        once: says things to the user.

    Attributes:
        changes: how often, by segment, the weights of an inference that had been opened were changed.
    """

    def __init__(self, definitions: Definitions, once: Once) -> None:
        self._definitions, self._once = definitions, once
        self._by_key: OrderedDict[InferenceKey, RecordedInference] = OrderedDict()
        self.clear_all()

    def clear_all(self) -> None:
        """Remove all: segments have other numbers now, or all storages are gone."""
        for key in list(self._by_key):
            self._remove(key)
        self.changes: Dict[int, int] = {}
        self.calls = CallReader()
        self._variants: Dict[int, int] = {}
        self._written: Dict[int, FrozenSet[int]] = {}

    def list_items(self) -> List[Tuple[InferenceKey, RecordedInference]]:
        """Return all with their keys."""
        return list(self._by_key.items())

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def list_inferences(self) -> List[RecordedInference]:
        """Return all without their keys."""
        return list(self._by_key.values())

    def find_or_add(self, invocation: SegmentInvocation) -> Optional[RecordedInference]:
        """Return the inference that a segment may be; None if it cannot be one."""
        if invocation.reason not in (READ, CUT) or not invocation.payloads:
            return None
        segment = invocation.segment
        key = (segment, invocation.live, invocation.numbers)
        inference = self._by_key.get(key)
        if inference is None:
            variants = self._variants[segment] = self._variants.get(segment, 0) + 1
            # sets of storages and host numbers of one segment, after which it is no inference that comes again
            most = 6
            if variants > most:
                if variants == most + 1:
                    self._once.notify("an inference uses other tensors or host numbers each time: it is computed here")
                return None
            inference = RecordedInference(f"inference {segment}", frozenset(number for _, number in invocation.live))
            self._by_key[key] = inference
            for old in [key for key, item in self._by_key.items() if item.runner is None]:
                if len(self._by_key) <= 32 or old == key:  # segments with their storages that are watched
                    break
                del self._by_key[old]
        return inference

    def changed_by(self, segment: int, live: Iterable[Tuple[int, int]]) -> Set[int]:
        """Return older storages that a segment writes to."""
        written = self._written.get(segment)
        if written is None:
            written = frozenset(self.calls.read_segment(self._definitions.signatures.definition_of(segment)).written)
            self._written[segment] = written
        return {storage for number, storage in live if number in written}

    def drop_readers(self, storages: Set[int]) -> None:
        """Remove inferences that read changed or dropped storages."""
        if storages:
            for key in [key for key, item in self._by_key.items() if item.reads & storages]:
                self._remove(key)

    def disable(self, inference: RecordedInference, reason: str) -> None:
        """Leave an inference to the device for good, and notify the user of the reason."""
        inference.problem = reason
        self._once.notify(f"{inference.name} is computed here: {reason}")

    def _remove(self, key: InferenceKey) -> None:
        inference = self._by_key.pop(key)
        inference.problem = inference.problem or "its weights were changed"
        if inference.runner is not None:
            self.changes[key[0]] = self.changes.get(key[0], 0) + 1
            inference.runner.close()


@dataclass
class SplitCounters:
    """What mode ``split`` has done so far.

    Attributes:
        inferences: computed by robot and server together; of which ``operators_split`` under a plan that divides rows.
        failed: that were begun and then computed on the device.
        owed: computed on the device afterwards, because the program used what they left.
        bytes_up, bytes_down: payload over the link.
    """

    inferences: int = 0
    operators_split: int = 0
    failed: int = 0
    owed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


def record_network(
    inference: RecordedInference,
    recorded: Segment,
    joined: JoinedSegments,
    piece: SegmentInvocation,
    expected: Sequence[torch.Tensor],
    fetched: Future[Any],
) -> TracedNetwork:
    """The network of an inference, from one of its steps; blocks, and takes seconds.

    Args:
        inference: which one.
        recorded: all of its segments as one.
        joined: all of its segments as one, with the storages of this time.
        piece: the step's first segment.
        expected: what its reads gave.
        fetched: the executor's answer with the bytes of what the inference reads.

    Raises:
        LinkLost: the executor did not give them.
        Unsupported: see :func:`edge_offload.modes.split.unmodified.lift.capture_sequence`; or nothing in it is local.
    """
    storages = sorted(inference.reads)
    answer = background.result(fetched, 120.0)
    if answer.error is not None or len(answer.fetched) != len(storages):
        raise LinkLost(f"the weights could not be copied: {answer.error}")
    contents = {
        number: torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8).clone().untyped_storage()
        for number, data in zip(storages, answer.fetched)
    }
    with _ONE_AT_A_TIME:  # segments share what is known of their calls
        captured = capture_sequence(recorded, joined.live, contents, joined.numbers, piece.payloads, expected)
    inference.made, *later = joined.made_by_segment(captured.made)
    inference.later = tuple(replace(item, made=made) for item, made in zip(inference.later, later))
    located = locate_along(inference.name, captured.program.sequence, None)
    return TracedNetwork(inference.name, captured.program, located, tuple(piece.payloads))
