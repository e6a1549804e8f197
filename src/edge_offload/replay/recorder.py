"""The client's half: what becomes of the segments that the device records, in each execution mode.

======== ==============================================================================================================
per_op   every call is a round trip, and so is every query (Cricket)
cached   every call is a round trip, queries are answered here (semi-RRTO)
lazy     calls wait for a host read and travel as one segment
replay   as lazy, and the server runs speculatively what will follow (:mod:`edge_offload.replay.speculative`)
split    known inferences are computed by robot and server together (:mod:`edge_offload.modes.split.unmodified`)
======== ==============================================================================================================
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch

from edge_offload.errors import EdgeOffloadError, LinkLost
from edge_offload.mode import Mode
from edge_offload.notices import notify
from edge_offload.protocol.messages import Message
from edge_offload.protocol.remote import Remote, SessionLost
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.exchange import Counters
from edge_offload.replay.flushed import BARRIER, READ, FlushedSegment
from edge_offload.replay.signatures import SegmentInvocation
from edge_offload.replay.speculative import Speculative
from edge_offload.replay.strategy import Strategy

MakeStrategy = Callable[[Mode, SegmentDispatcher], Strategy]


def strategy_of(mode: Mode, dispatcher: SegmentDispatcher) -> Strategy:
    """How segments are run in one of per_op, cached, lazy, replay."""
    return (Speculative if mode is Mode.REPLAY else Strategy)(dispatcher)


class Recorder:
    """Handler of the native device: gets segments, returns what the host reads.

    Args:
        native: the extension module.
        remote: where segments run.
        mode: the execution mode.
        make: makes the strategy of a mode.
        timeout_s: longest wait for one answer (seconds).

    Attributes:
        dispatcher, strategy: who has segments run, and how.
    """

    def __init__(
        self, native: Any, remote: Remote, mode: Mode, make: MakeStrategy = strategy_of, timeout_s: float = 120.0
    ) -> None:
        self.mode = mode
        self.dispatcher = SegmentDispatcher(native, remote, timeout_s)
        self._make = make
        self.strategy = make(mode, self.dispatcher)

    @property
    def counters(self) -> Counters:
        """What the program has cost so far."""
        return self.dispatcher.exchange.counters

    @property
    def remote(self) -> Remote:
        """Where segments run."""
        return self.dispatcher.exchange.remote

    @property
    def failed(self) -> bool:
        """Whether the connection is lost; every later call raises why."""
        return self.dispatcher.exchange.failure is not None

    def limit_waits(self, timeout_s: float) -> None:
        """Wait for one answer no longer than this (seconds)."""
        self.dispatcher.exchange.timeout_s = timeout_s

    def switch(self, mode: Mode) -> None:
        """Go on in another mode, with nothing learnt about what comes next. Nothing must be pending on the device."""
        self.strategy.settle()
        self.mode = mode
        self.strategy = self._make(mode, self.dispatcher)
        self.strategy.forget()

    def reconnect(self, remote: Remote) -> None:
        """Go on with another session, which knows nothing. Nothing must be pending on the device.

        Using a tensor from before raises LinkLost: what it held is gone.
        """
        self.dispatcher.restart(remote)
        self.strategy.forget()

    def query(self) -> None:
        """A device query of the program, which costs a round trip where every call does."""
        if self.mode is Mode.PER_OP and not self.failed:
            exchange = self.dispatcher.exchange
            exchange.wait(exchange.submit(Message()))

    def renew(self, generation: int) -> None:
        """The device has forgotten its calls and segments (there were too many): so must everyone."""
        known = self.dispatcher
        if generation == known.generation:
            return
        known.generation = generation
        known.recovery.done(None, known.definitions.signatures, first=False, over=True, failed=True)
        known.recovery.uploads.renumber()
        self.strategy.settle()
        known.definitions.forget()
        known.exchange.forget = True
        self.strategy.forget()

    # -- called by the device, under its lock

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """The uploads of the expected segment are complete, but for some that have always been the same."""
        if not self.failed:
            self.strategy.announce(segment, base, live, payloads)

    def flush(self, *fields: Any) -> Any:
        """A segment ended: have it run, and return the tensor read or the results asked for.

        Args:
            fields: see :class:`~edge_offload.replay.flushed.FlushedSegment`.

        Raises:
            EdgeOffloadError: it could not be run.
        """
        flushed, known = FlushedSegment(*fields), self.dispatcher
        freed = flushed.freed if self.failed else self.strategy.before(flushed)
        known.exchange.freed += freed
        known.recovery.freed(freed)
        known.next_storage = flushed.base
        invocation: Optional[SegmentInvocation] = None
        failed, first = True, not known.has_read
        try:
            if flushed.calls:
                if not self.failed:
                    self.renew(flushed.generation)
                invocation = SegmentInvocation.of(flushed)
                known.recovery.check_generators(invocation, known.definitions.signatures)
            lost: Optional[SessionLost] = None
            try:
                result = self._outcome(invocation, flushed.reason, freed)
            except SessionLost as error:
                lost = error
            if lost is not None:
                result = self._recover(lost, invocation, flushed)
            failed = False
        finally:
            known.recovery.done(invocation, known.definitions.signatures, first, not self.strategy.in_step, failed)
        return result

    def _outcome(self, invocation: Optional[SegmentInvocation], reason: int, freed: List[int]) -> Any:
        """The tensor or the results that the device gets for a segment, or for none."""
        exchange = self.dispatcher.exchange
        if exchange.failure is not None:
            raise exchange.failure
        if invocation is None:
            return exchange.barrier() if reason == BARRIER else None
        exchange.counters.segments += 1
        outcome = self.strategy.run(invocation, freed)
        return outcome.tensor if reason == READ else outcome.results

    def _recover(self, lost: SessionLost, invocation: Optional[SegmentInvocation], flushed: FlushedSegment) -> Any:
        """The server was restarted: give a new session what the program had uploaded, and go on with this step.

        What was computed on the device is gone; using it raises LinkLost.
        """
        known, exchange = self.dispatcher, self.dispatcher.exchange
        recovery, signatures = known.recovery, known.definitions.signatures
        invocations, freed = recovery.to_rerun(invocation)
        known.native.expect(-1)
        known.definitions.forget()
        self.strategy.forget()
        exchange.unsettled = None
        exchange.drop_outstanding()
        try:
            if flushed.generation != known.generation:
                raise LinkLost("the device has forgotten its calls at the same time")
            exchange.remote.renew()
            for message in recovery.messages(invocations[0].base if invocations else flushed.base, lost.cause):
                answer = exchange.wait(exchange.remote.submit(message.to_wire(), keep=True), blocked=False)
                if answer.error is not None:
                    raise answer.error
        except (EdgeOffloadError, NotImplementedError) as problem:
            exchange.failure = LinkLost(f"{lost.cause} ({problem})", remedy=lost.remedy)
            raise exchange.failure from None
        exchange.failure, exchange.forget, exchange.freed = None, True, freed
        notify(f"the server was restarted: {len(recovery.uploads)} tensors were put back on its device")
        for each in invocations:
            recovery.check_generators(each, signatures)
        if not invocations:
            return self._outcome(None, flushed.reason, [])
        outcome = known.run(invocations)
        return outcome.tensor if flushed.reason == READ else outcome.results
