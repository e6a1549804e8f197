"""Mode ``split`` where the program's own process computes: the device's calls are computed at once and watched.

The native device (native/watching.h) computes each call on memory of this process and tells of every segment that
ended in a read. When an inference is known and its plan divides it, the device waits with its calls: they are noted,
and at the read robot and server compute them together. What such a step leaves is materialized when anything names it,
by a session whose storages are the device's own memory, so that nothing is copied in either direction.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, List, Optional, Sequence, Set, Tuple, Union, cast

import torch

from edge_offload.device.remotes.executor import InProcessRemote
from edge_offload.errors import LinkLost
from edge_offload.execute.devices import device_facts
from edge_offload.execute.heap import retain_freed_memory
from edge_offload.execute.session.limits import SessionLimits
from edge_offload.execute.session.session import DeviceSession
from edge_offload.ir.trace.storage import StorageBuffer
from edge_offload.modes.split.unmodified.cut import CutInference
from edge_offload.modes.split.unmodified.inferences import REPEATS, RecordedInference
from edge_offload.modes.split.unmodified.strategy import SplitStrategy
from edge_offload.replay.flushed import BARRIER, CUT, READ
from edge_offload.replay.recorder import Recorder
from edge_offload.replay.signatures import SegmentInvocation

STORED_READS = 8
"""Reads for which the bytes of inputs and results are kept, so that an inference can be recorded."""
MAX_CUT_RUNS = 4 * REPEATS
"""Of an inference that is cut, without the same being used of it twice and kept."""


class InProcessSession(DeviceSession):
    """Runs segments on the memory of the native device of this process."""

    def __init__(self) -> None:
        super().__init__("cpu", SessionLimits(storage_bytes=1 << 62))
        self.native: Any = None

    def buffer_of(self, number: int) -> StorageBuffer:
        """Return a storage; one of the device is used in place."""
        if number not in self.buffers:
            memory = self.native.memory(number)
            if memory is not None:
                self.store_buffer(number, StorageBuffer(memory.untyped_storage()), None)
        return super().buffer_of(number)


def in_process_remote(session: InProcessSession) -> InProcessRemote:
    """Return the remote that runs segments of an :class:`InProcessHandler`."""
    retain_freed_memory()  # as the executor process does that would compute otherwise
    remote = InProcessRemote(session)
    remote.facts = device_facts(torch.device("cpu"))
    return remote


class InProcessHandler:
    """Handler of a native device that computes by itself.

    Args:
        recorder: has the segments run that the device waited with, by a :class:`SplitStrategy`.
        session: runs them.
        slowdown: emulate a robot that is so many times slower.
    """

    def __init__(self, recorder: Recorder, session: InProcessSession, slowdown: float = 1.0) -> None:
        strategy = cast(SplitStrategy, recorder.strategy)
        self._recorder, self._session, self._once = recorder, session, strategy.once
        self._inferences, self._deferred, self._learner = strategy.inferences, strategy.deferred, strategy.learner
        self._exchange, self._slowdown = recorder.dispatcher.exchange, slowdown
        self._native = session.native = recorder.dispatcher.native
        self._awaited: Set[int] = set()
        self._resting: Set[int] = set()
        self._unfit: Counter[str] = Counter()
        self._cut: Optional[CutInference] = None
        self._reads_to_store = self._other_segments = 0
        self._native.compute_here(True, 0.25)  # seconds: what is estimated of an idle link changes no sooner

    # -- called by the device, under its lock

    def flush(self, *fields: Any) -> Any:
        """Handle a noted segment: the awaited inference, or another one; see :meth:`Recorder.flush`."""
        self._other_segments = self._other_segments + 1 if fields[0] == BARRIER else 0
        try:
            return self._recorder.flush(*fields)
        finally:
            if self._other_segments >= 16:  # segments of other inferences in a row
                for (segment, _, _), inference in self._inferences.list_items():
                    if segment in self._awaited:
                        self._inferences.disable(
                            inference, inference.problem or "the program often does something else"
                        )
            self._update_device()

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
            generation: how often the device has forgotten its calls and segments.
            segment: its number; or why it can be no inference that comes again, which may be empty.
            base: number of its first new storage.
            live: number in the segment and storage of each that existed before, in turn.
            dead: numbers, in the segment, of new storages that were dropped.
            freed: storages that the program dropped.
            numbers: 16 bytes for each number of the host.
            payloads: what was uploaded; None where it was not kept.
            tensor: what was read; None where it was not kept.
            seconds: since its first call.
            written: storages that were written and had been there before, since this was last reported.
        """
        self._update_storages(generation, base, freed, written)
        if isinstance(segment, str):
            self._unfit[segment] += 1
            if segment and self._unfit[segment] == 8:  # segments that are no inference for the same reason
                self._once.notify(f"an inference {segment}: it is computed here")
            if segment:
                self._learner.end_trace()
            self._learner.stop_trace()
        else:
            invocation = self._make_invocation(segment, base, live, dead, numbers, payloads, READ, seconds)
            inference = self._inferences.find_or_add(invocation)
            if inference is not None:
                inference.seconds.append(seconds * self._slowdown)
            self._learner.add_computed(inference, invocation, tensor)
            if inference is not None and _will_record(inference):
                self._reads_to_store = STORED_READS + 1 + len(inference.later)
        self._reads_to_store -= self._reads_to_store > 0
        self._update_device()

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
            Whether the device is to report what the program uses of it (:meth:`used`).
        """
        self._update_storages(generation, base, freed, written)
        self._learner.end_trace()
        invocation = self._make_invocation(segment, base, live, dead, numbers, payloads, CUT, seconds)
        inference = self._inferences.find_or_add(invocation)
        self._cut = None
        if inference is not None:
            inference.seconds.append(seconds * self._slowdown)
            if inference.definition is None and not inference.problem:
                inference.runs += 1
                self._cut = CutInference(inference, invocation)
                if _will_record(inference):
                    self._reads_to_store = STORED_READS + 1
        self._update_device()
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
        inference, invocation = cut
        inference.uses.add_uses(invocation, items, self._recorder.dispatcher.definitions.signatures)
        values, stored = inference.uses.values, all(payload is not None for payload in invocation.payloads)
        if inference.runs >= REPEATS and values and stored and inference.uses.unchanged:
            self._learner.start_recording(inference, [invocation], values)
        elif inference.runs >= MAX_CUT_RUNS:
            inference.problem = "the program uses something else of it each time"

    def rested(self) -> None:
        """What began like an inference that is computed here ended in a read; it was not noted, and changed nothing.

        Called for the first of them in a row, and then every :data:`CHECK_S` at most.
        """
        self._learner.stop_trace()
        self._update_device()

    def memory(self, number: int) -> torch.Tensor:
        """The bytes of a storage that the device waited with.

        Raises:
            LinkLost: nobody made it.
        """
        self._deferred.materialize(number)
        self._update_device()
        buffer = self._session.buffers.get(number)
        if buffer is None:
            raise LinkLost("a tensor on the device holds nothing: the call that should have made it failed")
        return torch.empty(0, dtype=torch.uint8).set_(buffer.storage)

    def before_write(self, number: int) -> None:
        """Compute deferred steps that read a storage which is about to change."""
        self._deferred.before_change({number})
        self._update_device()

    # -- what the device reports with every segment

    def _update_storages(self, generation: int, base: int, freed: List[int], written: List[int]) -> None:
        self._recorder.dispatcher.next_storage = base
        self._exchange.freed += self._deferred.release_storages(freed)
        self._recorder.renew(generation)
        self._inferences.drop_readers(set(written))

    def _make_invocation(
        self, segment: int, base: int, live: List[int], dead: List[int], numbers: bytes,
        payloads: List[Optional[torch.Tensor]], reason: int, seconds: float,
    ) -> SegmentInvocation:  # fmt: skip
        """Make the invocation of a computed segment."""
        self._exchange.counters.segments += 1
        if self._slowdown > 1.0:
            time.sleep((self._slowdown - 1.0) * seconds)
        stored: Any = payloads
        return SegmentInvocation(
            segment, base, tuple(zip(live[::2], live[1::2])), frozenset(dead), numbers, stored, reason
        )

    def _update_device(self) -> None:
        """Update the device's settings, and free unused storages."""
        if self._exchange.freed:
            self._session.free(self._exchange.freed)
            self._exchange.freed = []
        self._native.report_bytes(self._reads_to_store > 0)
        self._native.report_writes(bool(self._deferred))
        awaited: Set[int] = set()
        resting: Set[int] = set()
        busy: Set[int] = set()
        for (segment, _, _), inference in self._inferences.list_items():
            if _is_divided(inference):
                awaited.add(segment)
            elif inference.problem or inference.runner is not None:
                resting |= {segment, *(later.segment for later in inference.later)}
            else:  # it is being learnt
                busy.add(segment)
        if self._deferred.pending is not None:
            awaited.add(self._deferred.pending.next_call.segment)
        if busy:  # what it is read by may be what another one is read by
            resting = resting - {
                later.segment for inference in self._inferences.list_inferences() for later in inference.later
            }
        if awaited != self._awaited:
            self._awaited = awaited
            self._native.wait_for(sorted(awaited))
        if self._slowdown == 1.0 and resting - busy != self._resting:
            self._resting = resting - busy
            self._native.rest_in(sorted(self._resting))


def _will_record(inference: RecordedInference) -> bool:
    """Return True if its next run will be recorded, so that inputs and results have to be stored."""
    return inference.definition is None and not inference.problem and inference.runs >= REPEATS - 1


def _is_divided(inference: RecordedInference) -> bool:
    runner = inference.runner
    if runner is None or inference.problem:
        return False
    return runner.unavailable_reason(inference.examples) is None and not runner.stays_local(inference.examples)
