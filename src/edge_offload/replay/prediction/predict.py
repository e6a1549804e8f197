"""Predicting which steps come next, from those that came before.

The operator sequence search runs over the log of steps; once it has found the inference, the next step is the one after
in its cycle. Before that, and for programs that branch, it is what followed the same few steps and outcomes last time.
From such predictions grows a trace graph of steps that the server can run speculatively.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Callable, Deque, Dict, Iterator, List, Optional, Tuple

from edge_offload.ir.trace.budget import LearningBudget, Work
from edge_offload.ir.trace.symbols import REACH, BranchKey
from edge_offload.ir.trace.trace_graph import Edge
from edge_offload.replay.flushed import DYNAMIC, READ
from edge_offload.replay.prediction.constants import ConstantUploads
from edge_offload.replay.prediction.cycle import LoggedStep, find_cycle
from edge_offload.replay.prediction.history import CONTEXTS, Contexts, Trail
from edge_offload.replay.prediction.step_models import StepModel, StepPlan
from edge_offload.replay.signatures import CompletedStep, SignatureTable, TableCall

MAX_NODES = 1024
MAX_HISTORY = 8192
MAX_STEPS = 1024
#: So far at most where no upload ends an inference: who reads first would wait for all of it.
MAX_ENDLESS = 8
#: Number of sites after which learning starts over.
MAX_SITES = 8192
#: Stands for all the steps that are not observed.
UNOBSERVED = -1

#: Of work (see :mod:`~edge_offload.ir.trace.budget`): for what follows a few steps, and for each step that is searched.
CONTEXT_UNITS, SEARCH_UNITS = 10, 16

#: Where a step stands: its signature, the one before it, and how many steps of the inference came before; in a cycle
#: with several uploads, minus its length for the one before, and the position in it.
Site = Tuple[int, int, int]


@dataclass(frozen=True)
class ProgramState:
    """State of the program: position in the cycle, or the last few steps; steps since the inference began."""

    position: int
    trail: Trail
    steps: int


@dataclass
class Branches:
    """A trace graph before it has numbers: the plan of each step, and the edges."""

    plans: List[StepPlan]
    edges: List[List[Edge]]
    first: List[Edge]


class _GrowingGraph:
    """A trace graph that is being grown.

    Args:
        version: of what it is grown from.
        work: adds to a graph, which is whole whenever that stops.

    Attributes:
        done: whether there is no more to add.
        version: see above.
    """

    def __init__(self, version: int, work: Callable[[Branches], Work[None]]) -> None:
        self.version = version
        self.done = False
        self._graph = self._shown = Branches([], [], [])
        self._job = work(self._graph)

    def extend(self, budget: LearningBudget) -> Branches:
        """Extends the graph as far as the budget allows; returns what there is of it."""
        if not self.done and budget.remaining:
            self.done = budget.advance_job(self._job)
            graph = self._graph  # what was given away does not change
            self._shown = graph if self.done else Branches(
                list(graph.plans), [list(edges) for edges in graph.edges], list(graph.first)
            )  # fmt: skip
        return self._shown


class Predictor:
    """Learns from every step; guesses the next.

    Attributes:
        start: number of the first new storage of this inference.
        history: sizes of the uploads with which it began, then the integers of its outcomes so far.
        budget: what learning may cost in this inference.
    """

    def __init__(
        self,
        signatures: SignatureTable,
        number: Callable[[TableCall], int],
        min_repeats: int = 2,
        budget: Optional[LearningBudget] = None,
    ) -> None:
        self.signatures = signatures
        self.budget = budget or LearningBudget()
        self.start = 0
        self.history: List[Tuple[int, ...]] = [()]
        self._bases: List[int] = []
        self._number = number
        self._min_repeats = min_repeats
        self._models: Dict[int, StepModel] = {}
        self._sites: Dict[Site, StepModel] = {}
        self._opened = 0
        self._log: Deque[LoggedStep] = deque(maxlen=MAX_HISTORY)
        self._ended = READ
        self._constants = ConstantUploads()
        self._contexts = Contexts(self._end_reason, MAX_STEPS)
        self._place = self._contexts.start_place()
        self._cycle: List[int] = []
        self._position = 0
        self._one_upload = True
        self._search_at = 4
        self._since_search = 0
        self._missed = self._put_off = False
        self._version = 0
        self._cache: Dict[Tuple[ProgramState, Optional[int]], _GrowingGraph] = {}
        self._steps = 0
        self._announced = self._unfinished = False

    @property
    def is_full(self) -> bool:
        """True if so much was learned that learning should start over."""
        return len(self._sites) > MAX_SITES

    @property
    def cycle(self) -> Tuple[int, ...]:
        """The signatures of one inference, as found by the operator sequence search; empty while it is unknown."""
        return tuple(self._cycle)

    def may_open(self) -> bool:
        """True if the next step begins an inference, should it upload something: see :meth:`begin_step`."""
        return self._upload_state()[1]

    def _upload_state(self) -> Tuple[ProgramState, bool]:
        """State of the next step if it uploads something, and :meth:`may_open`."""
        state = self._current_state()
        opened = replace(state, steps=0)
        if self._ended == READ:
            expected = self._next_signature(state)
            constant = expected is not None and self._constants.is_expected(expected)
            return (state, False) if constant else (opened, True)
        expected = self._next_signature(opened) if self._ended == DYNAMIC else None
        opens = expected is not None and self._opened_last(expected)
        return (opened, True) if opens else (state, False)

    def _opened_last(self, signature: int) -> bool:
        last = self._models[signature].last if signature in self._models else None
        return last is not None and last.opens

    def skip_inference(self) -> None:
        """Skips the rest of this inference, which is not observed; the beginning of another is expected next."""
        if self._place.trail[-1:] != ((UNOBSERVED, ()),):
            self._place = self._contexts.place_after(self._place, UNOBSERVED, ())
        self._log.clear()
        self._cycle, self._search_at, self._since_search = [], 4, 0
        self._missed = self._put_off = False
        self._ended = READ
        self._version += 1

    def begin_step(self, done: CompletedStep, unobserved_end: Optional[int] = None) -> None:
        """Begins the step ``done``, whose outcome is open; sets whether an inference begins with it.

        One does that uploads something after a read, unless it is a constant; or after a size that depends on data, if
        the upload varies and what is done with it uses nothing but what it used last time: an inference that finds
        nothing has nothing to read. ``unobserved_end``: why the step before it ended, after :meth:`skip_inference`.
        """
        self._ended = unobserved_end if unobserved_end is not None else self._ended
        if done.payloads and self._ended == READ:
            done.opens = not self._constants.note_step(done.signature.number, done.payloads)
        elif done.payloads and self._ended == DYNAMIC:
            model = self._models.get(done.signature.number)
            last = model.last if model is not None else None
            if last is not None and last.live == done.live:
                done.opens = last.opens or None in done.payloads or last.payloads != done.payloads
        self._steps += 1
        if (done.opens and not self._announced) or self._steps >= MAX_STEPS:
            self._start_inference()
        self._announced = False
        self.budget.start_step()
        if done.opens:
            self.start, self.history, self._bases = done.base, [done.upload_sizes], []
            self._place = self._contexts.place_at_start(self._place)
            self._opened += 1

    def learn_step(self, done: CompletedStep, confirmed: bool) -> None:
        """Learns from what the program did, after :meth:`begin_step`."""
        if confirmed:  # there is nothing to work out, and the clock of the processor is a system call
            self._learn_step(done, confirmed)
            return
        with self.budget:
            self._learn_step(done, confirmed)

    def _learn_step(self, done: CompletedStep, confirmed: bool) -> None:
        signature, place = done.signature.number, self._place
        if not self._missed:
            self._missed = self._expected_signature() != signature
        site = self._site(signature, self._position, place.trail, place.steps)
        general, site_model = self._models.get(signature), self._sites.get(site)
        if general is None:
            general = self._models[signature] = self._make_model(signature)
        if site_model is None:
            site_model = self._sites[site] = self._make_model(signature)
        confirmed = confirmed or site_model.is_expected(done, self.history, self.start)
        self._missed = self._missed or not confirmed
        self.budget.add_units(CONTEXT_UNITS if confirmed else CONTEXT_UNITS + 6 * len(done.live))
        for model in (general, site_model):
            if model.learn_step(done, self.history, self.start, confirmed, self._bases):
                self._version += 1
        self.history.append(done.integers)
        self._bases.append(done.base)
        if len(self.history) > 4 * REACH:
            del self.history[REACH:-REACH]
        if place.note_next(signature):
            self._version += 1
        self._log.append(LoggedStep(signature, done.reason in (READ, DYNAMIC), done.opens))
        self._ended = done.reason
        self._place = self._contexts.place_after(place, signature, done.kind)
        if self._cycle:
            if self._cycle[self._position] == signature:
                self._position = (self._position + 1) % len(self._cycle)
            else:
                self._cycle, self._search_at, self._since_search = [], 4, 0
                self._version += 1
        else:
            self._since_search += 1
            # while the last few steps tell what is next there is nothing to be found
            if self._missed and done.reason in (READ, DYNAMIC) and self._since_search >= self._search_at:
                self._missed, self._since_search = False, 0
                self._put_off = self.budget.remaining < 2 * SEARCH_UNITS * self._search_at
                if not self._put_off:
                    with self.budget:
                        self._search_cycle()

    def _start_inference(self) -> None:
        self._steps = 0
        self.budget.start_inference()
        if self._put_off:  # before a trace graph takes what there is
            self._search_cycle()

    def next_step(self) -> Optional[StepPlan]:
        """Plan of the step that will probably come next."""
        state, _ = self._upload_state()  # only a step that uploads something is announced
        signature = self._next_signature(state)
        return self._plan_at(self._site_of(state, signature)) if signature is not None else None

    def grow_branches(self, doing: Optional[CompletedStep] = None) -> Optional[Branches]:
        """Trace graph of the next steps, or of those after ``doing``, up to an upload that cannot be predicted."""
        state, opens = self._upload_state() if doing is None else (self._current_state(), False)
        if opens and not self._announced:
            self._announced = True
            self._start_inference()
        signature = doing.signature.number if doing is not None else None
        key = (state, signature)
        growing = self._cache.get(key)
        if growing is None or growing.version != self._version:
            if len(self._cache) > 256:
                self._cache.clear()
            growing = self._cache[key] = _GrowingGraph(
                self._version, lambda found: self._grow_graph(state, signature, found)
            )
        shown = growing.extend(self.budget)
        return shown if shown.first else None

    def _grow_graph(self, state: ProgramState, doing: Optional[int], branches: Branches) -> Work[None]:
        """Add to ``branches`` what will probably come; it is a trace graph all the while."""
        places: Dict[Tuple[int, Site], int] = {}
        waiting: Deque[Tuple[ProgramState, int, List[Edge]]] = deque()
        endless = self._opened < 2 or (state.steps >= MAX_STEPS and not self._cycle)
        limit = MAX_ENDLESS if endless else MAX_NODES

        def enter(place: ProgramState, previous: Optional[int], edges: List[Edge], kind: BranchKey) -> Work[None]:
            yield CONTEXT_UNITS
            signature = self._next_signature(place)
            if signature is None:
                return
            placed = place.position, self._site_of(place, signature)
            if placed not in places:
                plan = self._plan_at(placed[1]) if len(places) < limit else None
                while plan is None and self._unfinished:  # in the next inference, then
                    yield 1
                    plan = self._plan_at(placed[1])
                if plan is None or not self._may_follow(previous, plan):
                    return
                places[placed] = len(branches.plans)
                branches.plans.append(plan)
                branches.edges.append([])
                waiting.append((place, signature, branches.edges[-1]))
            if not edges and previous is not None and self._end_reason(previous) == READ:
                edges.append((None, places[placed]))  # what is read seldom decides what is computed next
            edges.append((kind, places[placed]))

        if doing is None:
            yield from enter(state, None, branches.first, ())
        elif self._next_signature(state) == doing or not self._cycle:
            for kind, place in self._possible_outcomes(state, doing):
                yield from enter(place, doing, branches.first, kind)
        while waiting:
            place, signature, edges = waiting.popleft()
            for kind, following in self._possible_outcomes(place, signature):
                yield from enter(following, signature, edges, kind)

    def _site_of(self, state: ProgramState, signature: int) -> Site:
        return self._site(signature, state.position, state.trail, state.steps)

    def _site(self, signature: int, position: int, trail: Trail, steps: int) -> Site:
        """Site of ``signature``, if it is the next."""
        if self._cycle and not self._one_upload:
            return signature, -1 - len(self._cycle), position
        return signature, trail[-1][0] if trail else -1, steps

    def _make_model(self, signature: int) -> StepModel:
        return StepModel(signature, len(self._models) + len(self._sites), self.signatures.skeletons_of(signature)[1])

    def _may_follow(self, before: Optional[int], plan: StepPlan) -> bool:
        """True if the server can do a step without the client: its uploads must be predictable."""
        if before is None or not self._models[plan.signature].has_uploads:
            return True
        constant = self._end_reason(before) == DYNAMIC or self._constants.is_expected(plan.signature)
        return constant and bool(plan.node.payloads)

    def _end_reason(self, signature: int) -> Optional[int]:
        last = self._models[signature].last if signature in self._models else None
        return last.reason if last is not None else None

    def _possible_outcomes(self, state: ProgramState, signature: int) -> Iterator[Tuple[BranchKey, ProgramState]]:
        model = self._models.get(signature)
        position = (state.position + 1) % len(self._cycle) if self._cycle else 0
        for kind in reversed(model.kinds) if model is not None else ():
            trail = (*state.trail[-CONTEXTS[0] + 1 :], (signature, kind))
            if self._cycle:
                trail = ((signature, ()),)
            yield kind, ProgramState(position, trail, min(state.steps + 1, MAX_STEPS))

    def _current_state(self) -> ProgramState:
        place = self._place
        if not self._cycle:
            return ProgramState(0, place.trail, place.steps)
        return ProgramState(self._position, ((place.trail[-1][0], ()),), place.steps)

    def _expected_signature(self) -> Optional[int]:
        if self._cycle:
            return self._cycle[self._position]
        return self._contexts.expected_of(self._place.followers)

    def _next_signature(self, state: ProgramState) -> Optional[int]:
        if self._cycle:
            return self._cycle[state.position]
        return self._contexts.expected_after(state.trail, state.steps)

    def _plan_at(self, site: Site) -> Optional[StepPlan]:
        """Plan of the signature at its site, or wherever it stood, if that says more.

        Afterwards ``_unfinished`` says whether more of the budget would say more.
        """
        self._unfinished = False
        general = self._models[site[0]]
        site_model = self._sites.get(site)
        for model, other in ((site_model, general), (general, None)):
            if model is not None:
                plan = model.next_plan(self.signatures.call_of, self._number, self.budget, other)
                if plan is not None or model.has_work:
                    self._unfinished = model.has_work
                    return plan
        return None

    def _search_cycle(self) -> None:
        self._put_off = False
        recent = list(self._log)[-(self.budget.remaining // (2 * SEARCH_UNITS)) :]  # of the budget half at most
        self.budget.add_units(SEARCH_UNITS * len(recent))
        cycle_at = find_cycle(recent, self._min_repeats)
        if cycle_at is None:
            self._search_at = min(2 * self._search_at, MAX_HISTORY // 2)
            return
        start, length = cycle_at
        history = [step.signature for step in recent]
        cycle = history[start : start + length]
        for index in range(start, len(history)):
            if history[index] != cycle[(index - start) % length]:
                return
        self._cycle = cycle
        self._one_upload = sum(step.uploads for step in recent[start : start + length]) < 2
        self._position = (len(history) - start) % length
        self._version += 1
