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
from edge_offload.ir.trace.budget import LearningBudget
from edge_offload.ir.trace.segments import StepOutcome
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
from edge_offload.replay.worth import AheadGain


class Speculative(Strategy):
    """Learns the program's steps, and has the server run them before the program issues them."""

    def __init__(self, dispatcher: SegmentDispatcher) -> None:
        super().__init__(dispatcher)
        self._budget = LearningBudget()
        self._running_ahead = RunningAhead(dispatcher)
        self.reset()

    def reset(self) -> None:
        super().reset()
        definitions = self.dispatcher.definitions
        self._predictor = Predictor(definitions.signatures, definitions.call_number, budget=self._budget)
        self._running_ahead.drop()
        self._invocations: List[SegmentInvocation] = []
        self._deferred = 0
        self._freed_in_step: List[int] = []
        self._worth = AheadGain()
        self._plain_reason: Optional[int] = None

    @property
    def in_step(self) -> bool:  # type: ignore[override]
        return bool(self._invocations)

    @property
    def learning_s(self) -> float:  # type: ignore[override]
        return self._budget.total_s

    def settle(self) -> None:
        """Run segments for which only an abandoned speculation had results."""
        deferred = self._invocations[-self._deferred :] if self._deferred else []
        self._invocations, self._deferred = [], 0
        self._running_ahead.end_speculation()
        if deferred:
            self.dispatcher.run(deferred)

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """Start the server before the program gets to the read."""
        plan = self._predictor.next_step() if self._running_ahead.current is None and not self._invocations else None
        if plan is None or plan.node.segment != segment:
            return
        start = base if self._predictor.may_open() else self._predictor.start
        expected = dict(plan.node.live_at(base, start))
        if all(expected.get(canonical) == number for canonical, number in zip(live[::2], live[1::2])):
            self._begin_speculation(plan, base, payloads)

    def _begin_speculation(self, plan: StepPlan, base: int, payloads: List[torch.Tensor]) -> None:
        """Have the server run the step that is under way, by its ``plan``, and what will probably follow."""
        predictor = self._predictor
        branches = predictor.grow_branches()
        if branches is None:
            return
        opens = predictor.may_open()
        assumed = plan.uploads[len(payloads) :]
        assumed_bytes = [item for item in assumed if item is not None]
        uploads = [*(tensor_bytes(payload) for payload in payloads), *assumed_bytes]
        sizes = upload_sizes(payloads, assumed_bytes)
        start = base if opens else predictor.start
        graph = TraceGraph([], branches.first, base, start, [sizes] if opens else list(predictor.history))
        graph.payloads = self.dispatcher.definitions.changed_uploads(uploads)
        try:
            self._running_ahead.start(branches, graph, DeviceMessage()).assumed = assumed
        except LinkLost:
            return  # the read that follows sees to it

    def _begin_unseen(self, invocation: SegmentInvocation, freed: List[int]) -> None:
        """A step of which the device does not know a size: if all else of it is as expected, its plan says the size.

        So it is with a length that has not been seen before. What the step has ``freed`` is freed later: it uses that,
        and may have to be run after all.
        """
        plan = (
            self._predictor.next_step() if self._running_ahead.current is None and len(self._invocations) == 1 else None
        )
        if plan is None or plan.node.segment is not None:
            return
        payloads, assumed = invocation.payloads, plan.uploads[len(invocation.payloads) :]
        assumed_bytes = [item for item in assumed if item is not None]
        start, history = self._predictor.start, self._predictor.history
        if self._predictor.may_open():
            start, history = invocation.base, [upload_sizes(payloads, assumed_bytes)]
        if len(assumed_bytes) == len(assumed) and plan.may_begin_with(
            self.dispatcher.definitions.signatures, invocation, start, history
        ):
            with self.dispatcher.exchange.without_freeing(freed):
                self._begin_speculation(plan, invocation.base, payloads)

    def run(self, invocation: SegmentInvocation, freed: List[int]) -> StepOutcome:
        try:
            outcome = (
                self._run_plainly(invocation)
                if self._continues_plainly(invocation)
                else self._run_observed(invocation, freed)
            )
        except BaseException:
            self._invocations, self._deferred = [], 0
            raise
        if invocation.reason in (READ, DYNAMIC):
            self._worth.end_step(self.dispatcher.exchange.counters.round_trips)
        return outcome

    def _continues_plainly(self, invocation: SegmentInvocation) -> bool:
        """True if the inference goes on that runs plainly; another one begins with an upload."""
        if self._plain_reason is None or invocation.payloads or self._invocations:
            return False
        return self._running_ahead.current is None

    def _run_plainly(self, invocation: SegmentInvocation) -> StepOutcome:
        """Runs a segment as mode lazy does: at once, and without learning."""
        if invocation.reason != INFER:
            self._plain_reason = invocation.reason
        return self.dispatcher.run([invocation])

    def _leave_inference(self, done: CompletedStep) -> StepOutcome:
        """Run the rest of the inference, from ``done`` on, as mode lazy does."""
        self._predictor.skip_inference()
        outcome = self._run_deferred(None)
        self._invocations, self._deferred, self._plain_reason = [], 0, done.reason
        self._expect_segment(self._predictor.next_step())
        return outcome

    def _run_observed(self, invocation: SegmentInvocation, freed: List[int]) -> StepOutcome:
        before = self._invocations[-1] if self._invocations else None
        self._freed_in_step = self._freed_in_step + freed if before is not None else []
        invocation.calls = before.calls if before is not None else 0
        self._invocations.append(invocation)
        self._deferred += 1
        if invocation.reason == INFER:
            self._begin_unseen(invocation, freed)
            described = self._running_ahead.described_outcome(invocation)
            return described if described is not None else self._run_deferred(None)
        done = self.dispatcher.definitions.signatures.complete_step(self._invocations, self._freed_in_step)
        self._predictor.begin_step(done, self._plain_reason)
        trips = self.dispatcher.exchange.counters.round_trips
        self._worth.note_step(done.signature.number, done.opens, trips)
        self._plain_reason = None if done.opens else self._plain_reason
        ran = self._running_ahead.accept_step(done, self._predictor.start)
        if ran is not None:
            outcome, facts = ran.outcome, ran.facts
        elif self._plain_reason is not None or not self._worth.runs_ahead(trips):
            return self._leave_inference(done)
        else:
            outcome = self._run_deferred(done)
            facts = facts_of(outcome, done.signature.integers[-1])
        self._invocations, self._deferred = [], 0
        done.integers, done.kind = facts
        self._predictor.learn_step(done, confirmed=ran is not None)
        if self._running_ahead.current is None:
            if self._predictor.is_full:
                self.reset()
            else:
                self._expect_segment(self._predictor.next_step())
        return outcome

    def _expect_segment(self, plan: Optional[StepPlan]) -> None:
        """Have the device announce ``plan``'s segment when everything is there that is not known before."""
        native = self.dispatcher.native
        if plan is None or plan.node.segment is None:
            native.expect(-1)
            return
        fresh = [number for number, data in enumerate(plan.uploads, 1) if data is None]
        native.expect(plan.node.segment, max(fresh, default=len(plan.uploads)))

    def _run_deferred(self, done: Optional[CompletedStep]) -> StepOutcome:
        """Have segments run that did not run speculatively; after ``done`` the server is to go on by itself."""

        def send_with_graph(message: DeviceMessage) -> Optional[PendingAnswer]:
            branches = self._predictor.grow_branches(done) if done is not None else None
            future = None
            if branches is not None and done is not None and done.reason in (READ, DYNAMIC):
                graph = TraceGraph([], branches.first, None, self._predictor.start, list(self._predictor.history))
                speculation = self._running_ahead.start(branches, graph, message)
                speculation.last, future = done.signature.integers[-1], speculation.future
            return future

        deferred, self._deferred = self._invocations[-self._deferred :], 0
        outcome = self.dispatcher.run(deferred, send_with_graph)
        if self._running_ahead.current is not None:
            self._running_ahead.current.waited = True
        return outcome
