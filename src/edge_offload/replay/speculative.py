"""Mode ``replay``: the server speculatively runs the segments that are expected next.

Once the inputs of a known inference are complete, the client requests the expected segments. One response then has the
data of every host read of the inference. A speculated step is accepted only if the program issues exactly that step:
the same calls, sizes, storages and host numbers. Otherwise it is rolled back, and the server runs what was issued.
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
    """Learns the program's steps, and has the server run them before the program issues them.

    A step is all calls between two host reads: one segment or several. A segment is deferred until it is known whether
    the server has run it speculatively.
    """

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
        #: Segments of the current step; the last ``_deferred`` of them have not been run on request.
        self._invocations: List[SegmentInvocation] = []
        self._deferred = 0
        #: Storages that were freed since the first segment of the step.
        self._freed_in_step: List[int] = []
        self._worth = AheadGain()
        #: None: steps are observed. Else the inference runs plainly; why its last segment ended (``flushed.READ``, …).
        self._plain_reason: Optional[int] = None

    @property
    def in_step(self) -> bool:  # type: ignore[override]
        return bool(self._invocations)

    @property
    def learning_s(self) -> float:  # type: ignore[override]
        return self._budget.total_s

    def settle(self) -> None:
        """End the speculation, and run the deferred segments, for which only it had results."""
        deferred = self._invocations[-self._deferred :] if self._deferred else []
        self._invocations, self._deferred = [], 0
        self._running_ahead.end_speculation()
        if deferred:
            self.dispatcher.run(deferred)

    def announce(self, segment: int, base: int, live: List[int], payloads: List[torch.Tensor]) -> None:
        """Begin to speculate before the host read that ends the step, if ``segment`` is the expected one."""
        plan = self._predictor.next_step() if self._running_ahead.current is None and not self._invocations else None
        if plan is None or plan.node.segment != segment:
            return
        start = base if self._predictor.may_open() else self._predictor.start
        expected_storages = dict(plan.node.live_at(base, start))
        if all(expected_storages.get(canonical) == storage for canonical, storage in zip(live[::2], live[1::2])):
            self._begin_speculation(plan, base, payloads)

    def _begin_speculation(self, plan: StepPlan, base: int, payloads: List[torch.Tensor]) -> None:
        """Request the current step, by its ``plan``, and the steps that will probably follow.

        Args:
            plan: the expected step.
            base: number of the step's first new storage.
            payloads: the step's uploads so far; for the others those of ``plan`` are assumed.
        """
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
            return  # the host read that follows raises it

    def _begin_unseen(self, invocation: SegmentInvocation, freed: List[int]) -> None:
        """Speculate on a step with a size that the device does not know, such as a new length.

        If all else of the step is as expected, its plan gives the size. Storages in ``freed`` are freed later: the step
        uses them, and may have to be run on request.
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
        """Return True if ``invocation`` continues an inference that runs plainly; an upload begins another one."""
        if self._plain_reason is None or invocation.payloads or self._invocations:
            return False
        return self._running_ahead.current is None

    def _run_plainly(self, invocation: SegmentInvocation) -> StepOutcome:
        """Run a segment as mode ``lazy`` does: at once and without learning."""
        if invocation.reason != INFER:
            self._plain_reason = invocation.reason
        return self.dispatcher.run([invocation])

    def _leave_inference(self, done: CompletedStep) -> StepOutcome:
        """Run the step ``done`` and the rest of its inference as mode ``lazy`` does."""
        self._predictor.skip_inference()
        outcome = self._run_deferred(None)
        self._invocations, self._deferred, self._plain_reason = [], 0, done.reason
        self._expect_segment(self._predictor.next_step())
        return outcome

    def _run_observed(self, invocation: SegmentInvocation, freed: List[int]) -> StepOutcome:
        """Return a segment's outcome, speculated or run now; learn from the step that it completes."""
        previous = self._invocations[-1] if self._invocations else None
        self._freed_in_step = self._freed_in_step + freed if previous is not None else []
        invocation.calls = previous.calls if previous is not None else 0
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
        accepted = self._running_ahead.accept_step(done, self._predictor.start)
        if accepted is not None:
            outcome, facts = accepted.outcome, accepted.facts
        elif self._plain_reason is not None or not self._worth.runs_ahead(trips):
            return self._leave_inference(done)
        else:
            outcome = self._run_deferred(done)
            facts = facts_of(outcome, done.signature.integers[-1])
        self._invocations, self._deferred = [], 0
        done.integers, done.kind = facts
        self._predictor.learn_step(done, confirmed=accepted is not None)
        if self._running_ahead.current is None:
            if self._predictor.is_full:
                self.reset()
            else:
                self._expect_segment(self._predictor.next_step())
        return outcome

    def _expect_segment(self, plan: Optional[StepPlan]) -> None:
        """Have the device call :meth:`announce` for ``plan``'s segment once all uploads that vary are complete."""
        native = self.dispatcher.native
        if plan is None or plan.node.segment is None:
            native.expect(-1)
            return
        varying = [number for number, data in enumerate(plan.uploads, 1) if data is None]
        native.expect(plan.node.segment, max(varying, default=len(plan.uploads)))

    def _run_deferred(self, done: Optional[CompletedStep]) -> StepOutcome:
        """Run the deferred segments; after the step ``done``, which they complete, the server continues on its own."""

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
