"""A model of each signature, learnt from its steps: what the next one will be, as a step for the server."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.budget import LearningBudget, Work
from edge_offload.ir.trace.keys import KeyTemplate
from edge_offload.ir.trace.symbols import BranchKey, OutcomeHistory, evaluate_formula
from edge_offload.ir.trace.trace_graph import FROM_START, FROM_STEP, SAME, Patch, TraceStep
from edge_offload.replay.flushed import DYNAMIC, READ
from edge_offload.replay.prediction.integer_formulas import IntegerFormulas
from edge_offload.replay.signatures import CompletedStep, Integers, SegmentInvocation, SignatureTable, TableCall

MAX_KINDS = 6
#: Values of its formulas for which a plan keeps the integers of its calls; calls whose results it has expected.
MAX_VALUES, MAX_EXPECTED = 64, 4096


class StepPlan:
    """A step as it is expected, for the server to run speculatively, and what the client compares with it.

    Attributes:
        definition_number: number of its definition; the next plan for the same site takes it over.
        uploads: bytes of those that have been the same so far, None for the others.
        sent: to whom it has been sent, None at first.
    """

    def __init__(
        self, signature: int, definition_number: int, node: TraceStep, integers: Integers,
        places: Tuple[Tuple[int, int], ...], dead: FrozenSet[int], result_meta: Optional[Dict[int, TableCall]] = None,
        uploads: Tuple[Optional[bytes], ...] = (),
    ) -> None:  # fmt: skip
        self.signature = signature
        self.definition_number = definition_number
        self.sent: Optional[object] = None
        self.node = node
        self.dead = dead
        self.uploads = uploads
        self._integers = integers
        formulas = list(dict.fromkeys(patch.formula for patch in node.patches))  # most are those of others too
        number = {formula: index for index, formula in enumerate(formulas)}
        self._formulas = formulas
        self._changes: Dict[int, List[Tuple[int, int]]] = {}
        for (call, item), patch in zip(places, node.patches):
            self._changes.setdefault(call, []).append((item, number[patch.formula]))
        self._origins = [(how, value) for _, how, value in node.live]
        self._result_meta = result_meta or {}
        self._integers_of: Dict[Tuple[int, ...], Integers] = {}
        self._expected: Set[Tuple[int, Tuple[int, ...]]] = set()
        self._templates: Dict[int, KeyTemplate] = {}

    def integers(self, history: OutcomeHistory) -> Optional[Integers]:
        """The integers of each call's key; None if they cannot be worked out."""
        if not self._changes:
            return self._integers
        try:
            values = tuple([evaluate_formula(formula, history) for formula in self._formulas])
        except ProtocolError:
            return None
        earlier = self._integers_of.get(values)
        if earlier is not None:
            return earlier
        calls = list(self._integers)
        for call, items in self._changes.items():
            integers = list(calls[call])
            for item, which in items:
                integers[item] = values[which]
            calls[call] = tuple(integers)
        if len(self._integers_of) >= MAX_VALUES:
            self._integers_of.clear()
        made = self._integers_of[values] = tuple(calls)
        return made

    def expected_results(
        self, integers: Integers, results: Dict[int, List[Any]]
    ) -> List[Tuple[TableCall, bytes, Tuple[int, ...], List[Any]]]:
        """The calls whose ``results`` the server has said: one like each, its key and integers now, what it returns.

        They depend on nothing but the call's key, so they hold for every call that has it, and are expected once.

        Args:
            integers: those of each call's key.
            results: what the server has said, by position of the call.
        """
        expected = []
        for number, described in results.items():
            like = self._result_meta.get(number)
            if like is None or (number, integers[number]) in self._expected:
                continue
            if len(self._expected) >= MAX_EXPECTED:
                self._expected.clear()
            self._expected.add((number, integers[number]))
            template = self._templates.get(number)
            if template is None:
                template = self._templates[number] = KeyTemplate(like.key, like.offsets)
            expected.append((like, template.fill_integers(integers[number]), integers[number], described))
        return expected

    def _live_storages(self, base: int, start: int) -> Tuple[int, ...]:
        origins = (0, base, start)  # SAME, FROM_STEP, FROM_START
        return tuple([origins[how] + value for how, value in self._origins])

    def may_begin_with(
        self, signatures: SignatureTable, invocation: SegmentInvocation, start: int, history: OutcomeHistory
    ) -> bool:
        """True if ``invocation`` may begin the step: its new storages are the step's first.

        Args:
            signatures: where the calls of both are known.
            invocation: the first of a step.
            start: see :meth:`same_as`.
            history: see :meth:`integers`.
        """
        integers = self.integers(history)
        calls, references = signatures.beginning_of(invocation)
        skeletons, plan_references = signatures.skeletons_of(self.signature)
        length, live = len(calls), tuple([number for _, number in invocation.live])
        return (
            integers is not None
            and tuple([call.skeleton for call in calls]) == skeletons[:length]
            and references == plan_references[:length]
            and tuple([call.integers for call in calls]) == integers[:length]
            and self._live_storages(invocation.base, start)[: len(live)] == live
            and self.node.numbers.startswith(invocation.numbers)
        )

    def same_as(self, done: CompletedStep, start: int, integers: Optional[Integers]) -> bool:
        """True if the node's outcome is that of ``done``, whose first new storages the node's are.

        What ``done`` freed may be more: a storage that was kept for nothing is freed later.

        Args:
            done: what the program did.
            start: number of the inference's first new storage.
            integers: those of each call's key in the node.
        """
        node = self.node
        return (
            self.signature == done.signature.number
            and node.numbers == done.numbers
            and (not node.payloads or node.payloads == done.payloads)
            and self.dead <= done.dead
            and self._live_storages(done.base, start) == done.live
            and ((node.segment is not None and node.segment == done.segment) or integers == done.signature.integers)
        )


class StepModel:
    """Model of the steps of one signature, at one site or wherever they stand; learns from each.

    Args:
        signature: its number.
        definition_number: number that its plans are defined under.
        references: see :meth:`~edge_offload.replay.signatures.SignatureTable.calls`.
    """

    def __init__(self, signature: int, definition_number: int, references: Tuple[Tuple[int, ...], ...]) -> None:
        self.signature = signature
        self._definition_number = definition_number
        self.kinds: OrderedDict[BranchKey, None] = OrderedDict()
        self.last: Optional[CompletedStep] = None
        self._before: Optional[CompletedStep] = None
        self._references = references
        self.sizes = IntegerFormulas(references)
        self._live: List[Set[Tuple[int, int]]] = []
        self._plan: Optional[StepPlan] = None
        self._job: Optional[Work[None]] = None
        self._stale = True
        self.version = 0
        self._made_with = (0, 0)
        self._uploads: Tuple[Optional[bytes], ...] = ()

    def learn_step(
        self,
        done: CompletedStep,
        history: List[Tuple[int, ...]],
        start: int,
        confirmed: bool,
        bases: Sequence[int] = (),
    ) -> bool:
        """Learns from a step; returns True if anything is expected otherwise than before.

        ``confirmed``: it came as expected, so that there is nothing new in it. ``bases``: first new storage of each
        step of the inference before it.
        """
        fresh_kind = done.kind not in self.kinds
        if fresh_kind:
            self.kinds[done.kind] = None
            while len(self.kinds) > MAX_KINDS:
                self.kinds.popitem(last=False)
        if confirmed and (self.last is None or self.last.opens == done.opens):
            return fresh_kind
        self._before, self.last = self.last, done
        facts_before = self._uploads, self._live
        if self._before is None or len(self._uploads) != len(done.payloads):
            self._uploads = done.payloads
        else:  # one that has changed once is an input
            self._uploads = tuple(old if old == new else None for old, new in zip(self._uploads, done.payloads))
        options = [{(SAME, n), (FROM_STEP, n - done.base), (FROM_START, n - start)} for n in done.live]
        if len(self._live) == len(options):
            self._live = [(facts_before & new) or new for facts_before, new in zip(self._live, options)]
        else:
            self._live = options
        made_in = [bisect.bisect_right(bases, n) - 1 for n in done.live]
        expected = self._plan.integers(history) if self._plan is not None else None
        fresh_sample = self.sizes.add_sample((tuple(history), done.signature.integers), made_in, expected)
        if expected != done.signature.integers:
            self._plan = None
        changed = facts_before != (self._uploads, self._live)
        if changed:
            self.version += 1
        # a step that says nothing new leaves a job to its end
        stale = fresh_sample or changed or (self._plan is None and self._job is None)
        self._stale = self._stale or stale
        return fresh_kind or stale

    def next_plan(
        self, call: Callable[[int], TableCall], number: Callable[[TableCall], int], budget: LearningBudget,
        general: Optional[StepModel] = None,
    ) -> Optional[StepPlan]:  # fmt: skip
        """Plans the next step; None if that is not possible, or not yet (see ``has_work``).

        Args:
            call: a native call's description, by its number.
            number: the number that a native call has on the server.
            budget: of the inference.
            general: the model of the signature wherever it stands, if this is of one site alone.
        """
        while True:
            version = (general.version, general.sizes.version) if general is not None else (0, 0)
            if self._job is None and (self._stale or version != self._made_with):
                self._stale, self._made_with = False, version
                self._job = self._replace_plan(call, number, general)
            if self._job is None:
                return self._plan
            if not budget.advance_job(self._job):
                return self._plan  # of what was known before
            self._job = None

    def is_expected(self, done: CompletedStep, history: OutcomeHistory, start: int) -> bool:
        """True if ``done`` is what the latest plan says, so that nothing can be learned from it.

        Args:
            done: what the program did.
            history: integers of the inference's steps before it.
            start: number of the inference's first new storage.
        """
        plan = self._plan
        if plan is None or self.last is None or self.last.opens != done.opens:
            return False
        same = all(one is None or one == other for one, other in zip(plan.uploads, done.payloads))
        return same and plan.same_as(done, start, plan.integers(history))

    @property
    def has_work(self) -> bool:
        """True if more of the budget would have improved the plan."""
        return self._job is not None

    @property
    def has_uploads(self) -> bool:
        """True if something is uploaded in the step."""
        return self.last is not None and bool(self.last.payloads)

    def _replace_plan(self, *given: Any) -> Work[None]:
        self._plan = yield from self._make_plan(*given)

    def _make_plan(
        self, call: Callable[[int], TableCall], number: Callable[[TableCall], int], general: Optional[StepModel]
    ) -> Work[Optional[StepPlan]]:
        """Makes the plan again. Only sizes are looked at after the first look at the samples."""
        last, before = self.last, self._before
        if before is None and general is not None:  # it stood here once, and in other places before
            before = general.last if general.last is not last else general._before
        if last is None or before is None or last.reason not in (READ, DYNAMIC):
            return None
        if last.numbers != before.numbers:
            return None
        operands, uploads = self._operand_origins(general), self._uploads
        if general is not None and len(general._uploads) == len(uploads):  # an input has changed elsewhere if not here
            uploads = tuple([ours if ours == other else None for ours, other in zip(uploads, general._uploads)])
        calls = [call(entry) for entry in last.signature.entries]
        yield 1 + len(calls) + len(operands)
        formulas = yield from self.sizes.formulas_at(general.sizes if general is not None else None, calls)
        if formulas is None:
            return None
        yield 2 * (1 + len(calls) + len(operands) + len(formulas))
        as_segment = last.segment is not None and not formulas
        older = len(last.live)
        names = last.canonicals if as_segment else tuple(range(older))
        dead = last.dead & before.dead
        patches: Tuple[Patch, ...] = ()
        codes: List[int] = []
        described_calls: Tuple[int, ...] = ()
        result_meta: Dict[int, TableCall] = {}
        if as_segment:
            called = _names_of_new(dead, last.canonicals)
        else:
            called = tuple(older + item for item in sorted(dead))
            for made, used in zip(calls, self._references):
                codes.append(number(made))
                codes += [older + storage if storage >= 0 else -1 - storage for storage in used]
            patches = tuple(Patch(i, calls[i].offsets[item], how) for (i, item), how in formulas.items())
            changed = {i for i, _ in formulas}
            result_meta = {i: calls[i] for i in sorted(changed) if not calls[i].is_special and i < len(calls) - 1}
            described_calls = tuple(result_meta)
        node = TraceStep(
            last.segment if as_segment else None,
            tuple(codes),
            patches,
            tuple((name, *option) for name, option in zip(names, operands)),
            called,
            last.numbers,
            tuple(item for item in last.payloads if item is not None) if _same_uploads(last, before) else (),
            last.reason == DYNAMIC,
            described_calls,
        )
        return StepPlan(
            self.signature,
            self._definition_number,
            node,
            last.signature.integers,
            tuple(formulas),
            dead,
            result_meta,
            uploads,
        )

    def _operand_origins(self, general: Optional[StepModel]) -> List[Tuple[int, int]]:
        """Origin of the number of each storage that existed before; at a site reached once, as at others."""
        origins = []
        for position, options in enumerate(self._live):
            others = general._live[position] if general is not None and position < len(general._live) else set()
            likely = options & others or options
            is_single = len(likely) > 1 and self._before is None
            made = max(likely)  # counted from the inference's beginning, if it was made in it
            origins.append(made if is_single and made[0] == FROM_START and made[1] >= 0 else min(likely))
        return origins


def _same_uploads(last: CompletedStep, before: CompletedStep) -> bool:
    """True if the uploads of a step are the same every time; an inference begins with something new."""
    return not last.opens and None not in last.payloads and last.payloads == before.payloads


def _names_of_new(ordinals: FrozenSet[int], older: Tuple[int, ...]) -> Tuple[int, ...]:
    """Names of the new storages with these ``ordinals`` in a segment whose ``older`` storages have theirs."""
    names: List[int] = []
    number = ordinal = 0
    used = set(older)
    last = max(ordinals, default=-1)
    while ordinal <= last:
        if number not in used:
            if ordinal in ordinals:
                names.append(number)
            ordinal += 1
        number += 1
    return tuple(names)
