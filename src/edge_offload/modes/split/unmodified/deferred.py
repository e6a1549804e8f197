"""Steps that the device has not run, because robot and server did: what they would have left is owed.

It is computed as soon as the program uses it, and before the program changes what it depends on; what is dropped
unused is never computed. Results of such a step that the program has yet to read are held until it does.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import torch

from edge_offload.ir.trace.segments import Outcome
from edge_offload.mode import Mode
from edge_offload.modes.split.unmodified.inferences import DeferredStep, Inference, SplitCounters
from edge_offload.modes.split.unmodified.lift import Calls
from edge_offload.modes.split.unmodified.reads import PendingReads
from edge_offload.notices import notify
from edge_offload.protocol.remote import Remote
from edge_offload.replay.flushed import READ, FlushedSegment
from edge_offload.replay.recorder import Recorder
from edge_offload.replay.signatures import SegmentInvocation

MAX_OWED = 4
MAX_TOUCHED = 3
"""Steps in a row that had to be computed after all, because the program used what they left."""


class DeferringRecorder(Recorder):
    """A recorder that may leave steps to be run later.

    Args:
        native, remote: see :class:`~edge_offload.replay.recorder.Recorder`; the executor is one of this machine.
    """

    def __init__(self, native: Any, remote: Remote) -> None:
        super().__init__(native, remote, Mode.SPLIT)
        self.splits = SplitCounters()
        self._steps_owed: List[DeferredStep] = []
        self._held: Optional[PendingReads] = None
        self._on_device = False
        self._written: Dict[int, FrozenSet[int]] = {}
        self._calls = Calls()
        self._said: Set[str] = set()

    def _ended(self, handed: FlushedSegment) -> Any:
        """As in :class:`Recorder`. What a step leaves is computed before this segment uses or changes it."""
        if self.mode is Mode.SPLIT and self._failed is None:
            if handed.calls and not self._expected(handed):
                self._let_go()
                self._materialize(handed.segment, handed.generation, handed.live)
            handed = handed._replace(freed=self._hold_back(handed.freed))
        return super()._ended(handed)

    # -- results that are held

    def _expected(self, handed: FlushedSegment) -> bool:
        """Whether this is the next read of the inference that was computed last."""
        held = self._held
        if held is None or handed.reason != READ or handed.payloads or handed.generation != self._generation:
            return False
        return held.expects(handed.segment, tuple(zip(handed.live[::2], handed.live[1::2])), handed.numbers)

    def _hold(self, held: PendingReads) -> None:
        self._let_go()
        self._held = held

    def _let_go(self) -> None:
        """The program has read everything, or does something else."""
        held, self._held = self._held, None
        if held is None:
            return
        if held.owed is None:  # it was to be compared
            self._touched(held.inference, "the program does not read it as it did before")
        elif held.owed in self._steps_owed and not held.owed.alive:
            self._steps_owed.remove(held.owed)
            held.inference.touched = 0
            self._release(held.owed)

    def _touched(self, inference: Inference, why: str) -> None:
        """It was of no use that a step was computed by robot and server."""
        inference.touched += 1
        if inference.touched >= MAX_TOUCHED and not inference.problem:
            inference.problem = why
            self._tell(f"{inference.name} is computed here: {why}")

    def _take(self, held: PendingReads, owed: DeferredStep, piece: SegmentInvocation) -> Outcome:
        """The result of the next read, which the device does not compute either."""
        later = held.next
        piece.definition = later.definition
        owed.pieces.append(piece)
        owed.alive |= {piece.base + place for place, number in enumerate(later.made) if number not in piece.dead}
        tensor = held.take()
        if held.over:
            self._let_go()
        return Outcome(tensor)

    # -- what is owed

    def _defer(self, inference: Inference, piece: SegmentInvocation, more: bool) -> DeferredStep:
        """``more``: results of it are going to be held."""
        alive = {piece.base + place for place, number in enumerate(inference.made) if number not in piece.dead}
        piece.definition = inference.definition
        owed = DeferredStep([piece], inference, alive)
        if alive or more:
            self._steps_owed.append(owed)
        else:
            inference.touched = 0
        if len(self._steps_owed) > MAX_OWED:
            self._compute(self._steps_owed[0])
        return owed

    def _materialize(self, segment: int, generation: int, live: Sequence[int]) -> None:
        """Have computed what this segment names, or what reads what it changes."""
        if not self._steps_owed:
            return
        used = set(live[1::2])
        for owed in [item for item in self._steps_owed if used & item.alive]:
            self._compute(owed)
        if self._steps_owed and generation == self._generation:
            changed = self._changed(segment, tuple(zip(live[::2], live[1::2])))
            for owed in [item for item in self._steps_owed if item.inference.reads & changed]:
                self._compute(owed)

    def _compute(self, owed: DeferredStep) -> None:
        """Run an owed step after all; its result has been delivered already."""
        self._steps_owed.remove(owed)
        if self._held is not None and self._held.owed is owed:
            self._held = None
        self.splits.owed += 1
        self._touched(owed.inference, "the program uses what the inference leaves on the device")
        for piece in owed.pieces:
            self._on_executor(piece)
        self._freed += owed.gone
        self._release(owed)

    def _on_executor(self, piece: SegmentInvocation) -> Outcome:
        self._on_device = True
        try:
            return self._run([piece], None)
        finally:
            self._on_device = False

    def _release(self, owed: DeferredStep) -> None:
        """What only an owed step kept alive may go, unless another one needs it."""
        for number in owed.withheld:
            holder = next((other for other in self._steps_owed if number in other.inference.reads), None)
            (self._freed if holder is None else holder.withheld).append(number)

    def _hold_back(self, freed: List[int]) -> List[int]:
        """Of the storages that the program dropped, those that the executor is to free now."""
        if not freed:
            return freed
        self._dropped_by_program(set(freed))
        if not self._steps_owed:
            return freed
        told: List[int] = []
        for number in freed:
            owner = next((owed for owed in self._steps_owed if number in owed.alive), None)
            reader = next((owed for owed in self._steps_owed if number in owed.inference.reads), None)
            if owner is not None:
                owner.alive.discard(number)
                owner.gone.append(number)
            elif reader is not None:
                reader.withheld.append(number)
            else:
                told.append(number)
        kept = self._held.owed if self._held is not None else None
        for owed in [item for item in self._steps_owed if not item.alive and item is not kept]:
            self._steps_owed.remove(owed)
            owed.inference.touched = 0
            self._release(owed)
        return told

    def _dropped_by_program(self, gone: Set[int]) -> None:
        """Storages that nobody can use any more."""

    def _catch_up(self) -> None:
        self._let_go()
        for owed in list(self._steps_owed):
            self._compute(owed)
        super()._catch_up()

    def _changed(self, segment: int, live: Sequence[Tuple[int, int]]) -> Set[int]:
        """Storages that lived before and that a segment writes to."""
        written = self._written.get(segment)
        if written is None:
            written = self._calls.read(self._definitions.signatures.definition(segment)).written
            self._written[segment] = written
        return {storage for number, storage in live if number in written}

    def _tell(self, text: str) -> None:
        if text not in self._said and len(self._said) < 64:
            self._said.add(text)
            notify(text)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that the program may keep and change."""
    with torch.inference_mode(False):
        return tensor.detach().contiguous().clone()
