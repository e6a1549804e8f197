"""What the server runs ahead of the program: sent, compared with what the program does, accepted or rolled back."""

from __future__ import annotations

from typing import Optional

from edge_offload.errors import Disagreement
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.trace_graph import TraceGraph
from edge_offload.protocol.messages import Answer, DeviceMessage
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.prediction.predict import Branches
from edge_offload.replay.signatures import CompletedStep, SegmentInvocation
from edge_offload.replay.speculation import SpeculatedStep, Speculation


class RunningAhead:
    """The speculation that is under way, if there is one.

    Attributes:
        current: the speculation; None: the server runs nothing ahead.
    """

    def __init__(self, dispatcher: SegmentDispatcher) -> None:
        self.current: Optional[Speculation] = None
        self._dispatcher = dispatcher

    def drop(self) -> None:
        """Drops the speculation: the session is a new one."""
        self.current = None

    def start(self, branches: Branches, graph: TraceGraph, message: DeviceMessage) -> Speculation:
        """Have the server run ``graph``, along ``branches``, once it has done what ``message`` says.

        Raises:
            LinkLost: the connection is lost.
        """
        graph.nodes = self._dispatcher.definitions.step_numbers(branches, message)
        message.graph = graph
        future = self._dispatcher.exchange.submit_message(message)
        self.current = Speculation(branches.plans, branches.edges, branches.first, graph.since, future)
        return self.current

    def described_outcome(self, invocation: SegmentInvocation) -> Optional[StepOutcome]:
        """The results of the last call of a segment that ends inside a step, if that ran speculatively.

        Those depend on nothing but the call's key. Whether all of the step is as expected is seen when it ends.
        """
        speculation = self.current
        if speculation is None:
            return None
        ran = self._next_ran(speculation)
        if ran is not None:
            # kept: the device may have forgotten what it consists of before it has to be run after all
            invocation.definition = self._dispatcher.definitions.signatures.definition_of(invocation.segment)
            invocation.calls += len(invocation.definition.calls)
            number = invocation.calls - 1
            call = invocation.definition.calls[-1]
            skeletons, _ = self._dispatcher.definitions.signatures.skeletons_of(ran.plan.signature)
            results = ran.outcome.described.get(number)
            alike = number < len(skeletons) and skeletons[number] == call.skeleton
            if results is not None and alike and ran.integers[number] == call.integers:
                return StepOutcome(results=results)
        self._roll_back(speculation, len(speculation.future.so_far.ran))
        return None

    def accept_step(self, done: CompletedStep, start: int) -> Optional[SpeculatedStep]:
        """The next speculated step if it is exactly ``done``; otherwise the speculation is rolled back.

        ``start``: number of the inference's first new storage.
        """
        speculation = self.current
        if speculation is None:
            return None
        if speculation.accepted >= len(speculation.ran):
            self._take_in(speculation, speculation.future.so_far)
        if not speculation.may_go_on_with(done, start):
            self._roll_back(speculation, speculation.accepted + 1)  # whatever runs, it is not this
            return None
        ran = self._next_ran(speculation)
        if ran is not None and ran.base == done.base and ran.plan.same_as(done, start, ran.integers):
            counters, exchange = self._dispatcher.exchange.counters, self._dispatcher.exchange
            speculation.accepted += 1
            counters.speculated += 1
            counters.accepted += 1
            exchange.freed += [done.base + number for number in done.dead - ran.plan.dead]
            if speculation.future.ended and speculation.accepted == len(speculation.future.so_far.ran):
                self._settle(speculation)
            return ran
        self._roll_back(speculation, len(speculation.future.so_far.ran))
        return None

    def _next_ran(self, speculation: Speculation) -> Optional[SpeculatedStep]:
        """The next step that ran speculatively, if there is one.

        The server sends what it has as it goes: waiting for more of the same answer is no other round trip.
        """
        if len(speculation.ran) <= speculation.accepted or not speculation.waited:
            answer = self._dispatcher.exchange.await_answer(
                speculation.future, blocked=not speculation.waited, outcomes=0, ran=speculation.accepted + 1
            )
            speculation.waited = True
            self._take_in(speculation, answer)
        return speculation.ran[speculation.accepted] if speculation.accepted < len(speculation.ran) else None

    def _take_in(self, speculation: Speculation, answer: Answer) -> None:
        """Go through what ran; a step with a result that lies otherwise than was worked out here counts as not run.

        The program may have seen that result: the step is run as the program issued it.
        """
        try:
            speculation.take_in(answer, self._dispatcher.definitions.signatures)
        except Disagreement as error:
            speculation.lost = True
            self._dispatcher.exchange.disagreed.add(error.operator)

    def _roll_back(self, speculation: Speculation, ran: int) -> None:
        """Rolls back the steps that were not accepted: the session undoes them with the next message."""
        counters = self._dispatcher.exchange.counters
        counters.speculated += ran - speculation.accepted
        counters.undone += ran - speculation.accepted
        self._settle(speculation)

    def end_speculation(self) -> None:
        """Ends the speculation; the session undoes the rest with the next message."""
        if self.current is not None:
            self._settle(self.current)

    def _settle(self, speculation: Speculation) -> None:
        self._dispatcher.exchange.unsettled = speculation.accepted
        self.current = None
