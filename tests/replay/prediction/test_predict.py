"""What is expected to come next, from what came before: no device needed, steps are made by hand."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from edge_offload.ir.trace.budget import LearningBudget
from edge_offload.replay.prediction.predict import CONTEXT_UNITS, Predictor
from edge_offload.replay.signatures import CompletedStep, SegmentSignature

READ, DYNAMIC = 0, 2
CALLS: Tuple[Tuple[int, ...], Tuple[Tuple[int, ...], ...]] = ((), ())


class FormsByHand:
    """Forms without calls."""

    def skeletons_of(self, form: int) -> Any:
        return CALLS

    def call_of(self, entry: int) -> Any:
        raise AssertionError("there are no calls")


class Program:
    """Does steps, each with one storage of its own, and looks at what was expected."""

    def __init__(self, budget: Optional[LearningBudget] = None) -> None:
        self.predictor = Predictor(FormsByHand(), lambda call: 0, budget=budget)  # type: ignore[arg-type]
        self.base = 1

    def step(
        self, form: int, kind: Tuple[int, ...] = (), upload: bool = False, reason: int = READ,
        live: Tuple[int, ...] = (), confirmed: bool = False,
    ) -> None:  # fmt: skip
        payloads: Tuple[Any, ...] = (None,) if upload else ()
        names = tuple(range(len(live)))
        done = CompletedStep(
            SegmentSignature(form, (), ()), form, names, self.base, live, frozenset(), b"", payloads, reason
        )
        self.predictor.begin_step(done)
        done.kind = kind
        self.predictor.learn_step(done, confirmed)
        self.base += 1

    def expected(self) -> List[int]:
        """Forms along the course, by the first edge each time."""
        grown = self.predictor.grow_branches()
        if grown is None:
            return []
        index, signatures = grown.first[0][1], []
        while len(signatures) < 12:
            signatures.append(grown.plans[index].signature)
            if not grown.edges[index]:
                break
            index = grown.edges[index][0][1]
        return signatures


def test_an_inference_is_expected_completely_after_two_observations() -> None:
    program = Program()
    for _ in range(3):
        for form in (10, 11, 12, 13):
            program.step(form, upload=form == 10)
    assert program.expected() == [10, 11, 12, 13]


def test_an_expected_inference_needs_no_processor_time() -> None:
    times: List[float] = []

    def busy() -> float:
        times.append(0.0)
        return 0.0

    program = Program(LearningBudget(busy=busy, clock=lambda: 0.0))
    for turn in range(4):
        if turn == 3:
            assert program.expected() == [10, 11, 12, 13]
            times.clear()
        for form in (10, 11, 12, 13):
            program.step(form, upload=form == 10, confirmed=turn == 3)
    assert not times, "a system call for each step, while the frame waits"
    assert program.expected() == [10, 11, 12, 13]


def test_a_single_exception_is_not_expected_later() -> None:
    program = Program()
    for kinds, extra in (((0,) * 8, False), ((1, 1), True), ((0,) * 4, False), ((1, 1), False)):
        for kind in kinds:
            program.step(10, upload=True)
            program.step(11, kind=(kind,))
            program.step(12)
        if extra:
            program.step(99)
    assert program.expected() == [10, 11, 12]


def test_a_number_that_was_never_read_before_changes_nothing() -> None:
    program = Program()
    for turn in range(6):
        program.step(10, kind=(turn % 2,), upload=True)
        program.step(11)
    program.step(10, kind=(-1,), upload=True)
    grown = program.predictor.next_step()
    assert grown is not None
    assert grown.signature == 11


def test_what_a_number_meant_in_another_place_is_not_taken_for_a_rule() -> None:
    program = Program()
    for _ in range(4):
        program.step(5, upload=True)
        program.step(10, kind=(-1,))
        program.step(77)
    for turn in range(6):
        program.step(6, upload=True)
        program.step(10, kind=(turn % 2,))
        program.step(11)
        program.step(12)
    program.step(6, upload=True)
    program.step(10, kind=(-1,))
    grown = program.predictor.next_step()
    assert grown is not None
    assert grown.signature == 11


def test_a_loop_goes_on_by_the_size_of_each_result() -> None:
    program = Program()
    for turns in (3, 2, 5, 4, 2, 3):
        program.step(10, upload=True, reason=DYNAMIC, kind=(2,))
        for turn in range(turns, 0, -1):
            program.step(20, kind=(2,) if turn > 1 else (0,), reason=DYNAMIC)
        program.step(30)
    grown = program.predictor.grow_branches()
    assert grown is not None
    loops = [index for index, plan in enumerate(grown.plans) if plan.signature == 20]
    assert loops
    for index in loops:
        following = {kind: grown.plans[node].signature for kind, node in grown.edges[index]}
        assert following.get((0,), 30) == 30
        assert following.get((2,), 20) == 20


def test_where_no_upload_ends_an_inference_little_is_run_ahead() -> None:
    program = Program()
    for turn in range(40):
        program.step(10 + turn % 3)
    grown = program.predictor.grow_branches()
    assert grown is not None
    assert len(grown.plans) <= 8


def test_what_comes_as_it_was_expected_teaches_nothing() -> None:
    program = Program()
    for _ in range(6):
        program.step(10, upload=True)
        program.step(11)
    program.expected()
    version, spent = program.predictor._version, program.predictor.budget.total
    for _ in range(5):
        program.step(10, upload=True)
        program.step(11)
    assert program.predictor._version == version
    assert program.predictor.budget.total - spent == 10 * CONTEXT_UNITS


def test_the_product_of_the_first_of_several_uploads_is_located_from_each_position_of_the_cycle() -> None:
    program = Program()
    for turn in range(10):
        first = program.base
        for form in (10, 11, 10, 11, 12, 11):
            if turn > 7:
                plan = program.predictor.next_step()
                assert plan is not None
                assert plan.signature == form
                assert plan.node.live_at(program.base, 0) == ([(0, first)] if form == 11 else [])
            program.step(form, upload=form == 10, live=(first,) if form == 11 else ())


def test_an_inference_that_finds_nothing_to_read_is_over_when_something_new_is_uploaded() -> None:
    program = Program()
    for turn in range(8):
        assert turn < 3 or program.predictor.may_open()
        first = program.base
        program.step(10, upload=True, reason=DYNAMIC, live=(0,))
        assert turn < 1 or program.predictor.start == first
        for _ in range(3):
            program.step(11, kind=(0,), reason=DYNAMIC, live=(first,))


def test_an_upload_that_joins_earlier_results_starts_no_inference() -> None:
    program = Program()
    for _ in range(8):
        first = program.base
        program.step(10, upload=True, live=(0,), reason=DYNAMIC)
        assert not program.predictor.may_open()
        program.step(11, upload=True, live=(first,))
        assert program.predictor.start == first


def test_of_abandoned_inferences_the_beginning_is_expected() -> None:
    program = Program()
    for turn in range(4):
        program.step(10, upload=True)
        program.step(11, kind=(turn % 2,))
        program.step(12)
        if turn:  # of what follows nothing is heard
            program.predictor.skip_inference()
            program.predictor.skip_inference()
    assert program.expected()[:3] == [10, 11, 12]
