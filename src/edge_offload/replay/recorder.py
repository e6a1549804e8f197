"""The client's half: what becomes of the segments that the device records, in each execution mode.

======== ==============================================================================================================
per_op   every call is a round trip, and so is every query (Cricket)
cached   every call is a round trip, queries are answered here (semi-RRTO)
lazy     calls wait for a host read and travel as one segment
replay   as lazy, and the server runs speculatively: when the inputs of a known inference are there, it is asked to run
         the segments that will follow, so that every host read of the inference comes back in one answer
======== ==============================================================================================================

Nothing is ever taken from a speculation that is not exactly what the program then did: the same calls with the same
sizes on the same storages with the same host numbers. Otherwise it is rolled back, and the server runs what was issued.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import torch

from edge_offload.errors import EdgeOffloadError, LinkLost
from edge_offload.ir.trace.segments import Outcome, Step
from edge_offload.ir.trace.symbols import facts_of
from edge_offload.ir.trace.trace_graph import TraceGraph
from edge_offload.mode import Mode
from edge_offload.notices import notify
from edge_offload.protocol.arriving import Arriving
from edge_offload.protocol.messages import Message, tensor_bytes
from edge_offload.protocol.remote import Remote, SessionLost
from edge_offload.replay.definitions import Definitions
from edge_offload.replay.exchange import Exchange
from edge_offload.replay.flushed import ASYNC, BARRIER, DYNAMIC, INFER, READ, FlushedSegment
from edge_offload.replay.predict import Branches, Predictor
from edge_offload.replay.recovery import SessionRecovery
from edge_offload.replay.signatures import CompletedStep, SegmentInvocation
from edge_offload.replay.speculation import SpeculatedStep, Speculation
from edge_offload.replay.step_models import StepPlan


class Recorder(Exchange):
    """Handler of the native device: gets segments, returns what the host reads.

    Args:
        native: the extension module (its entries and segments are read when they are first used).
        remote: where segments run.
        mode: one of per_op, cached, lazy, replay.
        timeout_s: longest wait for one answer.
    """

    def __init__(self, native: Any, remote: Remote, mode: Mode, timeout_s: float = 120.0) -> None:
        super().__init__(remote, Definitions(native), timeout_s)
        self.native = native
        self.mode = mode
        self._generation = 0
        self._speculation: Optional[Speculation] = None
        self._has_read = False
        self._recovery = SessionRecovery()
        self._next = 0
        self._invocations: List[SegmentInvocation] = []
        self._deferred = 0
        self._freed_meanwhile: List[int] = []
        self._predictor = self._new_predictor()

    def switch(self, mode: Mode) -> None:
        """Go on in another mode, with nothing learnt about what comes next. Nothing must be pending on the device."""
        self._catch_up()
        if self._speculation is not None:
            self._settle(self._speculation.accepted)
        self.mode = mode
        self._predictor = self._new_predictor()

    def reconnect(self, remote: Remote) -> None:
        """Go on with another session, which knows nothing. Nothing must be pending on the device.

        Using a tensor from before raises LinkLost: what it held is gone.
        """
        self._start_with(remote)
        self._forget_definitions()
        self._speculation, self._has_read = None, False
        self._recovery = SessionRecovery(self._next)
        self.switch(self.mode)

    # -- called by the device, under its lock

    def flush(self, *flushed: Any) -> Any:
        """A segment ended: have it run, and return the tensor read or the results asked for.

        Args:
            flushed: see :class:`~edge_offload.replay.flushed.FlushedSegment`.
        """
        return self._ended(FlushedSegment(*flushed))

    def _ended(self, flushed: FlushedSegment) -> Any:
        self._freed += flushed.freed
        self._recovery.freed(flushed.freed)
        self._next = flushed.base
        invocation: Optional[SegmentInvocation] = None
        failed, first = True, not self._has_read
        try:
            if flushed.calls:
                if self._failed is None:
                    self._renew(flushed.generation)
                invocation = SegmentInvocation.of(flushed)
                self._recovery.check_generators(invocation, self._definitions.signatures)
            forgotten: Optional[SessionLost] = None
            try:
                result = self._outcome(invocation, flushed)
            except SessionLost as error:
                forgotten = error
            if forgotten is not None:
                result = self._put_back(forgotten, invocation, flushed)
            failed = False
        finally:
            self._recovery.done(invocation, self._definitions.signatures, first, not self._invocations, failed)
        return result

    def _outcome(self, invocation: Optional[SegmentInvocation], flushed: FlushedSegment) -> Any:
        """The tensor or the results that the device gets for a segment, or for none."""
        if self._failed is not None:
            raise self._failed
        if invocation is None:
            return self._barrier() if flushed.reason == BARRIER else None
        self.counters.segments += 1
        if self._predictor is None:
            outcome = self._run([invocation], None)
        else:
            try:
                outcome = self._predicted(invocation, flushed.freed)
            except BaseException:
                self._invocations, self._deferred = [], 0
                raise
        return outcome.tensor if flushed.reason == READ else outcome.results

    def _put_back(self, error: SessionLost, invocation: Optional[SegmentInvocation], flushed: FlushedSegment) -> Any:
        """The server was restarted: give a new session what the program had uploaded, and go on with this step.

        What was computed on the device is gone; using it raises LinkLost.
        """
        recovery, signatures = self._recovery, self._definitions.signatures
        invocations, freed = recovery.to_rerun(invocation)
        self.native.expect(-1)
        self._forget_definitions()
        self._unsettled, self._speculation = None, None
        self._outstanding.clear()
        try:
            if flushed.generation != self._generation:
                raise LinkLost("the device has forgotten its calls at the same time")
            self.remote.renew()
            for message in recovery.messages(invocations[0].base if invocations else flushed.base, error.cause):
                answer = self._wait(self.remote.submit(message.to_wire(), keep=True), blocked=False)
                if answer.error is not None:
                    raise answer.error
        except (EdgeOffloadError, NotImplementedError) as problem:
            self._failed = LinkLost(f"{error.cause} ({problem})", remedy=error.remedy)
            raise self._failed from None
        self._failed, self._forget, self._freed = None, True, freed
        self._predictor = self._new_predictor()
        notify(f"the server was restarted: {len(recovery.uploads)} tensors were put back on its device")
        for each in invocations:
            recovery.check_generators(each, signatures)
        if not invocations:
            return self._outcome(None, flushed)
        outcome = self._run(invocations, None)
        return outcome.tensor if flushed.reason == READ else outcome.results

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """The uploads of the expected segment are complete, but for some that have always been the same.

        The server starts before the program gets to the read.

        The server starts before the program gets to the read.
        """
        predictor = self._predictor
        if predictor is None or self._speculation is not None or self._failed is not None or self._invocations:
            return
        plan = predictor.next()
        branches = predictor.branches()
        if plan is None or branches is None or plan.node.segment != segment:
            return
        opens = predictor.opens(uploads=True)
        start = base if opens else predictor.start
        known = dict(plan.node.live_at(base, start))
        if any(known.get(canonical) != number for canonical, number in zip(live[::2], live[1::2])):
            return
        graph = TraceGraph([], branches.first, base, start, [] if opens else list(predictor.history))
        assumed = plan.uploads[len(payloads) :]
        made = [tensor_bytes(payload) for payload in payloads]
        graph.payloads = self._definitions.uploads([*made, *(item for item in assumed if item is not None)])
        try:
            self._speculate(branches, graph, Message())
        except SessionLost:
            return  # the read that follows sees to it
        assert self._speculation is not None
        self._speculation.assumed = assumed

    def _expect(self, plan: Optional[StepPlan]) -> None:
        """Have the device announce ``plan``'s segment when everything is there that is not known before."""
        if plan is None or plan.node.segment is None:
            self.native.expect(-1)
            return
        fresh = [number for number, data in enumerate(plan.uploads, 1) if data is None]
        self.native.expect(plan.node.segment, max(fresh, default=len(plan.uploads)))

    # -- running

    def _predicted(self, invocation: SegmentInvocation, freed: List[int]) -> Outcome:
        """The outcome of a segment where steps are learnt and run speculatively."""
        assert self._predictor is not None
        before = self._invocations[-1] if self._invocations else None
        self._freed_meanwhile = self._freed_meanwhile + freed if before is not None else []
        invocation.uploads = bool(invocation.payloads) or (before is not None and before.uploads)
        invocation.calls = before.calls if before is not None else 0
        self._invocations.append(invocation)
        self._deferred += 1
        if invocation.reason == INFER:
            described = self._described(invocation)
            return described if described is not None else self._run(self._invocations[-self._deferred :], None)
        opens = self._predictor.opens(invocation.uploads)
        done = self._definitions.signatures.done(self._invocations, self._freed_meanwhile, opens)
        self._predictor.begin(done)
        ran = self._accept(done)
        if ran is not None:
            outcome, facts = ran.outcome, ran.facts
        else:
            outcome = self._run(self._invocations[-self._deferred :], done)
            facts = facts_of(outcome, done.signature.integers[-1])
        self._invocations, self._deferred = [], 0
        done.integers, done.kind = facts
        self._predictor.add(done, confirmed=ran is not None)
        if self._predictor.full and self._speculation is None:
            self._predictor = self._new_predictor()
        elif self._speculation is None:
            self._expect(self._predictor.next())
        return outcome

    def _run(self, invocations: Sequence[SegmentInvocation], done: Optional[CompletedStep]) -> Outcome:
        """Have segments run that did not run speculatively; after ``done`` the server is to go on by itself."""
        message = Message()
        fresh = False
        for invocation in invocations:
            self._recovery.check(invocation.live)
        for invocation in invocations:
            fresh = self._definitions.segment(invocation.segment, message, invocation.definition) or fresh
            describe = invocation.reason in (INFER, DYNAMIC) and invocation is invocations[-1]
            message.steps.append(_step(invocation, describe))
        message.speculative_from = len(invocations)
        reason = invocations[-1].reason
        predictor = self._predictor
        branches = predictor.branches(done) if predictor is not None and done is not None else None
        if predictor is not None and branches is not None and done is not None and reason in (READ, DYNAMIC):
            graph = TraceGraph([], branches.first, None, predictor.start, list(predictor.history))
            future = self._speculate(branches, graph, message)
            assert self._speculation is not None
            self._speculation.last = done.signature.integers[-1]
        else:
            # a program that starts uploads its weights: before it reads anything, or so much that it cannot wait
            future = self._submit(message, keep=fresh or reason == ASYNC or not self._has_read)
        self._deferred = 0
        self._has_read = self._has_read or reason == READ
        if reason == ASYNC:
            self._await_later(future)
            return Outcome()
        self._barrier(blocked=False)
        answer = self._wait(future, outcomes=len(invocations))
        if self._speculation is not None:
            self._speculation.waited = True
        return self._check(answer, len(invocations))

    def _speculate(self, branches: Branches, graph: TraceGraph, message: Message) -> Arriving:
        graph.nodes = self._definitions.nodes(branches, message)
        message.course = graph
        future = self._submit(message)
        self._speculation = Speculation(branches.plans, branches.edges, branches.first, graph.since, future)
        return future

    def _ran_next(self, speculation: Speculation) -> Optional[SpeculatedStep]:
        """The next step that ran speculatively, if there is one.

        The server sends what it has as it goes: waiting for more of the same answer is no other round trip.
        """
        if len(speculation.ran) <= speculation.accepted or not speculation.waited:
            answer = self._wait(
                speculation.future, blocked=not speculation.waited, outcomes=0, ran=speculation.accepted + 1
            )
            speculation.waited = True
            speculation.take_in(answer, self._definitions.signatures)
        return speculation.ran[speculation.accepted] if speculation.accepted < len(speculation.ran) else None

    def _described(self, invocation: SegmentInvocation) -> Optional[Outcome]:
        """The results of the last call of a segment that ends inside a step, if that ran speculatively.

        They depend on nothing but the call's key. Whether all of the step is as expected is seen when it ends.
        """
        speculation, predictor = self._speculation, self._predictor
        if speculation is None or predictor is None:
            return None
        ran = self._ran_next(speculation)
        if ran is not None:
            # kept: the device may have forgotten what it consists of before it has to be run after all
            invocation.definition = self._definitions.signatures.definition(invocation.segment)
            invocation.calls += len(invocation.definition.calls)
            number = invocation.calls - 1
            call = invocation.definition.calls[-1]
            skeletons, _ = predictor.signatures.calls(ran.plan.signature)
            results = ran.outcome.described.get(number)
            alike = number < len(skeletons) and skeletons[number] == call.skeleton
            if results is not None and alike and ran.integers[number] == call.integers:
                return Outcome(results=results)
        self._abandon(speculation, len(speculation.future.so_far.ran))
        return None

    def _accept(self, done: CompletedStep) -> Optional[SpeculatedStep]:
        """The next speculated step if it is exactly ``done``; otherwise the speculation is abandoned."""
        speculation, predictor = self._speculation, self._predictor
        if speculation is None or predictor is None:
            return None
        if speculation.accepted >= len(speculation.ran):
            speculation.take_in(speculation.future.so_far, self._definitions.signatures)
        if not speculation.may_go_on_with(done, predictor.start):
            self._abandon(speculation, speculation.accepted + 1)  # whatever runs, it is not this
            return None
        ran = self._ran_next(speculation)
        if ran is not None and ran.base == done.base and ran.plan.same_as(done, predictor.start, ran.integers):
            speculation.accepted += 1
            self.counters.speculated += 1
            self.counters.accepted += 1
            self._freed += [done.base + number for number in done.dead - ran.plan.dead]
            if speculation.future.ended and speculation.accepted == len(speculation.future.so_far.ran):
                self._settle(speculation.accepted)
            return ran
        self._abandon(speculation, len(speculation.future.so_far.ran))
        return None

    def _abandon(self, speculation: Speculation, ran: int) -> None:
        self.counters.speculated += ran - speculation.accepted
        self.counters.undone += ran - speculation.accepted
        self._settle(speculation.accepted)

    def _settle(self, accepted: int) -> None:
        self._unsettled = accepted
        self._speculation = None

    def _renew(self, generation: int) -> None:
        """The device has forgotten its calls and segments (there were too many): so must everyone."""
        if generation == self._generation:
            return
        self._generation = generation
        self._recovery.done(None, self._definitions.signatures, first=False, over=True, failed=True)
        self._recovery.uploads.renumber()
        self._catch_up()
        self._forget_definitions()
        self._forget = True
        if self._speculation is not None:
            self._settle(self._speculation.accepted)
        self._predictor = self._new_predictor()

    def _new_predictor(self) -> Optional[Predictor]:
        self._definitions.renumber()
        known = self._definitions
        return Predictor(known.signatures, known.call) if self.mode is Mode.REPLAY else None

    def _catch_up(self) -> None:
        """Have segments run for which only an abandoned speculation had answers."""
        deferred = self._invocations[-self._deferred :] if self._deferred else []
        self._invocations = []
        if deferred:
            if self._speculation is not None:
                self._settle(self._speculation.accepted)
            self._run(deferred, None)

    def _forget_definitions(self) -> None:
        self._definitions.forget()
        self._invocations, self._deferred = [], 0

    def query(self) -> None:
        """A device query of the program, which costs a round trip where every call does."""
        if self.mode is Mode.PER_OP and self._failed is None:
            self._wait(self._submit(Message()))


def _step(invocation: SegmentInvocation, describe: bool) -> Step:
    payloads = [tensor_bytes(payload) for payload in invocation.payloads]
    return Step(
        invocation.segment,
        invocation.base,
        invocation.live,
        sorted(invocation.dead),
        invocation.numbers,
        payloads,
        describe,
    )
