"""What ran ahead counts only if the program then does exactly that: plans and steps made by hand."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest

from edge_offload.errors import ProtocolError
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.symbols import Formula
from edge_offload.ir.trace.trace_graph import FROM_START, FROM_STEP, SAME, Patch, TraceStep
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.messages import Answer
from edge_offload.replay.flushed import DYNAMIC
from edge_offload.replay.prediction.step_models import StepPlan
from edge_offload.replay.signatures import CompletedStep, SegmentSignature, TableCall
from edge_offload.replay.speculation import Speculation

#: Twice the size that the step before brought, plus one.
FORMULA = Formula(2, 1, ((1, 0, 0),))
LIKE = TableCall(7, "aten::relu", bytes(16), None, 3, (0, 0), (0, 8), 1)


class FormsByHand:
    """Remembers what the device is told."""

    def __init__(self) -> None:
        self.described: List[Tuple[bytes, Tuple[int, ...]]] = []

    def expect_results(self, calls: Any) -> None:
        self.described += [(key, integers) for _, key, integers, _ in calls]


def plan() -> StepPlan:
    """Two calls; the first integer of the second follows from what came before, and its result is foretold."""
    live = ((0, SAME, 4), (1, FROM_STEP, -1), (2, FROM_START, 2))
    node = TraceStep(None, (0, 0, 1, 1), (Patch(1, 0, FORMULA),), live, (), b"", (), True, (1,))
    return StepPlan(5, 0, node, ((8,), (0, 6)), ((1, 0),), frozenset({1}), {1: LIKE})


def done(**other: Any) -> CompletedStep:
    """The step that the plan is, when the step before brought a 9, its first storage is 30 and the inference's 20."""
    given: Dict[str, Any] = {
        "signature": SegmentSignature(5, (1, 2), ((8,), (19, 6))), "segment": 3, "canonicals": (0, 1, 2), "base": 30,
        "live": (4, 29, 22), "dead": frozenset({1, 2}), "numbers": b"", "payloads": (), "reason": DYNAMIC,
        "opens": False, **other,
    }  # fmt: skip
    return CompletedStep(**given)


def test_a_step_is_the_same_only_in_everything() -> None:
    expected = plan()
    integers = expected.integers([(1,), (9,)])
    assert integers == ((8,), (19, 6))
    assert expected.same_as(done(), 20, integers)
    assert not expected.same_as(done(), 21, integers)
    assert not expected.same_as(done(signature=SegmentSignature(5, (1, 2), ((8,), (21, 6)))), 20, integers)
    assert not expected.same_as(done(signature=SegmentSignature(6, (1, 2), ((8,), (19, 6)))), 20, integers)
    assert not expected.same_as(done(live=(4, 28, 22)), 20, integers)
    assert not expected.same_as(done(live=(4, 29)), 20, integers)
    assert not expected.same_as(done(dead=frozenset({2})), 20, integers)
    assert not expected.same_as(done(numbers=bytes(16)), 20, integers)
    assert expected.integers([]) is None  # nothing came before
    assert not expected.same_as(done(), 20, None)


def test_integers_follow_from_what_ran_before() -> None:
    signatures: Any = FormsByHand()
    ahead = Speculation([plan()], [[]], [(None, 0)], [], PendingAnswer(), last=(9,))
    described = StepOutcome(results=[["t", [0, 0, 6, 0, [24]]]], described={1: [["t", [0, 0, 6, 0, [3]]]]})
    ahead.take_in(Answer([StepOutcome()], ran=[(0, 30, described)]), signatures)
    assert [ran.integers for ran in ahead.ran] == [((8,), (19, 6))]
    assert ahead.ran[0].facts == ((24, 19, 6), (2,))
    assert ahead.history == [(9,), (24, 19, 6)]
    answered = [(0, 30, described), (0, 31, described)]
    ahead.take_in(Answer([StepOutcome()], ran=answered), signatures)
    assert [ran.integers for ran in ahead.ran] == [((8,), (19, 6)), ((8,), (49, 6))]
    keys = [(19).to_bytes(8, "little") + bytes([6]) + bytes(7), (49).to_bytes(8, "little") + bytes([6]) + bytes(7)]
    assert signatures.described == [(keys[0], (19, 6)), (keys[1], (49, 6))]


def test_results_of_a_call_are_expected_once_for_each_size() -> None:
    expected, described = plan(), {1: [["t", [0]]]}
    counts = [len(expected.expected_results(((8,), (size, 6)), described)) for size in (19, 19, 21, 21, 19)]
    assert counts == [1, 0, 1, 0, 0]


def test_a_step_of_undeterminable_sizes_ends_the_run_ahead() -> None:
    ahead = Speculation([plan()], [[(None, 0)]], [(None, 0)], [], PendingAnswer())
    ahead.future.so_far.ran.append((0, 30, StepOutcome()))
    ahead.take_in(ahead.future.so_far, FormsByHand())  # type: ignore[arg-type]
    assert ahead.ran == []
    ahead.accepted = 1
    assert not ahead.may_go_on_with(done(), 20)


def test_a_server_that_ran_unrequested_calls_is_refused() -> None:
    ahead = Speculation([], [], [], [], PendingAnswer())
    with pytest.raises(ProtocolError, match="not asked"):
        ahead.take_in(Answer([], ran=[(0, 1, StepOutcome())]), FormsByHand())  # type: ignore[arg-type]
