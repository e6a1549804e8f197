"""Predicting which steps come next, from those that came before.

The operator sequence search runs over the log of steps; once it has found the inference, the next step is the one after
in its cycle. Before that, and for programs that branch, it is what followed the same few steps and outcomes last time.
From such predictions grows a trace graph of steps that the server can run speculatively.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Callable, Deque, Dict, Iterator, List, Optional, Tuple

from edge_offload.ir.trace.budget import Budget, Work
from edge_offload.ir.trace.symbols import REACH, BranchKey
from edge_offload.ir.trace.trace_graph import Edge
from edge_offload.replay.flushed import DYNAMIC, READ
from edge_offload.replay.prediction.constants import ConstantUploads
from edge_offload.replay.prediction.cycle import LoggedStep, find_cycle
from edge_offload.replay.prediction.history import CONTEXTS, Contexts, Trail
from edge_offload.replay.prediction.step_models import StepModel, StepPlan
from edge_offload.replay.signatures import Call, CompletedStep, SignatureTable

MAX_NODES = 1024
MAX_HISTORY = 8192
MAX_STEPS = 1024
#: So far at most where no upload ends an inference: who reads first would wait for all of it.
MAX_ENDLESS = 8
#: After so many, learning begins anew.
MAX_SITES = 8192
#: Stands for all the steps of which nothing is heard.
LEFT = -1

#: Of work (see :mod:`~edge_offload.ir.trace.budget`): for what follows a few steps, and for each step that is searched.
CONTEXT_UNITS, SEARCH_UNITS = 10, 16

#: Where a step stands: its signature, the one before it, and how many steps of the inference came before; in a cycle
#: with several uploads, minus its length for the one before, and the position in it.
Site = Tuple[int, int, int]


@dataclass(frozen=True)
class State:
    """Where in the program one is: a place in the cycle, or the last few steps; steps since the inference began."""

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
        self._whole = self._shown = Branches([], [], [])
        self._job = work(self._whole)

    def go_on(self, budget: Budget) -> Branches:
        """What there is of it, with as much more as the budget allows."""
        if not self.done and budget.left:
            self.done = budget.advance(self._job)
            whole = self._whole  # what was given away does not change
            self._shown = whole if self.done else Branches(
                list(whole.plans), [list(edges) for edges in whole.edges], list(whole.first)
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
        number: Callable[[Call], int],
        min_repeats: int = 2,
        budget: Optional[Budget] = None,
    ) -> None:
        self.signatures = signatures
        self.budget = budget or Budget()
        self.start = 0
        self.history: List[Tuple[int, ...]] = [()]
        self._bases: List[int] = []
        self._number = number
        self._min_repeats = min_repeats
        self._known: Dict[int, StepModel] = {}
        self._sites: Dict[Site, StepModel] = {}
        self._opened = 0
        self._log: Deque[LoggedStep] = deque(maxlen=MAX_HISTORY)
        self._ended = READ
        self._constants = ConstantUploads()
        self._contexts = Contexts(self._reason, MAX_STEPS)
        self._place = self._contexts.first()
        self._cycle: List[int] = []
        self._position = 0
        self._one_upload = True
        self._search_at = 4
        self._since_search = 0
        self._missed = self._put_off = False
        self._version = 0
        self._cache: Dict[Tuple[State, Optional[int]], _GrowingGraph] = {}
        self._steps = 0
        self._announced = self._unfinished = False

    @property
    def full(self) -> bool:
        """Whether so much is known that it is time to learn everything anew."""
        return len(self._sites) > MAX_SITES

    @property
    def cycle(self) -> Tuple[int, ...]:
        """The signatures of one inference, as found by the operator sequence search; empty while it is unknown."""
        return tuple(self._cycle)

    def opens(self) -> bool:
        """Whether the next step begins an inference if it uploads something: see :meth:`begin`."""
        return self._ahead()[1]

    def _ahead(self) -> Tuple[State, bool]:
        """Where the next step stands if it uploads something, and :meth:`opens`."""
        state = self._state()
        opened = replace(state, steps=0)
        if self._ended == READ:
            expected = self._next(state)
            constant = expected is not None and self._constants.expected(expected)
            return (state, False) if constant else (opened, True)
        expected = self._next(opened) if self._ended == DYNAMIC else None
        opens = expected is not None and self._opened_last(expected)
        return (opened, True) if opens else (state, False)

    def _opened_last(self, signature: int) -> bool:
        last = self._known[signature].last if signature in self._known else None
        return last is not None and last.opens

    def leave(self) -> None:
        """Of the rest of this inference nothing is heard: what is expected next is the beginning of another."""
        if self._place.trail[-1:] != ((LEFT, ()),):
            self._place = self._contexts.after(self._place, LEFT, ())
        self._log.clear()
        self._cycle, self._search_at, self._since_search = [], 4, 0
        self._missed = self._put_off = False
        self._ended = READ
        self._version += 1

    def begin(self, done: CompletedStep, left: Optional[int] = None) -> None:
        """``done`` is the next step; its outcome is not known yet. Says of it whether it begins an inference.

        One does that uploads something after a read, unless it is a constant; or after a size that depends on data, if
        the upload varies and what is done with it uses nothing but what it used last time: an inference that finds
        nothing has nothing to read. ``left``: why the step before it ended, after :meth:`leave`.
        """
        self._ended = left if left is not None else self._ended
        if done.payloads and self._ended == READ:
            done.opens = not self._constants.note(done.signature.number, done.payloads)
        elif done.payloads and self._ended == DYNAMIC:
            known = self._known.get(done.signature.number)
            last = known.last if known is not None else None
            if last is not None and last.live == done.live:
                done.opens = last.opens or None in done.payloads or last.payloads != done.payloads
        self._steps += 1
        if (done.opens and not self._announced) or self._steps >= MAX_STEPS:
            self._renew()
        self._announced = False
        self.budget.step()
        if done.opens:
            self.start, self.history, self._bases = done.base, [done.upload_sizes], []
            self._place = self._contexts.opened(self._place)
            self._opened += 1

    def add(self, done: CompletedStep, confirmed: bool) -> None:
        """Learn from what the program did, after :meth:`begin`."""
        if confirmed:  # there is nothing to work out, and the clock of the processor is a system call
            self._add(done, confirmed)
            return
        with self.budget:
            self._add(done, confirmed)

    def _add(self, done: CompletedStep, confirmed: bool) -> None:
        signature, place = done.signature.number, self._place
        if not self._missed:
            self._missed = self._expected() != signature
        site = self._site(signature, self._position, place.trail, place.steps)
        general, here = self._known.get(signature), self._sites.get(site)
        if general is None:
            general = self._known[signature] = self._model(signature)
        if here is None:
            here = self._sites[site] = self._model(signature)
        confirmed = confirmed or here.expects(done, self.history, self.start)
        self._missed = self._missed or not confirmed
        self.budget.charge(CONTEXT_UNITS if confirmed else CONTEXT_UNITS + 6 * len(done.live))
        for model in (general, here):
            if model.learn(done, self.history, self.start, confirmed, self._bases):
                self._version += 1
        self.history.append(done.integers)
        self._bases.append(done.base)
        if len(self.history) > 4 * REACH:
            del self.history[REACH:-REACH]
        if place.note(signature):
            self._version += 1
        self._log.append(LoggedStep(signature, done.reason in (READ, DYNAMIC), done.opens))
        self._ended = done.reason
        self._place = self._contexts.after(place, signature, done.kind)
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
                self._put_off = self.budget.left < 2 * SEARCH_UNITS * self._search_at
                if not self._put_off:
                    with self.budget:
                        self._search()

    def _renew(self) -> None:
        self._steps = 0
        self.budget.renew()
        if self._put_off:  # before a trace graph takes what there is
            self._search()

    def next(self) -> Optional[StepPlan]:
        """The step that will probably come next."""
        state, _ = self._ahead()  # only a step that uploads something is announced
        signature = self._next(state)
        return self._plan(self._site_of(state, signature)) if signature is not None else None

    def branches(self, doing: Optional[CompletedStep] = None) -> Optional[Branches]:
        """What will probably come next, or after the step ``doing``, up to the next upload that cannot be known."""
        state, opens = self._ahead() if doing is None else (self._state(), False)
        if opens and not self._announced:
            self._announced = True
            self._renew()
        signature = doing.signature.number if doing is not None else None
        key = (state, signature)
        growing = self._cache.get(key)
        if growing is None or growing.version != self._version:
            if len(self._cache) > 256:
                self._cache.clear()
            growing = self._cache[key] = _GrowingGraph(self._version, lambda found: self._grow(state, signature, found))
        shown = growing.go_on(self.budget)
        return shown if shown.first else None

    def _grow(self, state: State, doing: Optional[int], found: Branches) -> Work[None]:
        """Add to ``found`` what will probably come; it is a trace graph all the while."""
        places: Dict[Tuple[int, Site], int] = {}
        waiting: Deque[Tuple[State, int, List[Edge]]] = deque()
        endless = self._opened < 2 or (state.steps >= MAX_STEPS and not self._cycle)
        limit = MAX_ENDLESS if endless else MAX_NODES

        def enter(place: State, came_from: Optional[int], edges: List[Edge], kind: BranchKey) -> Work[None]:
            yield CONTEXT_UNITS
            signature = self._next(place)
            if signature is None:
                return
            here = place.position, self._site_of(place, signature)
            if here not in places:
                plan = self._plan(here[1]) if len(places) < limit else None
                while plan is None and self._unfinished:  # in the next inference, then
                    yield 1
                    plan = self._plan(here[1])
                if plan is None or not self._may_follow(came_from, plan):
                    return
                places[here] = len(found.plans)
                found.plans.append(plan)
                found.edges.append([])
                waiting.append((place, signature, found.edges[-1]))
            if not edges and came_from is not None and self._reason(came_from) == READ:
                edges.append((None, places[here]))  # what is read seldom decides what is computed next
            edges.append((kind, places[here]))

        if doing is None:
            yield from enter(state, None, found.first, ())
        elif self._next(state) == doing or not self._cycle:
            for kind, place in self._outcomes(state, doing):
                yield from enter(place, doing, found.first, kind)
        while waiting:
            place, signature, edges = waiting.popleft()
            for kind, following in self._outcomes(place, signature):
                yield from enter(following, signature, edges, kind)

    def _site_of(self, state: State, signature: int) -> Site:
        return self._site(signature, state.position, state.trail, state.steps)

    def _site(self, signature: int, position: int, trail: Trail, steps: int) -> Site:
        """Where ``signature`` stands, if it is the next."""
        if self._cycle and not self._one_upload:
            return signature, -1 - len(self._cycle), position
        return signature, trail[-1][0] if trail else -1, steps

    def _model(self, signature: int) -> StepModel:
        return StepModel(signature, len(self._known) + len(self._sites), self.signatures.calls(signature)[1])

    def _may_follow(self, before: Optional[int], plan: StepPlan) -> bool:
        """Whether the server can do a step without the client: its uploads must be known."""
        if before is None or not self._known[plan.signature].uploads:
            return True
        constant = self._reason(before) == DYNAMIC or self._constants.expected(plan.signature)
        return constant and bool(plan.node.payloads)

    def _reason(self, signature: int) -> Optional[int]:
        last = self._known[signature].last if signature in self._known else None
        return last.reason if last is not None else None

    def _outcomes(self, state: State, signature: int) -> Iterator[Tuple[BranchKey, State]]:
        known = self._known.get(signature)
        position = (state.position + 1) % len(self._cycle) if self._cycle else 0
        for kind in reversed(known.kinds) if known is not None else ():
            trail = (*state.trail[-CONTEXTS[0] + 1 :], (signature, kind))
            if self._cycle:
                trail = ((signature, ()),)
            yield kind, State(position, trail, min(state.steps + 1, MAX_STEPS))

    def _state(self) -> State:
        place = self._place
        if not self._cycle:
            return State(0, place.trail, place.steps)
        return State(self._position, ((place.trail[-1][0], ()),), place.steps)

    def _expected(self) -> Optional[int]:
        if self._cycle:
            return self._cycle[self._position]
        return self._contexts.expected_of(self._place.followers)

    def _next(self, state: State) -> Optional[int]:
        if self._cycle:
            return self._cycle[state.position]
        return self._contexts.expected(state.trail, state.steps)

    def _plan(self, site: Site) -> Optional[StepPlan]:
        """What is known of the signature at its site; where it stood anywhere, if that says more.

        Afterwards ``_unfinished`` says whether more of the budget would say more.
        """
        self._unfinished = False
        general = self._known[site[0]]
        here = self._sites.get(site)
        for model, other in ((here, general), (general, None)):
            if model is not None:
                plan = model.plan(self.signatures.call, self._number, self.budget, other)
                if plan is not None or model.unfinished:
                    self._unfinished = model.unfinished
                    return plan
        return None

    def _search(self) -> None:
        self._put_off = False
        recent = list(self._log)[-(self.budget.left // (2 * SEARCH_UNITS)) :]  # of the budget half at most
        self.budget.charge(SEARCH_UNITS * len(recent))
        found = find_cycle(recent, self._min_repeats)
        if found is None:
            self._search_at = min(2 * self._search_at, MAX_HISTORY // 2)
            return
        start, length = found
        history = [step.signature for step in recent]
        cycle = history[start : start + length]
        for index in range(start, len(history)):
            if history[index] != cycle[(index - start) % length]:
                return
        self._cycle = cycle
        self._one_upload = sum(step.uploads for step in recent[start : start + length]) < 2
        self._position = (len(history) - start) % length
        self._version += 1
