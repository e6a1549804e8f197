"""Mode ``split`` where the program's own process computes: the device's calls are computed at once and watched.

The native device (native/watching.h) computes each call on memory of this process and tells of every segment that
ended in a read. When an inference is known and its plan divides it, the device waits with its calls: they are noted,
and at the read robot and server compute them together. What such a step leaves is computed here when anything names it,
by a session whose storages are the device's own memory, so that nothing is copied in either direction.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, List, Optional, Sequence, Set, Tuple, Union

import torch

from edge_offload.device.remote import InProcessRemote
from edge_offload.errors import LinkLost, Unsupported
from edge_offload.execute.devices import facts
from edge_offload.execute.heap import keep_freed
from edge_offload.execute.session.limits import Limits
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.calls import StorageBuffer
from edge_offload.ir.trace.segments import Outcome
from edge_offload.modes.split.unmodified.cut import Cut, held, put
from edge_offload.modes.split.unmodified.deferred import copied
from edge_offload.modes.split.unmodified.inferences import Inference
from edge_offload.modes.split.unmodified.lift import compare
from edge_offload.modes.split.unmodified.recorded import RecordedSplit
from edge_offload.modes.split.unmodified.recorder import REPEATS, ROUNDING, Opener, SplitRecorder
from edge_offload.replay.flushed import BARRIER, CUT, READ, FlushedSegment
from edge_offload.replay.signatures import CompletedStep, SegmentInvocation

KEEP_FOR = 8
"""Reads for which the bytes of inputs and results are kept, so that an inference can be recorded."""
MAX_LEFT = 16
"""Times in a row that the program did something else than the inference that was waited for."""
LOOK_S = 0.25
"""While inferences are computed here anyway, whether the plan of the moment divides them is asked as often as that.
What is known of an idle link changes no sooner (:class:`~edge_offload.link.transport.prober.Prober`)."""
MAX_RUNS = 4 * REPEATS
"""Of an inference that is cut, without the same being used of it twice and kept."""
SAY_AFTER = 8
"""Segments that could be no inference for the same reason, after which that is said."""


class InProcessSession(DeviceSession):
    """Runs segments on the memory of the native device of this process."""

    def __init__(self) -> None:
        super().__init__("cpu", Limits(storage_bytes=1 << 62))
        self.native: Any = None

    def slot(self, number: int) -> StorageBuffer:
        """See :class:`DeviceSession`; what the device computed is taken over where it lies."""
        if number not in self.slots:
            memory = self.native.memory(number)
            if memory is not None:
                self.keep(number, StorageBuffer(memory.untyped_storage()), None)
        return super().slot(number)


def here() -> InProcessRemote:
    """What a :class:`InProcessSplitRecorder` runs segments with."""
    keep_freed()  # as the executor process does that would compute otherwise
    remote = InProcessRemote(InProcessSession())
    remote.facts = facts(torch.device("cpu"))
    return remote


class InProcessSplitRecorder(SplitRecorder):
    """A recorder whose device computes by itself.

    Args:
        native: the extension module, not in use yet.
        remote: from :func:`here`.
        opener, slowdown: see :class:`SplitRecorder`.
    """

    def __init__(self, native: Any, remote: InProcessRemote, opener: Opener, slowdown: float = 1.0) -> None:
        super().__init__(native, remote, opener, slowdown)
        self._session: InProcessSession = remote.session
        self._session.native = native
        self._awaited: Set[int] = set()
        self._resting: Set[int] = set()
        self._unfit: Counter[str] = Counter()
        self._cut: Optional[Cut] = None
        self._unchecked: List[torch.Tensor] = []
        self._keep_for = self._left = 0
        native.compute_here(True, LOOK_S)

    # -- called by the device, under its lock

    def computed(
        self,
        generation: int,
        segment: Union[int, str],
        base: int,
        live: List[int],
        dead: List[int],
        freed: List[int],
        numbers: bytes,
        payloads: List[Optional[torch.Tensor]],
        tensor: Optional[torch.Tensor],
        seconds: float,
        written: List[int],
    ) -> None:
        """A segment that the device has computed ended in a read.

        Args:
            generation, base, live, dead, freed, numbers: see :meth:`Recorder.flush`.
            segment: its number; or why it can be no inference that comes again, which may be empty.
            payloads, tensor: what was uploaded and read; None where it was not kept.
            seconds: since its first call.
            written: storages that were written and had been there before, since this was last told.
        """
        self._heard(generation, base, freed, written)
        if isinstance(segment, str):
            self._unfit[segment] += 1
            if segment and self._unfit[segment] == SAY_AFTER:
                self._tell(f"an inference {segment}: it is computed here")
            if segment:
                self._conclude()
            self._series = None
        else:
            piece = self._piece(segment, base, live, dead, numbers, payloads, READ, seconds)
            inference = self._known(piece)
            if inference is not None:
                inference.seconds.append(seconds * self._slowdown)
                self._learn(inference, piece, tensor)
                if inference.definition is None and not inference.problem and inference.runs >= REPEATS - 1:
                    self._keep_for = KEEP_FOR + 1 + len(inference.later)
            else:
                self._follow(piece, tensor)
        self._keep_for -= self._keep_for > 0
        self._tidy()

    def cut(
        self,
        generation: int,
        segment: int,
        base: int,
        live: List[int],
        dead: List[int],
        freed: List[int],
        numbers: bytes,
        payloads: List[Optional[torch.Tensor]],
        seconds: float,
        written: List[int],
    ) -> bool:
        """A segment that the device has computed ended where sizes begin that depend on data; see :meth:`computed`.

        Returns:
            Whether the device is to tell what the program uses of it (:meth:`used`).
        """
        self._heard(generation, base, freed, written)
        self._conclude()
        piece = self._piece(segment, base, live, dead, numbers, payloads, CUT, seconds)
        inference = self._known(piece)
        self._cut = None
        if inference is not None:
            inference.seconds.append(seconds * self._slowdown)
            if inference.definition is None and not inference.problem:
                inference.runs += 1
                self._cut = Cut(inference, piece)
                if inference.runs >= REPEATS - 1:
                    self._keep_for = KEEP_FOR + 1
        self._tidy()
        return self._cut is not None

    def used(self, items: Sequence[Tuple[int, int, int, Optional[torch.Tensor]]]) -> None:
        """The program has read something behind a :meth:`cut`.

        Args:
            items: what it used until then of what the segment had made: (storage, number in the segment, the call that
                reads all of it, its contents at the cut; None where they were not kept).
        """
        cut, self._cut = self._cut, None
        if cut is None or cut.inference.problem:
            return
        inference, piece = cut
        inference.uses.add(piece, items, self._definitions.signatures)
        values, kept = inference.uses.values, all(payload is not None for payload in piece.payloads)
        if inference.runs >= REPEATS and values and kept and inference.uses.told:
            self._begin(inference, [piece], values)
        elif inference.runs >= MAX_RUNS:
            inference.problem = "the program uses something else of it each time"

    def _heard(self, generation: int, base: int, freed: List[int], written: List[int]) -> None:
        """What the device tells with every segment."""
        self._next = base
        self._freed += self._hold_back(freed)
        self._renew(generation)
        changed = set(written)
        for key in [key for key, item in self._inferences.items() if item.reads & changed]:
            self._drop(key)

    def _piece(
        self, segment: int, base: int, live: List[int], dead: List[int], numbers: bytes,
        payloads: List[Optional[torch.Tensor]], reason: int, seconds: float,
    ) -> SegmentInvocation:  # fmt: skip
        """A segment that the device has computed."""
        self.counters.segments += 1
        if self._slowdown > 1.0:
            time.sleep((self._slowdown - 1.0) * seconds)
        kept: Any = payloads
        return SegmentInvocation(
            segment, base, tuple(zip(live[::2], live[1::2])), frozenset(dead), numbers, kept, reason
        )

    def _run(self, pieces: Sequence[SegmentInvocation], done: Optional[CompletedStep]) -> Outcome:
        outcome = super()._run(pieces, done)
        unchecked, self._unchecked = self._unchecked, []
        if unchecked:
            self._check_cut(pieces[-1], unchecked)
        return outcome

    def _together(self, inference: Inference, runner: RecordedSplit, piece: SegmentInvocation) -> Optional[Outcome]:
        """See :class:`SplitRecorder`; of an inference that is cut, the program goes on with what was divided."""
        if piece.reason != CUT:
            return super()._together(inference, runner, piece)
        attempt = self._attempt(inference, runner, piece)
        if attempt is None:
            return None
        tensors = [copied(tensor) for tensor in attempt.outputs]
        if not inference.checked:  # the first time the device computes it too
            self._unchecked = tensors
            return None
        self._count(runner, piece, attempt)
        self._defer(inference, put(self._session, piece, inference.uses, tensors), False)
        return Outcome()

    def _check_cut(self, piece: SegmentInvocation, tensors: Sequence[torch.Tensor]) -> None:
        """The first results of a divided inference beside the device's."""
        inference = self._known(piece)
        if inference is None:
            return
        inference.checked = True
        try:
            for mine, expected in zip(tensors, held(self._session, piece, inference.uses)):
                compare(mine, expected, "the split", ROUNDING)
        except Unsupported as error:
            inference.problem = str(error)
            self._tell(f"{inference.name} is computed here: {error}")

    def rested(self) -> None:
        """What began like an inference that is computed here ended in a read; it was not noted, and changed nothing.

        Called for the first of them in a row, and then every :data:`LOOK_S` at most.
        """
        self._series = None
        self._tidy()

    def memory(self, number: int) -> torch.Tensor:
        """The bytes of a storage that the device waited with.

        Raises:
            LinkLost: nobody made it.
        """
        for owed in [item for item in self._steps_owed if number in item.alive]:
            self._compute(owed)
        self._tidy()
        slot = self._session.slots.get(number)
        if slot is None:
            raise LinkLost("a tensor on the device holds nothing: the call that should have made it failed")
        return torch.empty(0, dtype=torch.uint8).set_(slot.storage)

    def before_write(self, number: int) -> None:
        """A storage is about to change: what is owed and reads it is computed first."""
        for owed in [item for item in self._steps_owed if number in item.inference.reads]:
            self._compute(owed)
        self._tidy()

    def _ended(self, handed: FlushedSegment) -> Any:
        """As in :class:`Recorder`: what was waited for has come, or the program did something else."""
        self._left = self._left + 1 if handed.reason == BARRIER else 0
        try:
            return super()._ended(handed)
        finally:
            if self._left >= MAX_LEFT:
                for key, inference in self._inferences.items():
                    if key[0] in self._awaited:
                        inference.problem = inference.problem or "the program often does something else"
                        self._tell(f"{inference.name} is computed here: {inference.problem}")
            self._tidy()

    def _tidy(self) -> None:
        """Tell the device what it is to do from here on, and free what nobody holds."""
        if self._freed:
            self._session.free(self._freed)
            self._freed = []
        self.native.keep(self._keep_for > 0)
        self.native.owing(bool(self._steps_owed))
        awaited: Set[int] = set()
        here: Set[int] = set()
        busy: Set[int] = set()
        for (segment, _, _), inference in self._inferences.items():
            if self._divides(inference):
                awaited.add(segment)
            elif inference.problem or inference.runner is not None:
                here |= {segment, *(later.segment for later in inference.later)}
            else:  # it is being learnt
                busy.add(segment)
        if self._held is not None:
            awaited.add(self._held.next.segment)
        if busy:  # what it is read by may be what another one is read by
            here = here - {later.segment for inference in self._inferences.values() for later in inference.later}
        if awaited != self._awaited:
            self._awaited = awaited
            self.native.wait_for(sorted(awaited))
        if self._slowdown == 1.0 and here - busy != self._resting:
            self._resting = here - busy
            self.native.rest_in(sorted(self._resting))

    def _divides(self, inference: Inference) -> bool:
        runner = inference.runner
        if runner is None or inference.problem:
            return False
        return runner.unavailable_reason(inference.examples) is None and not runner.stays_local(inference.examples)
