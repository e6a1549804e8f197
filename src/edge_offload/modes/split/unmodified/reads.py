"""An inference that is read several times: what the program does between its reads, and results yet to be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Sequence, Tuple

import torch

from edge_offload.modes.split.unmodified.inferences import DeferredStep, FollowUpRead, Inference
from edge_offload.replay.flushed import READ
from edge_offload.replay.signatures import SegmentInvocation

MAX_LATER = 64
"""Reads of one inference behind its first."""


@dataclass
class ReadTrace:
    """The segments of one inference as they come, each with what was read at its end (None where it was not kept)."""

    inference: Inference
    pieces: List[SegmentInvocation]
    tensors: List[Optional[torch.Tensor]]
    later: List[FollowUpRead] = field(default_factory=list)

    def goes_on(self, piece: SegmentInvocation, tensor: Optional[torch.Tensor]) -> bool:
        """Whether a segment is another part of it, which then is noted."""
        found = FollowUpRead.of(piece.segment, piece.live, piece.numbers, self.pieces[0].base)
        if piece.reason != READ or piece.payloads or not found.follows or len(self.later) >= MAX_LATER:
            return False
        self.pieces.append(piece)
        self.tensors.append(tensor)
        self.later.append(found)
        return True

    def common(self) -> Tuple[FollowUpRead, ...]:
        """What has followed the inference's first read every time so far."""
        found: List[FollowUpRead] = []
        for mine, before in zip(self.later, self.inference.later if self.inference.runs > 1 else self.later):
            if mine != before:
                break
            found.append(mine)
        return tuple(found)


@dataclass
class PendingReads:
    """Results of a step by robot and server that the program has yet to read.

    Attributes:
        base: number of the step's first new storage.
        tensors: one per read of the inference.
        owed: the step, which the device has not run; None while the device runs it all the same, to be compared with.
        place: the read that comes next.
    """

    inference: Inference
    base: int
    tensors: Sequence[torch.Tensor]
    owed: Optional[DeferredStep]
    place: int = 1

    @property
    def next(self) -> FollowUpRead:
        """The calls that lead to the next read."""
        return self.inference.later[max(self.place, 1) - 1]

    def expects(self, segment: int, live: Sequence[Tuple[int, int]], numbers: bytes) -> bool:
        """Whether a segment is what leads to the next read."""
        return self.place > 0 and FollowUpRead.of(segment, live, numbers, self.base) == self.next

    def take(self) -> torch.Tensor:
        """The result of the next read."""
        self.place += 1
        return self.tensors[self.place - 1]

    @property
    def over(self) -> bool:
        """Whether everything has been read."""
        return self.place == len(self.tensors)
