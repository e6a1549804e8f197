"""What the server has been asked to run ahead, and how far the program has come in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional, Tuple

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.segments import Outcome
from edge_offload.ir.trace.symbols import BranchKey, facts_of
from edge_offload.ir.trace.trace_graph import Edge
from edge_offload.protocol.arriving import Arriving
from edge_offload.protocol.messages import Answer
from edge_offload.replay.plans import Plan
from edge_offload.replay.signatures import CompletedStep, Integers, SignatureTable


class Ran(NamedTuple):
    """A step that ran ahead.

    Attributes:
        plan: the one by which it ran; ``base``: number of its first new storage.
        outcome: what it returned; ``facts``: what that says (:func:`~edge_offload.ir.trace.symbols.facts_of`).
        integers: of each call's key.
    """

    plan: Plan
    base: int
    outcome: Outcome
    integers: Integers
    facts: Tuple[Tuple[int, ...], BranchKey]


@dataclass
class Speculation:
    """A course on its way.

    Attributes:
        plans: of its nodes; ``edges``: what may follow each, ``first``: what may come first.
        since: integers of the inference's steps so far: those before it, and those that ran.
        future: the answer to come; ``waited`` for it already.
        last: integers of the last call before the course; None once it is taken into account in ``since``.
        ran: the steps that are known to have run, as far as it can be told what they did; ``lost`` when it cannot any
            more.
        assumed: the last uploads of its first step, if it is only thought that the program will make them so.
        taken: how many of the steps that ran the program has done so far.
    """

    plans: List[Plan]
    edges: List[List[Edge]]
    first: List[Edge]
    since: List[Tuple[int, ...]]
    future: Arriving
    taken: int = 0
    waited: bool = False
    last: Optional[Tuple[int, ...]] = ()
    ran: List[Ran] = field(default_factory=list)
    lost: bool = False
    assumed: Tuple[Optional[bytes], ...] = ()

    def take_in(self, answer: Answer, forms: SignatureTable) -> None:
        """Go through the steps that ran since the last time.

        The device is told what the calls return that ran in them, before the program makes them.
        """
        if self.last is not None:
            self.since += [facts_of(outcome, self.last)[0] for outcome in answer.outcomes[-1:]]
            self.last = None
        while not self.lost and len(self.ran) < len(answer.ran):
            index, base, outcome = answer.ran[len(self.ran)]
            if index >= len(self.plans):
                raise ProtocolError("the server has run what it was not asked to")
            plan = self.plans[index]
            integers = plan.integers(self.since)
            if integers is None:
                self.lost = True
                return
            told = plan.foretold(integers, outcome.described) if outcome.described else []
            if told:
                forms.foretell(told)
            facts = facts_of(outcome, integers[-1])
            self.ran.append(Ran(plan, base, outcome, integers, facts))
            self.since.append(facts[0])

    def may_go_on_with(self, done: CompletedStep, start: int) -> bool:
        """Whether ``done`` may be what the server runs next, as far as that is known without waiting for it."""
        if not self.taken and self.assumed and done.payloads[-len(self.assumed) :] != self.assumed:
            return False
        ran = self.future.so_far.ran
        if self.taken < len(ran):
            return True
        if self.lost:
            return False
        following = self.edges[ran[self.taken - 1][0]] if self.taken else self.first
        plans = [self.plans[node] for node in {node for _, node in following}]
        return any(plan.same_as(done, start, plan.integers(self.since)) for plan in plans)
