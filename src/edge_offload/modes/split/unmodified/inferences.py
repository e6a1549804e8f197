"""What mode ``split`` knows of a program: its inferences, and which of its steps the executor has not run."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Deque, FrozenSet, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload import background
from edge_offload.errors import LinkLost
from edge_offload.modes.split.unmodified.cut import Uses
from edge_offload.modes.split.unmodified.join import Joined
from edge_offload.modes.split.unmodified.lift import Recorded, capture
from edge_offload.modes.split.unmodified.recorded import RecordedSplit
from edge_offload.replay.signatures import Definition, SegmentInvocation
from edge_offload.split.model.network import Network
from edge_offload.split.runtime.tracing import located_along

FETCH_S = 120.0
_ONE_AT_A_TIME = threading.Lock()


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
    def of(segment: int, live: Sequence[Tuple[int, int]], numbers: bytes, base: int) -> FollowUpRead:
        """What a segment is to the inference whose first new storage is ``base``."""
        placed = ((number, storage - base if storage >= base else storage, storage >= base) for number, storage in live)
        return FollowUpRead(segment, tuple(placed), numbers)

    @property
    def follows(self) -> bool:
        """Whether it uses anything that the inference left."""
        return any(inside for _, _, inside in self.live)


@dataclass
class Inference:
    """A segment on certain storages, and how far its split has come."""

    name: str
    reads: FrozenSet[int]
    runs: int = 0
    problem: str = ""
    definition: Optional[Definition] = None
    examples: List[torch.Tensor] = field(default_factory=list)
    made: Tuple[int, ...] = ()
    later: Tuple[FollowUpRead, ...] = ()
    uses: Uses = field(default_factory=Uses)
    runner: Optional[RecordedSplit] = None
    checked: bool = False
    touched: int = 0
    failures: int = 0
    seconds: Deque[float] = field(default_factory=lambda: deque(maxlen=9))


@dataclass
class DeferredStep:
    """A step that the executor has not run.

    Attributes:
        pieces: its segments up to the read that came last.
        alive: storages that it would have made and that the program still holds.
        gone: those that it dropped since.
        withheld: storages that it reads, which the program has dropped since.
    """

    pieces: List[SegmentInvocation]
    inference: Inference
    alive: Set[int]
    gone: List[int] = field(default_factory=list)
    withheld: List[int] = field(default_factory=list)


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


def record(
    inference: Inference,
    recorded: Recorded,
    joined: Joined,
    piece: SegmentInvocation,
    expected: Sequence[torch.Tensor],
    fetched: Future[Any],
) -> Network:
    """The network of an inference, from one of its steps; blocks, and takes seconds.

    Args:
        recorded, joined: all of it.
        piece: the step's first segment.
        expected: what its reads gave.
        fetched: the executor's answer with the bytes of what the inference reads.

    Raises:
        LinkLost: the executor did not give them.
        Unsupported: see :func:`edge_offload.modes.split.unmodified.lift.capture`; or nothing in it is local.
    """
    storages = sorted(inference.reads)
    answer = background.result(fetched, FETCH_S)
    if answer.error is not None or len(answer.fetched) != len(storages):
        raise LinkLost(f"the weights could not be copied: {answer.error}")
    held = {
        number: torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8).clone().untyped_storage()
        for number, data in zip(storages, answer.fetched)
    }
    with _ONE_AT_A_TIME:  # segments share what is known of their calls
        found = capture(recorded, joined.live, held, joined.numbers, piece.payloads, expected)
    inference.made, *later = joined.made(found.made)
    inference.later = tuple(replace(item, made=made) for item, made in zip(inference.later, later))
    located = located_along(inference.name, found.program.sequence, None)
    return Network(inference.name, found.program, located, tuple(piece.payloads))
