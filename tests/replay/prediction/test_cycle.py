"""The steps of one inference are found among all that a program did."""

from __future__ import annotations

from typing import List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.replay.prediction.cycle import LoggedStep, find_cycle, z_function
from edge_offload_research.call_log import Call, Category
from edge_offload_research.operator_search import operator_sequence_search

UPLOAD, COMPUTE, READ, INFERENCE = (
    LoggedStep(number, reads, uploads)
    for number, (reads, uploads) in enumerate([(False, True), (False, False), (True, False), (True, True)])
)


@st.composite
def logs(draw: st.DrawFn) -> List[LoggedStep]:
    """A few steps, an inference some times and its beginning, and perhaps another step."""
    kinds = [LoggedStep(number, draw(st.booleans()), draw(st.booleans())) for number in range(draw(st.integers(1, 4)))]
    some = st.lists(st.sampled_from(kinds), max_size=5)
    inference = draw(some)
    cut = inference[: draw(st.integers(0, 5))]
    return [*draw(some), *inference * draw(st.integers(0, 5)), *cut, *draw(some.map(lambda steps: steps[:1]))]


def published(log: List[LoggedStep], min_repeats: int) -> Optional[Tuple[int, int]]:
    """What the search over single calls, as published, finds."""
    calls, owners = [], []
    for index, step in enumerate(log):
        categories = [(Category.HTOD, step.uploads), (Category.LAUNCH, True), (Category.DTOH, step.reads)]
        of_step = [Call(category, category.name, step.signature) for category, present in categories if present]
        calls += of_step
        owners += [index] * len(of_step)
    sequence = operator_sequence_search(calls, min_repeats)
    members = sorted(set(owners[sequence.start : sequence.stop])) if sequence is not None else []
    return (members[0], len(members)) if members else None


@settings(max_examples=300)
@given(logs(), st.integers(2, 3))
def test_the_inference_is_that_of_the_published_search(log: List[LoggedStep], min_repeats: int) -> None:
    assert find_cycle(log, min_repeats) == published(log, min_repeats)


def test_a_loop_inside_the_network_is_not_the_network() -> None:
    inference = [UPLOAD, COMPUTE, COMPUTE, COMPUTE, READ]
    assert find_cycle([COMPUTE, *inference * 3], 2) == (11, 5)


def test_two_inferences_in_a_row_are_not_one() -> None:
    assert find_cycle([INFERENCE] * 8, 2) == (7, 1)


def test_one_inference_is_none_yet() -> None:
    assert find_cycle([UPLOAD, COMPUTE, READ], 2) is None
    with pytest.raises(ValueError, match="at least 2"):
        find_cycle([], 1)


@given(st.lists(st.integers(0, 2), max_size=30))
def test_the_z_function_is_the_length_of_common_prefixes(symbols: List[int]) -> None:
    def prefix(start: int) -> int:
        pairs = zip(symbols, symbols[start:])
        return next((length for length, (a, b) in enumerate(pairs) if a != b), len(symbols) - start)

    assert z_function(symbols) == [prefix(start) for start in range(len(symbols))]
