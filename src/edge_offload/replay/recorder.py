"""The client's half: what becomes of the segments that the device records, in each execution mode.

======== ==============================================================================================================
per_op   every call is a round trip, and so is every query (Cricket)
cached   every call is a round trip, queries are answered here (semi-RRTO)
lazy     calls wait for a host read and travel as one segment
replay   as lazy, and the server runs ahead: when the inputs of a known inference have been copied, it is asked to run
         the segments that will follow, so that every host read of the inference comes back in one answer
======== ==============================================================================================================

Nothing is ever taken from a speculation that is not exactly what the program then did: the same calls with the same
sizes on the same storages with the same host numbers. Otherwise the server undoes it and runs what was really issued.
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
from edge_offload.replay.plans import Plan
from edge_offload.replay.predict import Branches, Predictor
from edge_offload.replay.recovery import SessionRecovery
from edge_offload.replay.signatures import CompletedStep, SegmentInvocation
from edge_offload.replay.speculation import Ran, Speculation


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
        self._standby = SessionRecovery()
        self._next = 0
        self._pieces: List[SegmentInvocation] = []
        self._owed = 0
        self._dropped: List[int] = []
        self._predictor = self._new_predictor()

    def switch(self, mode: Mode) -> None:
        """Go on in another mode, with nothing learnt about what comes next. Nothing must be pending on the device."""
        self._catch_up()
        if self._speculation is not None:
            self._settle(self._speculation.taken)
        self.mode = mode
        self._predictor = self._new_predictor()

    def reconnect(self, remote: Remote) -> None:
        """Go on with another session, which knows nothing. Nothing must be pending on the device.

        Using a tensor from before raises LinkLost: what it held is gone.
        """
        self._start_with(remote)
        self._forget_definitions()
        self._speculation, self._has_read = None, False
        self._standby = SessionRecovery(self._next)
        self.switch(self.mode)

    # -- called by the device, under its lock

    def flush(self, *handed: Any) -> Any:
        """A segment ended: have it run, and return the tensor read or the results asked for.

        Args:
            handed: see :class:`~edge_offload.replay.flushed.FlushedSegment`.
        """
        return self._ended(FlushedSegment(*handed))

    def _ended(self, handed: FlushedSegment) -> Any:
        self._freed += handed.freed
        self._standby.freed(handed.freed)
        self._next = handed.base
        piece: Optional[SegmentInvocation] = None
        failed, first = True, not self._has_read
        try:
            if handed.calls:
                if self._failed is None:
                    self._renew(handed.generation)
                piece = SegmentInvocation.of(handed)
                self._standby.check_generators(piece, self._definitions.forms)
            forgotten: Optional[SessionLost] = None
            try:
                result = self._outcome(piece, handed)
            except SessionLost as error:
                forgotten = error
            if forgotten is not None:
                result = self._put_back(forgotten, piece, handed)
            failed = False
        finally:
            self._standby.done(piece, self._definitions.forms, first, not self._pieces, failed)
        return result

    def _outcome(self, piece: Optional[SegmentInvocation], handed: FlushedSegment) -> Any:
        """What the device is to be told of a segment, or of none."""
        if self._failed is not None:
            raise self._failed
        if piece is None:
            return self._barrier() if handed.reason == BARRIER else None
        self.counters.segments += 1
        if self._predictor is None:
            outcome = self._run([piece], None)
        else:
            try:
                outcome = self._predicted(piece, handed.freed)
            except BaseException:
                self._pieces, self._owed = [], 0
                raise
        return outcome.tensor if handed.reason == READ else outcome.results

    def _put_back(self, error: SessionLost, piece: Optional[SegmentInvocation], handed: FlushedSegment) -> Any:
        """The server was restarted: give a new session what the program had uploaded, and go on with this step.

        What was computed on the device is gone; using it raises LinkLost.
        """
        standby, forms = self._standby, self._definitions.forms
        pieces, freed = standby.again(piece)
        self.native.expect(-1)
        self._forget_definitions()
        self._unsettled, self._speculation = None, None
        self._outstanding.clear()
        try:
            if handed.generation != self._generation:
                raise LinkLost("the device has forgotten its calls at the same time")
            self.remote.renew()
            for message in standby.messages(pieces[0].base if pieces else handed.base, error.cause):
                answer = self._wait(self.remote.submit(message.to_wire(), keep=True), blocked=False)
                if answer.error is not None:
                    raise answer.error
        except (EdgeOffloadError, NotImplementedError) as problem:
            self._failed = LinkLost(f"{error.cause} ({problem})", remedy=error.remedy)
            raise self._failed from None
        self._failed, self._forget, self._freed = None, True, freed
        self._predictor = self._new_predictor()
        notify(f"the server was restarted: {len(standby.retained)} tensors were put back on its device")
        for each in pieces:
            standby.check_generators(each, forms)
        if not pieces:
            return self._outcome(None, handed)
        outcome = self._run(pieces, None)
        return outcome.tensor if handed.reason == READ else outcome.results

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """The uploads of the expected segment are complete, but for some that have always been the same: the server
        starts before the program gets to the read.
        """
        predictor = self._predictor
        if predictor is None or self._speculation is not None or self._failed is not None or self._pieces:
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
        course = TraceGraph([], branches.first, base, start, [] if opens else list(predictor.since))
        assumed = plan.uploads[len(payloads) :]
        made = [tensor_bytes(payload) for payload in payloads]
        course.payloads = self._definitions.uploads([*made, *(item for item in assumed if item is not None)])
        try:
            self._speculate(branches, course, Message())
        except SessionLost:
            return  # the read that follows sees to it
        assert self._speculation is not None
        self._speculation.assumed = assumed

    def _expect(self, plan: Optional[Plan]) -> None:
        """Have the device announce ``plan``'s segment when everything is there that is not known before."""
        if plan is None or plan.node.segment is None:
            self.native.expect(-1)
            return
        fresh = [number for number, data in enumerate(plan.uploads, 1) if data is None]
        self.native.expect(plan.node.segment, max(fresh, default=len(plan.uploads)))

    # -- running

    def _predicted(self, piece: SegmentInvocation, freed: List[int]) -> Outcome:
        """What becomes of a segment where steps are learnt and run ahead."""
        assert self._predictor is not None
        before = self._pieces[-1] if self._pieces else None
        self._dropped = self._dropped + freed if before is not None else []
        piece.uploads = bool(piece.payloads) or (before is not None and before.uploads)
        piece.calls = before.calls if before is not None else 0
        self._pieces.append(piece)
        self._owed += 1
        if piece.reason == INFER:
            described = self._described(piece)
            return described if described is not None else self._run(self._pieces[-self._owed :], None)
        opens = self._predictor.opens(piece.uploads)
        done = self._definitions.forms.done(self._pieces, self._dropped, opens)
        self._predictor.begin(done)
        ran = self._taken(done)
        if ran is not None:
            outcome, facts = ran.outcome, ran.facts
        else:
            outcome = self._run(self._pieces[-self._owed :], done)
            facts = facts_of(outcome, done.shape.integers[-1])
        self._pieces, self._owed = [], 0
        done.integers, done.kind = facts
        self._predictor.add(done, confirmed=ran is not None)
        if self._predictor.full and self._speculation is None:
            self._predictor = self._new_predictor()
        elif self._speculation is None:
            self._expect(self._predictor.next())
        return outcome

    def _run(self, pieces: Sequence[SegmentInvocation], done: Optional[CompletedStep]) -> Outcome:
        """Have segments run that the server has not run ahead; after ``done`` it is to go on by itself."""
        message = Message()
        fresh = False
        for piece in pieces:
            self._standby.check(piece.live)
        for piece in pieces:
            fresh = self._definitions.segment(piece.segment, message, piece.definition) or fresh
            describe = piece.reason in (INFER, DYNAMIC) and piece is pieces[-1]
            message.steps.append(_step(piece, describe))
        message.speculative_from = len(pieces)
        reason = pieces[-1].reason
        predictor = self._predictor
        branches = predictor.branches(done) if predictor is not None and done is not None else None
        if predictor is not None and branches is not None and done is not None and reason in (READ, DYNAMIC):
            course = TraceGraph([], branches.first, None, predictor.start, list(predictor.since))
            future = self._speculate(branches, course, message)
            assert self._speculation is not None
            self._speculation.last = done.shape.integers[-1]
        else:
            # a program that starts uploads its weights: before it reads anything, or so much that it cannot wait
            future = self._submit(message, keep=fresh or reason == ASYNC or not self._has_read)
        self._owed = 0
        self._has_read = self._has_read or reason == READ
        if reason == ASYNC:
            self._await_later(future)
            return Outcome()
        self._barrier(blocked=False)
        answer = self._wait(future, outcomes=len(pieces))
        if self._speculation is not None:
            self._speculation.waited = True
        return self._check(answer, len(pieces))

    def _speculate(self, branches: Branches, course: TraceGraph, message: Message) -> Arriving:
        course.nodes = self._definitions.nodes(branches, message)
        message.course = course
        future = self._submit(message)
        self._speculation = Speculation(branches.plans, branches.edges, branches.first, course.since, future)
        return future

    def _ran_next(self, ahead: Speculation) -> Optional[Ran]:
        """The next step that ran ahead if there is one.

        The server sends what it has as it goes: waiting for more of the same answer is no other round trip.
        """
        if len(ahead.ran) <= ahead.taken or not ahead.waited:
            answer = self._wait(ahead.future, blocked=not ahead.waited, outcomes=0, ran=ahead.taken + 1)
            ahead.waited = True
            ahead.take_in(answer, self._definitions.forms)
        return ahead.ran[ahead.taken] if ahead.taken < len(ahead.ran) else None

    def _described(self, piece: SegmentInvocation) -> Optional[Outcome]:
        """The results of the last call of a segment that ends inside a step, if the server has run that ahead.

        They depend on nothing but the call's key. Whether all of the step is as expected is seen when it ends.
        """
        ahead, predictor = self._speculation, self._predictor
        if ahead is None or predictor is None:
            return None
        ran = self._ran_next(ahead)
        if ran is not None:
            # kept: the device may have forgotten what it consists of before it has to be run after all
            piece.definition = self._definitions.forms.definition(piece.segment)
            piece.calls += len(piece.definition.calls)
            number = piece.calls - 1
            call = piece.definition.calls[-1]
            skeletons, _ = predictor.forms.calls(ran.plan.form)
            results = ran.outcome.described.get(number)
            alike = number < len(skeletons) and skeletons[number] == call.skeleton
            if results is not None and alike and ran.integers[number] == call.integers:
                return Outcome(results=results)
        self._over(ahead, len(ahead.future.so_far.ran))
        return None

    def _taken(self, done: CompletedStep) -> Optional[Ran]:
        """What ran ahead if it is exactly ``done``; otherwise the speculation is over."""
        ahead, predictor = self._speculation, self._predictor
        if ahead is None or predictor is None:
            return None
        if ahead.taken >= len(ahead.ran):
            ahead.take_in(ahead.future.so_far, self._definitions.forms)
        if not ahead.may_go_on_with(done, predictor.start):
            self._over(ahead, ahead.taken + 1)  # whatever runs, it is not this
            return None
        ran = self._ran_next(ahead)
        if ran is not None and ran.base == done.base and ran.plan.same_as(done, predictor.start, ran.integers):
            ahead.taken += 1
            self.counters.speculated += 1
            self.counters.accepted += 1
            self._freed += [done.base + number for number in done.dead - ran.plan.dead]
            if ahead.future.ended and ahead.taken == len(ahead.future.so_far.ran):
                self._settle(ahead.taken)
            return ran
        self._over(ahead, len(ahead.future.so_far.ran))
        return None

    def _over(self, ahead: Speculation, ran: int) -> None:
        self.counters.speculated += ran - ahead.taken
        self.counters.undone += ran - ahead.taken
        self._settle(ahead.taken)

    def _settle(self, accepted: int) -> None:
        self._unsettled = accepted
        self._speculation = None

    def _renew(self, generation: int) -> None:
        """The device has forgotten its calls and segments (there were too many): so must everyone."""
        if generation == self._generation:
            return
        self._generation = generation
        self._standby.done(None, self._definitions.forms, first=False, over=True, failed=True)
        self._standby.retained.renumber()
        self._catch_up()
        self._forget_definitions()
        self._forget = True
        if self._speculation is not None:
            self._settle(self._speculation.taken)
        self._predictor = self._new_predictor()

    def _new_predictor(self) -> Optional[Predictor]:
        self._definitions.renumber()
        known = self._definitions
        return Predictor(known.forms, known.call) if self.mode is Mode.REPLAY else None

    def _catch_up(self) -> None:
        """Have run what only a step that ran ahead, and is now given up, could answer for."""
        owed = self._pieces[-self._owed :] if self._owed else []
        self._pieces = []
        if owed:
            if self._speculation is not None:
                self._settle(self._speculation.taken)
            self._run(owed, None)

    def _forget_definitions(self) -> None:
        self._definitions.forget()
        self._pieces, self._owed = [], 0

    def query(self) -> None:
        """A device query of the program, which costs a round trip where every call does."""
        if self.mode is Mode.PER_OP and self._failed is None:
            self._wait(self._submit(Message()))


def _step(piece: SegmentInvocation, describe: bool) -> Step:
    payloads = [tensor_bytes(payload) for payload in piece.payloads]
    return Step(piece.segment, piece.base, piece.live, sorted(piece.dead), piece.numbers, payloads, describe)
