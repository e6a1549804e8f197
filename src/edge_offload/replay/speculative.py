"""Mode ``replay``: segments that follow each other every time run speculatively on the server.

When the inputs of a known inference are there, the server is asked to run the segments that will follow, so that every
host read of the inference comes back in one answer. Nothing is ever taken from a speculation that is not exactly what
the program then did: the same calls with the same sizes on the same storages with the same host numbers. Otherwise it
is rolled back, and the server runs what was issued.
"""

from __future__ import annotations

from typing import List, Optional

import torch

from edge_offload.errors import LinkLost
from edge_offload.ir.trace.budget import Budget
from edge_offload.ir.trace.segments import Outcome
from edge_offload.ir.trace.symbols import facts_of
from edge_offload.ir.trace.trace_graph import TraceGraph
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import DeviceMessage, tensor_bytes
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.flushed import DYNAMIC, INFER, READ
from edge_offload.replay.prediction.predict import Predictor
from edge_offload.replay.prediction.step_models import StepPlan
from edge_offload.replay.running_ahead import RunningAhead
from edge_offload.replay.signatures import CompletedStep, SegmentInvocation, upload_sizes
from edge_offload.replay.strategy import Strategy
from edge_offload.replay.worth import Worth


class Speculative(Strategy):
    """Learns the program's steps, and has the server run them before the program issues them."""

    def __init__(self, dispatcher: SegmentDispatcher) -> None:
        super().__init__(dispatcher)
        self._budget = Budget()
        self._ahead = RunningAhead(dispatcher)
        self.forget()

    def forget(self) -> None:
        """See :class:`Strategy`."""
        super().forget()
        known = self.dispatcher.definitions
        self._predictor = Predictor(known.signatures, known.call, budget=self._budget)
        self._ahead.forget()
        self._invocations: List[SegmentInvocation] = []
        self._deferred = 0
        self._freed_in_step: List[int] = []
        self._worth = Worth()
        self._left: Optional[int] = None

    @property
    def in_step(self) -> bool:  # type: ignore[override]
        """See :class:`Strategy`."""
        return bool(self._invocations)

    @property
    def learning_s(self) -> float:  # type: ignore[override]
        """See :class:`Strategy`."""
        return self._budget.total_s

    def settle(self) -> None:
        """See :class:`Strategy`: segments for which only an abandoned speculation had results are run."""
        deferred = self._invocations[-self._deferred :] if self._deferred else []
        self._invocations, self._deferred = [], 0
        self._ahead.end()
        if deferred:
            self.dispatcher.run(deferred)

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """See :class:`Strategy`: the server starts before the program gets to the read."""
        plan = self._predictor.next() if self._ahead.current is None and not self._invocations else None
        if plan is None or plan.node.segment != segment:
            return
        start = base if self._predictor.opens() else self._predictor.start
        known = dict(plan.node.live_at(base, start))
        if all(known.get(canonical) == number for canonical, number in zip(live[::2], live[1::2])):
            self._begin(plan, base, payloads)

    def _begin(self, plan: StepPlan, base: int, payloads: List[torch.Tensor]) -> None:
        """Have the server run the step that is under way, by its ``plan``, and what will probably follow."""
        predictor = self._predictor
        branches = predictor.branches()
        if branches is None:
            return
        opens = predictor.opens()
        assumed = plan.uploads[len(payloads) :]
        known = [item for item in assumed if item is not None]
        uploads = [*(tensor_bytes(payload) for payload in payloads), *known]
        sizes = upload_sizes(payloads, known)
        start = base if opens else predictor.start
        graph = TraceGraph([], branches.first, base, start, [sizes] if opens else list(predictor.history))
        graph.payloads = self.dispatcher.definitions.uploads(uploads)
        try:
            self._ahead.start(branches, graph, DeviceMessage()).assumed = assumed
        except LinkLost:
            return  # the read that follows sees to it

    def _begin_unseen(self, invocation: SegmentInvocation, freed: List[int]) -> None:
        """A step of which the device does not know a size: if all else of it is as expected, its plan says the size.

        So it is with a length that has not been seen before. What the step has ``freed`` is freed later: it uses that,
        and may have to be run after all.
        """
        plan = self._predictor.next() if self._ahead.current is None and len(self._invocations) == 1 else None
        if plan is None or plan.node.segment is not None:
            return
        payloads, assumed = invocation.payloads, plan.uploads[len(invocation.payloads) :]
        known = [item for item in assumed if item is not None]
        start, history = self._predictor.start, self._predictor.history
        if self._predictor.opens():
            start, history = invocation.base, [upload_sizes(payloads, known)]
        if len(known) == len(assumed) and plan.begins_with(
            self.dispatcher.definitions.signatures, invocation, start, history
        ):
            with self.dispatcher.exchange.withhold(freed):
                self._begin(plan, invocation.base, payloads)

    def run(self, invocation: SegmentInvocation, freed: List[int]) -> Outcome:
        """See :class:`Strategy`."""
        try:
            outcome = self._run_plainly(invocation) if self._stays_left(invocation) else self._run(invocation, freed)
        except BaseException:
            self._invocations, self._deferred = [], 0
            raise
        if invocation.reason in (READ, DYNAMIC):
            self._worth.done(self.dispatcher.exchange.counters.round_trips)
        return outcome

    def _stays_left(self, invocation: SegmentInvocation) -> bool:
        """Whether the inference goes on that has been left: another one begins with an upload."""
        if self._left is None or invocation.payloads or self._invocations:
            return False
        return self._ahead.current is None

    def _run_plainly(self, invocation: SegmentInvocation) -> Outcome:
        """As in mode lazy: at once and alone, and nothing is learnt."""
        if invocation.reason != INFER:
            self._left = invocation.reason
        return self.dispatcher.run([invocation])

    def _leave(self, done: CompletedStep) -> Outcome:
        """Run the rest of the inference, from ``done`` on, as mode lazy does."""
        self._predictor.leave()
        outcome = self._run_deferred(None)
        self._invocations, self._deferred, self._left = [], 0, done.reason
        self._expect(self._predictor.next())
        return outcome

    def _run(self, invocation: SegmentInvocation, freed: List[int]) -> Outcome:
        before = self._invocations[-1] if self._invocations else None
        self._freed_in_step = self._freed_in_step + freed if before is not None else []
        invocation.calls = before.calls if before is not None else 0
        self._invocations.append(invocation)
        self._deferred += 1
        if invocation.reason == INFER:
            self._begin_unseen(invocation, freed)
            described = self._ahead.described(invocation)
            return described if described is not None else self._run_deferred(None)
        done = self.dispatcher.definitions.signatures.done(self._invocations, self._freed_in_step)
        self._predictor.begin(done, self._left)
        trips = self.dispatcher.exchange.counters.round_trips
        self._worth.step(done.signature.number, done.opens, trips)
        self._left = None if done.opens else self._left
        ran = self._ahead.accept(done, self._predictor.start)
        if ran is not None:
            outcome, facts = ran.outcome, ran.facts
        elif self._left is not None or not self._worth.ahead(trips):
            return self._leave(done)
        else:
            outcome = self._run_deferred(done)
            facts = facts_of(outcome, done.signature.integers[-1])
        self._invocations, self._deferred = [], 0
        done.integers, done.kind = facts
        self._predictor.add(done, confirmed=ran is not None)
        if self._ahead.current is None:
            if self._predictor.full:
                self.forget()
            else:
                self._expect(self._predictor.next())
        return outcome

    def _expect(self, plan: Optional[StepPlan]) -> None:
        """Have the device announce ``plan``'s segment when everything is there that is not known before."""
        native = self.dispatcher.native
        if plan is None or plan.node.segment is None:
            native.expect(-1)
            return
        fresh = [number for number, data in enumerate(plan.uploads, 1) if data is None]
        native.expect(plan.node.segment, max(fresh, default=len(plan.uploads)))

    def _run_deferred(self, done: Optional[CompletedStep]) -> Outcome:
        """Have segments run that did not run speculatively; after ``done`` the server is to go on by itself."""

        def send(message: DeviceMessage) -> Optional[PendingAnswer]:
            branches = self._predictor.branches(done) if done is not None else None
            future = None
            if branches is not None and done is not None and done.reason in (READ, DYNAMIC):
                graph = TraceGraph([], branches.first, None, self._predictor.start, list(self._predictor.history))
                speculation = self._ahead.start(branches, graph, message)
                speculation.last, future = done.signature.integers[-1], speculation.future
            return future

        deferred, self._deferred = self._invocations[-self._deferred :], 0
        outcome = self.dispatcher.run(deferred, send)
        if self._ahead.current is not None:
            self._ahead.current.waited = True
        return outcome
