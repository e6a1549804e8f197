"""What the server has been asked to run speculatively, and how much of it the program has confirmed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional, Tuple

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.symbols import BranchKey, facts_of
from edge_offload.ir.trace.trace_graph import Edge
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import Answer
from edge_offload.replay.prediction.step_models import StepPlan
from edge_offload.replay.signatures import CompletedStep, Integers, SignatureTable


class SpeculatedStep(NamedTuple):
    """A step that the server ran speculatively.

    Attributes:
        plan: the one by which it ran; ``base``: number of its first new storage.
        outcome: what it returned; ``facts``: what that says (:func:`~edge_offload.ir.trace.symbols.facts_of`).
        integers: of each call's key.
    """

    plan: StepPlan
    base: int
    outcome: StepOutcome
    integers: Integers
    facts: Tuple[Tuple[int, ...], BranchKey]


@dataclass
class Speculation:
    """A trace graph that the server is running.

    Attributes:
        plans: of its steps; ``edges``: what may follow each, ``first``: what may come first.
        history: integers of the inference's steps so far: those before it, and those that ran.
        future: the answer to come; ``waited`` for it already.
        last: integers of the last call before the graph; None once ``history`` has them.
        ran: the steps that are known to have run; ``lost`` when the integers of the next one cannot be worked out.
        assumed: the last uploads of its first step, if it is only thought that the program will make them so.
        accepted: how many of them the program has done so far.
    """

    plans: List[StepPlan]
    edges: List[List[Edge]]
    first: List[Edge]
    history: List[Tuple[int, ...]]
    future: PendingAnswer
    accepted: int = 0
    waited: bool = False
    last: Optional[Tuple[int, ...]] = ()
    ran: List[SpeculatedStep] = field(default_factory=list)
    lost: bool = False
    assumed: Tuple[Optional[bytes], ...] = ()

    def take_in(self, answer: Answer, signatures: SignatureTable) -> None:
        """Go through the steps that ran since the last time.

        The device gets the result metadata of the calls in them before the program makes those.
        """
        if self.last is not None:
            self.history += [facts_of(outcome, self.last)[0] for outcome in answer.outcomes[-1:]]
            self.last = None
        while not self.lost and len(self.ran) < len(answer.ran):
            index, base, outcome = answer.ran[len(self.ran)]
            if index >= len(self.plans):
                raise ProtocolError("the server has run what it was not asked to")
            plan = self.plans[index]
            integers = plan.integers(self.history)
            if integers is None:
                self.lost = True
                return
            results = plan.expected_results(integers, outcome.described) if outcome.described else []
            if results:
                signatures.expect_results(results)
            facts = facts_of(outcome, integers[-1])
            self.ran.append(SpeculatedStep(plan, base, outcome, integers, facts))
            self.history.append(facts[0])

    def may_go_on_with(self, done: CompletedStep, start: int) -> bool:
        """True if ``done`` may be what the server runs next, as far as that is known without waiting for it."""
        if not self.accepted and self.assumed and done.payloads[-len(self.assumed) :] != self.assumed:
            return False
        ran = self.future.so_far.ran
        if self.accepted < len(ran):
            return True
        if self.lost:
            return False
        following = self.edges[ran[self.accepted - 1][0]] if self.accepted else self.first
        plans = [self.plans[node] for node in {node for _, node in following}]
        return any(plan.same_as(done, start, plan.integers(self.history)) for plan in plans)
