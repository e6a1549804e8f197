"""Steps that the device has not run, because robot and server did: what they would have left there is deferred.

It is materialized as soon as the program uses it, and before the program changes what it depends on; what is dropped
unused is never computed. Results of such a step that the program has yet to read are kept until it does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.modes.split.unmodified.inferences import (
    FollowUpRead,
    InferenceStore,
    RecordedInference,
    SplitCounters,
)
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.flushed import READ, FlushedSegment
from edge_offload.replay.signatures import SegmentInvocation


@dataclass
class DeferredStep:
    """A step that the device has not run.

    Attributes:
        invocations: its segments up to the read that came last.
        alive: storages that it would have made and that the program still holds.
        dropped: those that it dropped since.
        withheld: storages that it reads, which the program has dropped since.
    """

    invocations: List[SegmentInvocation]
    inference: RecordedInference
    alive: Set[int]
    dropped: List[int] = field(default_factory=list)
    withheld: List[int] = field(default_factory=list)


@dataclass
class PendingReads:
    """Results of a step by robot and server that the program has yet to read.

    Attributes:
        base: number of the step's first new storage.
        tensors: one per read of the inference.
        step: which the device has not run; None while the device runs it all the same, to be compared with.
        place: the read that comes next.
    """

    inference: RecordedInference
    base: int
    tensors: Sequence[torch.Tensor]
    step: Optional[DeferredStep]
    place: int = 1

    @property
    def next_call(self) -> FollowUpRead:
        """Calls that lead to the next read."""
        return self.inference.later[max(self.place, 1) - 1]

    def expects(self, segment: int, live: Sequence[Tuple[int, int]], numbers: bytes) -> bool:
        """Return True if a segment leads to the next read."""
        return self.place > 0 and FollowUpRead.describe_segment(segment, live, numbers, self.base) == self.next_call

    def take_result(self) -> torch.Tensor:
        """Return the result of the next read."""
        self.place += 1
        return self.tensors[self.place - 1]

    @property
    def all_read(self) -> bool:
        """True if all results have been read."""
        return self.place == len(self.tensors)


class DeferredSteps:
    """The steps that are deferred, and the reads of the last of them.

    Args:
        dispatcher: runs on the device's executor, which is one of this machine.
        inferences: those that the steps are.
        counters: what is materialized is counted there.

    Attributes:
        pending: see :class:`PendingReads`; None when nothing is to be read.
    """

    def __init__(self, dispatcher: SegmentDispatcher, inferences: InferenceStore, counters: SplitCounters) -> None:
        self._dispatcher, self._inferences, self._counters = dispatcher, inferences, counters
        self._steps: List[DeferredStep] = []
        self.pending: Optional[PendingReads] = None

    def __bool__(self) -> bool:
        return bool(self._steps)

    def before_segment(self, flushed: FlushedSegment) -> List[int]:
        """What a step leaves is computed before this segment uses or changes it.

        Returns:
            Of the storages that the program dropped, those that the executor is to free now.
        """
        if flushed.calls and not self._is_next_read(flushed):
            self.end_reads()
            self._materialize(flushed)
        return self.release_storages(flushed.freed)

    def clear_steps(self) -> None:
        """Remove all steps: their storages do not exist any more."""
        self._steps.clear()
        self.pending = None

    # -- reads

    def _is_next_read(self, flushed: FlushedSegment) -> bool:
        """Return True if this is the next read of the inference that was computed last."""
        pending = self.pending
        if pending is None or flushed.reason != READ or flushed.payloads:
            return False
        if flushed.generation != self._dispatcher.generation:
            return False
        return pending.expects(flushed.segment, _pair_numbers(flushed.live), flushed.numbers)

    def expect_reads(self, pending: PendingReads) -> None:
        """Expect the program to read these results."""
        self.end_reads()
        self.pending = pending

    def end_reads(self) -> None:
        """End the reads: the program has read all results, or continues otherwise."""
        pending, self.pending = self.pending, None
        if pending is None:
            return
        if pending.step is None:  # it was to be compared
            self._count_touched(pending.inference, "the program does not read it as it did before")
        elif pending.step in self._steps and not pending.step.alive:
            self._drop_step(pending.step)

    def next_read(self, invocation: SegmentInvocation) -> Optional[StepOutcome]:
        """Return the result of the next read, if it belongs to a deferred step, which stays deferred."""
        pending = self.pending
        if pending is None or pending.step is None:
            return None
        follow_up, step = pending.next_call, pending.step
        invocation.definition = follow_up.definition
        step.invocations.append(invocation)
        step.alive |= _held_storages(invocation, follow_up.made)
        tensor = pending.take_result()
        if pending.all_read:
            self.end_reads()
        return StepOutcome(tensor)

    # -- steps

    def defer_step(self, inference: RecordedInference, invocation: SegmentInvocation, more: bool) -> DeferredStep:
        """Defer a segment; ``more``: further results of it are going to be read."""
        invocation.definition = inference.definition
        step = DeferredStep([invocation], inference, _held_storages(invocation, inference.made))
        if step.alive or more:
            self._steps.append(step)
        else:
            inference.touched = 0
        if len(self._steps) > 4:
            self._compute_step(self._steps[0])
        return step

    def materialize_all(self) -> None:
        """Compute all deferred steps."""
        self.end_reads()
        for step in list(self._steps):
            self._compute_step(step)

    def materialize(self, storage: int) -> None:
        """Compute the step that makes a storage."""
        for step in [step for step in self._steps if storage in step.alive]:
            self._compute_step(step)

    def before_change(self, storages: Set[int]) -> None:
        """Compute steps that read storages which are about to change."""
        for step in [step for step in self._steps if step.inference.reads & storages]:
            self._compute_step(step)

    def _materialize(self, flushed: FlushedSegment) -> None:
        """Compute steps whose storages a segment uses, or whose inputs it changes."""
        if not self._steps:
            return
        used = set(flushed.live[1::2])
        for step in [step for step in self._steps if used & step.alive]:
            self._compute_step(step)
        if self._steps and flushed.generation == self._dispatcher.generation:
            self.before_change(self._inferences.changed_by(flushed.segment, _pair_numbers(flushed.live)))

    def _compute_step(self, step: DeferredStep) -> None:
        """Run a deferred step; its result has been delivered already."""
        self._steps.remove(step)
        if self.pending is not None and self.pending.step is step:
            self.pending = None
        self._counters.owed += 1
        self._count_touched(step.inference, "the program uses what the inference leaves on the device")
        for invocation in step.invocations:
            self._dispatcher.run([invocation])
        self._dispatcher.exchange.freed += step.dropped
        self._free_withheld(step)

    def _count_touched(self, inference: RecordedInference, reason: str) -> None:
        """Count a step that robot and server computed in vain."""
        inference.touched += 1
        if inference.touched >= 3 and not inference.problem:  # steps in a row whose results the program used
            self._inferences.disable(inference, reason)

    # -- storages

    def release_storages(self, freed: List[int]) -> List[int]:
        """Record storages that the program dropped; return those that the executor can free now."""
        if not freed:
            return freed
        self._inferences.drop_readers(set(freed))
        if not self._steps:
            return freed
        unused: List[int] = []
        for number in freed:
            maker = next((step for step in self._steps if number in step.alive), None)
            reader = next((step for step in self._steps if number in step.inference.reads), None)
            if maker is not None:
                maker.alive.discard(number)
                maker.dropped.append(number)
            elif reader is not None:
                reader.withheld.append(number)
            else:
                unused.append(number)
        read_from = self.pending.step if self.pending is not None else None
        for step in [step for step in self._steps if not step.alive and step is not read_from]:
            self._drop_step(step)
        return unused

    def _drop_step(self, step: DeferredStep) -> None:
        """Remove a step whose storages cannot be used any more."""
        self._steps.remove(step)
        step.inference.touched = 0
        self._free_withheld(step)

    def _free_withheld(self, step: DeferredStep) -> None:
        """Free storages that only this step needed."""
        for number in step.withheld:
            reader = next((other for other in self._steps if number in other.inference.reads), None)
            (self._dispatcher.exchange.freed if reader is None else reader.withheld).append(number)


def _pair_numbers(live: Sequence[int]) -> Tuple[Tuple[int, int], ...]:
    return tuple(zip(live[::2], live[1::2]))


def _held_storages(invocation: SegmentInvocation, made: Sequence[int]) -> Set[int]:
    """Return storages that a segment would have made and that the program uses."""
    return {invocation.base + place for place, number in enumerate(made) if number not in invocation.dead}
