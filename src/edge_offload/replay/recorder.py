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

import time
from typing import Any, Callable, List, Optional, Protocol, Sequence

import torch

from edge_offload.errors import Disagreement, EdgeOffloadError, LinkLost
from edge_offload.mode import Mode
from edge_offload.notices import Once, notify
from edge_offload.protocol.messages import DeviceMessage
from edge_offload.protocol.remote import Remote, SessionEnded, SessionLost
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.exchange import ExchangeCounters
from edge_offload.replay.flushed import ASYNC, BARRIER, READ, FlushedSegment
from edge_offload.replay.recovery.copies import UploadCopies
from edge_offload.replay.signatures import SegmentInvocation
from edge_offload.replay.speculative import Speculative
from edge_offload.replay.strategy import Strategy

#: Seconds until the first attempt to return to a lost server; the interval doubles up to the second number.
RETRY_S, MAX_RETRY_S = 5.0, 60.0
MakeStrategy = Callable[[Mode, SegmentDispatcher], Strategy]


class StandIn(Protocol):
    """Executor that takes the place of a lost server.

    Attributes:
        copies: keeps the program's large uploads for it.
    """

    copies: UploadCopies

    def start(self) -> Remote:
        """An executor of this machine.

        Raises:
            LinkLost: it does not start.
        """


def strategy_of(mode: Mode, dispatcher: SegmentDispatcher) -> Strategy:
    """Chooses the strategy for one of per_op, cached, lazy, replay."""
    return (Speculative if mode is Mode.REPLAY else Strategy)(dispatcher)


class Recorder:
    """Handler of the native device: gets segments, returns what the host reads.

    Args:
        native: the extension module.
        remote: where segments run.
        mode: the execution mode.
        make: makes the strategy of a mode.
        timeout_s: longest wait for one answer (seconds).
        stand_in: what takes the server's place while it is lost; None: nothing does.

    Attributes:
        dispatcher, strategy: who has segments run, and how.
    """

    def __init__(
        self,
        native: Any,
        remote: Remote,
        mode: Mode,
        make: MakeStrategy = strategy_of,
        timeout_s: float = 120.0,
        stand_in: Optional[StandIn] = None,
    ) -> None:
        self.mode = mode
        self.dispatcher = SegmentDispatcher(native, remote, timeout_s)
        if stand_in is not None:
            self.dispatcher.recovery.copies = stand_in.copies
        self._stand_in = stand_in
        self._absent: Optional[Remote] = None
        self._retry_at_s = 0.0
        self._retry_every_s = RETRY_S
        self._once = Once()
        self._make = make
        self.strategy = make(mode, self.dispatcher)

    @property
    def counters(self) -> ExchangeCounters:
        """Costs of the program so far."""
        return self.dispatcher.exchange.counters

    @property
    def learning_s(self) -> float:
        """Processor time that learning has taken so far."""
        return self.strategy.learning_s

    @property
    def remote(self) -> Remote:
        """Remote on which segments run."""
        return self.dispatcher.exchange.remote

    @property
    def failed(self) -> bool:
        """True if the connection is lost; every later call raises the cause."""
        return self.dispatcher.exchange.failure is not None

    def limit_waits(self, timeout_s: float) -> None:
        """Wait for one answer no longer than this (seconds)."""
        self.dispatcher.exchange.timeout_s = timeout_s

    def switch(self, mode: Mode) -> None:
        """Go on in another mode, with nothing learnt about what comes next. Nothing must be pending on the device."""
        self.strategy.settle()
        self.mode = mode
        self.strategy = self._make(mode, self.dispatcher)
        self.strategy.reset()

    def reconnect(self, remote: Remote) -> None:
        """Go on with another session, which knows nothing. Nothing must be pending on the device.

        Using a tensor from before raises LinkLost: what it held is gone.
        """
        self.dispatcher.restart(remote)
        self.strategy.reset()

    def query(self) -> None:
        """A device query of the program, which costs a round trip where every call does."""
        if self.mode is Mode.PER_OP and not self.failed:
            exchange = self.dispatcher.exchange
            try:
                exchange.await_answer(exchange.submit_message(DeviceMessage()))
            except LinkLost as error:
                if not self._can_recover(error):
                    raise  # else the next segment sees to it

    def renew(self, generation: int) -> None:
        """Drops the calls and segments when the device has dropped its own (there were too many)."""
        dispatcher = self.dispatcher
        if generation == dispatcher.generation:
            return
        dispatcher.generation = generation
        dispatcher.recovery.note_invocation(
            None, dispatcher.definitions.signatures, first=False, over=True, failed=True
        )
        dispatcher.recovery.log.reset_segments()
        self.strategy.settle()
        dispatcher.definitions.reset()
        dispatcher.exchange.reset_definitions = True
        self.strategy.reset()

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
        flushed, dispatcher = FlushedSegment(*fields), self.dispatcher
        if self._absent is not None and time.monotonic() >= self._retry_at_s:
            self._return_to_server(flushed)
        freed = flushed.freed if self.failed else self.strategy.freed_before(flushed)
        if flushed.calls and not self.failed:
            self.renew(flushed.generation)  # this segment still uses what was freed
        dispatcher.exchange.freed += freed
        dispatcher.recovery.note_freed(freed)
        dispatcher.next_storage = flushed.base
        invocation: Optional[SegmentInvocation] = None
        failed, first, wrong = True, not dispatcher.has_read, dispatcher.exchange.disagreed
        try:
            if flushed.calls:
                invocation = SegmentInvocation.from_flushed(flushed)
                dispatcher.recovery.check_generators(invocation, dispatcher.definitions.signatures)
            lost: Optional[LinkLost] = None
            try:
                result = self._run_invocation(invocation, flushed.reason, freed)
            except LinkLost as error:
                if not self._can_recover(error):
                    raise
                lost = error
            if lost is not None:
                result = self._recover_session(lost, invocation, flushed)
            failed = False
        except Disagreement as error:
            wrong.add(error.operator)
            raise
        finally:
            dispatcher.recovery.note_invocation(
                invocation, dispatcher.definitions.signatures, first, not self.strategy.in_step, failed
            )
            while wrong and (failed or flushed.reason != ASYNC):  # in the middle of a call none is forgotten
                self._distrust_operator(wrong.pop())
        return result

    def _run_invocation(self, invocation: Optional[SegmentInvocation], reason: int, freed: List[int]) -> Any:
        """The tensor or the results that the device gets for a segment, or for none."""
        exchange = self.dispatcher.exchange
        if exchange.failure is not None:
            raise exchange.failure
        if invocation is None:
            return exchange.await_outstanding() if reason == BARRIER else None
        exchange.counters.segments += 1
        outcome = self.strategy.run(invocation, freed)
        return outcome.tensor if reason == READ else outcome.results

    def _distrust_operator(self, operator: str) -> None:
        """Ask the server from now on what results of ``operator`` look like: it has found them to lie otherwise."""
        self.dispatcher.native.distrust(operator)
        self._once.notify(
            f"results of {operator} lie otherwise than was worked out here: where the program goes by that, the last "
            "digits of this inference are not its own; from the next one on they are"
        )

    # -- when the session is lost

    def _can_recover(self, error: LinkLost) -> bool:
        """True if the session was lost, and there may be another."""
        if error is not self.dispatcher.exchange.failure:
            return False
        return isinstance(error, SessionLost) or (self._stand_in is not None and self._absent is None)

    def _recover_session(self, lost: LinkLost, invocation: Optional[SegmentInvocation], flushed: FlushedSegment) -> Any:
        """Go on with this step in a session of the server, or of this machine, that is given what the program held.

        What cannot be had again is gone; using it raises LinkLost.
        """
        dispatcher, exchange = self.dispatcher, self.dispatcher.exchange
        invocations, freed = dispatcher.recovery.to_rerun(invocation)
        before = invocations[0].base if invocations else flushed.base
        problem = lost
        if flushed.generation != dispatcher.generation:
            problem = LinkLost(f"{lost.cause} (the device has forgotten its calls at the same time)")
        elif isinstance(lost, SessionLost):
            try:
                exchange.remote.renew()
                self._put_back(exchange.remote, before, lost.cause, freed)
                happened = lost.cause if isinstance(lost, SessionEnded) else "the server was restarted"
                notify(f"{happened}: {dispatcher.recovery.describe_restored()}")
                return self._rerun_step(invocations, flushed.reason)
            except (EdgeOffloadError, NotImplementedError) as error:
                repeated = isinstance(error, EdgeOffloadError) and error.cause == lost.cause
                problem = LinkLost(f"{lost.cause} ({'twice' if repeated else error})", remedy=lost.remedy)
        if self._stand_in is None or self._absent is not None or flushed.generation != dispatcher.generation:
            exchange.failure = problem
            raise problem from None
        absent = exchange.remote
        try:
            self._put_back(self._stand_in.start(), before, problem.cause, freed)
        except (EdgeOffloadError, NotImplementedError, OSError) as error:
            exchange.failure = LinkLost(f"{problem.cause} (and this machine cannot go on: {error})")
            raise exchange.failure from None
        self._absent, self._retry_at_s = absent, time.monotonic() + self._retry_every_s
        notify(f"{problem.cause}: computed on this machine from here on; {dispatcher.recovery.describe_restored()}")
        return self._rerun_step(invocations, flushed.reason)

    def _return_to_server(self, flushed: FlushedSegment) -> None:
        """Go back to the server if it is there again, and nothing would be lost by that."""
        absent, exchange, dispatcher = self._absent, self.dispatcher.exchange, self.dispatcher
        self._retry_every_s = min(2.0 * self._retry_every_s, MAX_RETRY_S)
        self._retry_at_s = time.monotonic() + self._retry_every_s
        if absent is None or self.failed or self.strategy.in_step or flushed.generation != dispatcher.generation:
            return
        if not absent.can_renew() or not dispatcher.recovery.is_complete:
            return
        executor = exchange.remote
        try:
            exchange.await_outstanding(blocked=False)
            absent.renew()
        except EdgeOffloadError as error:
            self._once.notify(f"the server is back, and this machine goes on without it: {error}")
            return
        self._absent = None
        try:
            self._put_back(absent, flushed.base, "the program went back to its server", [])
            notify(f"the server is back: {dispatcher.recovery.describe_restored()}")
        except EdgeOffloadError as error:  # as if it had been lost again: a stand-in is given what was put there
            exchange.restart(absent)
            exchange.failure = error if isinstance(error, LinkLost) else LinkLost(str(error))
        executor.close()

    def _put_back(self, remote: Remote, before: int, cause: str, freed: List[int]) -> None:
        """Give a session that knows nothing what the program held before the storage ``before``.

        Raises:
            EdgeOffloadError: it cannot be given.
        """
        dispatcher, exchange = self.dispatcher, self.dispatcher.exchange
        dispatcher.native.expect(-1)
        dispatcher.native.read_alone()
        dispatcher.definitions.reset()
        self.strategy.reset()
        exchange.restart(remote)
        exchange.put_back(dispatcher.recovery.restore_messages(before, cause))
        exchange.failure, exchange.reset_definitions, exchange.freed = (
            None,
            True,
            [*freed, *dispatcher.recovery.dropped_storages()],
        )

    def _rerun_step(self, invocations: Sequence[SegmentInvocation], reason: int) -> Any:
        """The outcome of the step that was under way when the session was lost."""
        dispatcher = self.dispatcher
        for each in invocations:
            dispatcher.recovery.check_generators(each, dispatcher.definitions.signatures)
        if not invocations:
            return self._run_invocation(None, reason, [])
        outcome = dispatcher.run(invocations)
        return outcome.tensor if reason == READ else outcome.results
