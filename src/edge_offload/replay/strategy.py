"""How segments are run in an execution mode: as they come, unless a mode knows better."""

from __future__ import annotations

from typing import List

import torch

from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.flushed import FlushedSegment
from edge_offload.replay.signatures import SegmentInvocation


class Strategy:
    """Has each segment run as it comes: modes ``per_op``, ``cached`` and ``lazy``.

    Attributes:
        in_step: whether a step is under way, which a later segment ends.
        learning_s: processor time that learning has taken so far.
    """

    in_step = False
    learning_s = 0.0

    def __init__(self, dispatcher: SegmentDispatcher) -> None:
        self.dispatcher = dispatcher

    def freed_before(self, flushed: FlushedSegment) -> List[int]:
        """Storages, of those that a segment freed, that the session is to free before it runs."""
        return flushed.freed

    def run(self, invocation: SegmentInvocation, freed: List[int]) -> StepOutcome:
        """Runs a segment; ``freed``: storages that the program dropped since the one before.

        Raises:
            EdgeOffloadError: see :meth:`SegmentDispatcher.run`.
        """
        del freed
        return self.dispatcher.run([invocation])

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """The uploads of a segment that the device was told to expect are there (see :meth:`Recorder.announce`)."""

    def settle(self) -> None:
        """Have run what was put off."""

    def reset(self) -> None:
        """Drops what was learned: segments and calls have new numbers, or the session is a new one."""
        self.dispatcher.definitions.renumber()
