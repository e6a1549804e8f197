"""Learning has a bound in every inference, whatever a program does: no device needed, steps are made by hand."""

from __future__ import annotations

import random
import struct
import sys
from types import FrameType
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from edge_offload.ir.trace.budget import UNITS, UNITS_PER_STEP, LearningBudget
from edge_offload.ir.trace.keys import decode_key
from edge_offload.replay.prediction.predict import Branches, Predictor
from edge_offload.replay.prediction.step_models import StepPlan
from edge_offload.replay.signatures import CompletedStep, SegmentSignature, TableCall

READ, DYNAMIC = 0, 2
LEARNING = ("budget", "cycle", "history", "integer_formulas", "predict", "step_models", "symbols")
LINES_PER_UNIT = 15
"""Of Python at most."""
CALLS, WIDTH = 6, 12


def standing() -> float:
    """A clock, so that work alone counts."""
    return 0.0


class WideForms:
    """Forms of :data:`CALLS` concatenations of three tensors, with :data:`WIDTH` integers each."""

    def skeletons_of(self, form: int) -> Any:
        return (0,) * CALLS, ((-1, -1, -1),) * CALLS

    def call_of(self, entry: int) -> TableCall:
        key = b"T" + struct.pack("<BBBqqqqB", 6, 0, 1, 1, 1, 0, 4, 0)
        offsets = decode_key("aten::cat", 3 * key).offsets
        return TableCall(entry, "aten::cat", 3 * key, None, 0, (1,) * WIDTH, offsets, 3)


class Program:
    """Does steps by hand, and asks what comes next as the recorder does."""

    def __init__(self, budget: LearningBudget) -> None:
        self.predictor = Predictor(WideForms(), lambda call: call.entry, budget=budget)  # type: ignore[arg-type]
        self.base = 1
        self.branches: Optional[Branches] = None
        self.announced: Optional[StepPlan] = None

    def step(
        self, form: int, integers: Any, outcome: Tuple[int, ...], opens: bool, reason: int = DYNAMIC,
        weights: Tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        payloads: Tuple[Any, ...] = (None,) if opens else ()
        entries = tuple(range(CALLS))
        live = weights or (self.base - 1,)
        done = CompletedStep(
            SegmentSignature(form, entries, integers),
            None,
            (),
            self.base,
            live,
            frozenset(),
            b"",
            payloads,
            reason,
            opens,
        )
        branches = self.branches
        if opens:
            branches = self.predictor.grow_branches() if self.announced is not None else None
        plan = next((plan for plan in branches.plans if plan.signature == form), None) if branches is not None else None
        self.predictor.begin_step(done)
        confirmed = plan is not None and plan.integers(self.predictor.history) == integers
        if not confirmed:
            branches = self.predictor.grow_branches(done)
        self.branches = branches
        done.integers, done.kind = outcome, (len(outcome) % 3,)
        self.predictor.learn_step(done, confirmed)
        self.announced = self.predictor.next_step()
        self.base += 1


def inference(program: Program, chooser: random.Random, steps: int) -> None:
    """Everything differs each time, and nothing follows from anything."""

    def several(count: int) -> Tuple[int, ...]:
        return tuple(chooser.randrange(2, 1 << 20) for _ in range(count))

    for step in range(steps):
        last = step + 1 == steps
        integers = tuple(several(WIDTH) for _ in range(CALLS))
        program.step(step % 40, integers, several(chooser.randint(1, 24)), step == 0, READ if last else DYNAMIC)


class Lines:
    """Counts the lines of Python that learning runs, which nothing has to report by itself."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        module = frame.f_globals.get("__name__", "").rsplit(".", 1)
        ours = module[0] in ("edge_offload.replay", "edge_offload.replay.prediction", "edge_offload.ir.trace")
        return self._line if ours and module[-1] in LEARNING else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += event == "line"
        return self._line

    def of(self, work: Callable[[], None]) -> int:
        self.count = 0
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        finally:
            sys.settrace(before)
        return self.count


def test_an_inference_whose_sizes_follow_from_nothing_costs_no_more_than_its_budget() -> None:
    steps = 60
    budget = LearningBudget(busy=standing, clock=standing)
    program, chooser = Program(budget), random.Random(1)
    bound = UNITS + steps * UNITS_PER_STEP
    for turn in range(4):
        lines = Lines().of(lambda: inference(program, chooser, steps))
        assert budget.units <= 1.2 * bound, f"inference {turn}"
        assert lines <= LINES_PER_UNIT * bound, f"inference {turn}"
    assert budget.total > bound, "there was enough to learn for more than one"


def test_lessons_beyond_the_budget_continue_in_later_inferences() -> None:
    def formulas(budget: LearningBudget, turns: int) -> List[Dict[int, Any]]:
        program, formulas_of_turns = Program(budget), []
        for turn in range(turns):
            sizes = (3 + turn, 50 + 3 * turn * turn)
            for form, outcome in ((10, sizes), (11, (7,)), (12, (9,))):
                width = tuple(k * sizes[k % 2] + k for k in range(WIDTH)) if form != 10 else (1,) * WIDTH
                program.step(form, (width,) * CALLS, outcome, form == 10, READ if form == 12 else DYNAMIC)
            branches = program.predictor.grow_branches()
            plans = branches.plans if branches is not None else []
            formulas_of_turns.append({plan.signature: plan.node.patches for plan in plans})
        return formulas_of_turns

    unlimited = formulas(LearningBudget(units=10**9, busy=standing, clock=standing), 24)
    small = formulas(LearningBudget(units=600, units_per_step=0, busy=standing, clock=standing), 24)
    tiny = formulas(LearningBudget(units=0, units_per_step=0, busy=standing, clock=standing), 24)
    assert set(unlimited[4]) == {10, 11, 12}
    assert len(small[4]) < len(unlimited[4])
    assert small[-1] == unlimited[-1]
    assert not any(tiny)


def test_a_first_step_with_many_weights_is_announced_after_a_few_inferences() -> None:
    program = Program(LearningBudget(units=800, units_per_step=0, busy=standing, clock=standing))
    announced = []
    for turn in range(40):
        size = 3 + turn % 3
        for form in range(10, 15):
            width = (1,) * WIDTH if form == 10 else tuple(k * size + k for k in range(WIDTH))
            outcome, weights = ((size,), tuple(range(1 << 20, (1 << 20) + 100))) if form == 10 else ((form,), ())
            program.step(form, (width,) * CALLS, outcome, form == 10, READ if form == 14 else DYNAMIC, weights)
        announced.append(program.announced is not None)
    assert all(announced[-10:])


@pytest.mark.parametrize(("seconds", "elapsed", "remains"), [(0.01, 0.0, True), (0.03, 0.0, False), (0.03, 1.0, True),
                                                          (0.3, 1.0, False)])  # fmt: skip
def test_processor_time_counts_in_addition_to_the_inferences_time(
    seconds: float, elapsed: float, remains: bool
) -> None:
    now = {"busy": 5.0, "clock": 7.0}
    budget = LearningBudget(busy=lambda: now["busy"], clock=lambda: now["clock"])
    now["busy"] += 100.0  # what the program does by itself
    with budget:
        now["busy"] += seconds
    now["clock"] += elapsed
    assert (budget.remaining > 0) is remains
    budget.start_inference()
    assert budget.remaining > 0
