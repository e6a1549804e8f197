"""The searches find one inference in a log, in the situations that the RRTO papers describe (Fig. 5)."""

from __future__ import annotations

from typing import List, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload_research import cricket
from edge_offload_research.call_log import Call, Category
from edge_offload_research.operator_search import (
    InferenceSequence,
    Steps,
    data_dependency_search,
    operator_sequence_search,
    z_function,
)
from tests.research.cricket_log import synthetic_log

WEIGHT, INPUT, STATE = 1, 2, 3


def htod(address: int) -> Call:
    return Call(Category.HTOD, "cudaMemcpyHtoD", address, writes=(address,))


def dtoh(address: int) -> Call:
    return Call(Category.DTOH, "cudaMemcpyDtoH", address, reads=(address,))


def launch(name: str, reads: List[int], writes: List[int]) -> Call:
    return Call(Category.LAUNCH, name, (), tuple(reads), tuple(writes))


SYNC = Call(Category.SYNC, "cudaStreamSynchronize")
QUERY = Call(Category.QUERY, "cudaGetDevice")
LOADING = [htod(WEIGHT), SYNC, launch("init", [], [40]), launch("init", [], [41])]
SIMPLE = [htod(INPUT), launch("conv", [INPUT, WEIGHT], [10]), launch("relu", [10], [11]), dtoh(11), SYNC]
#: Two uploads and three copies back; the second upload happens after the first copy back.
MANY_COPIES = [
    htod(INPUT), launch("a", [INPUT, WEIGHT], [10]), dtoh(10), SYNC,
    htod(20), launch("b", [20, 10], [21]), dtoh(21), SYNC, dtoh(10), SYNC,
]  # fmt: skip


def extract(log: List[Call], sequence: Optional[InferenceSequence]) -> List[Call]:
    assert sequence is not None
    return log[sequence.start : sequence.stop]


def test_initialisation_noise_is_omitted() -> None:
    first = [htod(INPUT), launch("grid", [INPUT], [9]), *SIMPLE[1:]]
    log = [*LOADING, *first, *SIMPLE * 4]
    assert extract(log, operator_sequence_search(log)) == SIMPLE


def test_merged_repeats_are_one_inference_each() -> None:
    log = SIMPLE * 8
    sequence = operator_sequence_search(log)
    assert extract(log, sequence) == SIMPLE
    assert sequence is not None
    assert sequence.repeats == 8


def test_several_uploads_and_copies_back_are_one_inference() -> None:
    log = [*LOADING, *MANY_COPIES * 4]
    assert extract(log, operator_sequence_search(log)) == MANY_COPIES


@pytest.mark.parametrize("cut", range(len(MANY_COPIES)))
def test_log_cut_inside_an_inference_is_realigned(cut: int) -> None:
    log = [*LOADING, *MANY_COPIES * 5, *MANY_COPIES[:cut]]
    assert extract(log, operator_sequence_search(log)) == MANY_COPIES


def test_queries_between_inferences_do_not_hide_the_boundary() -> None:
    once = [QUERY, QUERY, *SIMPLE]
    log = [*LOADING, *once * 4]
    assert extract(log, operator_sequence_search(log)) == once


def test_too_few_repeats_give_no_answer_yet() -> None:
    log = [*LOADING, *SIMPLE * 3]
    assert operator_sequence_search(log, min_repeats=4) is None
    assert operator_sequence_search(log, min_repeats=3) is not None


def test_a_loop_inside_the_model_is_not_the_model() -> None:
    inner = [htod(5), launch("cell", [5, 10], [10]), dtoh(10), SYNC]
    once = [*SIMPLE[:2], *inner * 4]
    log = [*LOADING, *once * 5]
    assert len(extract(log, operator_sequence_search(log))) == len(once)


def test_different_arguments_are_a_different_sequence() -> None:
    other = [SIMPLE[0], launch("conv", [INPUT, WEIGHT], [77]), *SIMPLE[2:]]
    log = [*SIMPLE, *other, *SIMPLE, *other, *SIMPLE, *other]
    assert extract(log, operator_sequence_search(log)) == [*SIMPLE, *other]


def test_state_that_the_model_updates_is_reported_and_does_not_refuse_it() -> None:
    counting = [SIMPLE[0], launch("add_", [STATE], [STATE]), *SIMPLE[1:]]
    log = [htod(STATE), *LOADING, *counting * 4]
    sequence = operator_sequence_search(log)
    assert extract(log, sequence) == counting
    assert sequence is not None
    assert sequence.carried == (STATE,)


def test_a_log_without_copies_has_no_inference() -> None:
    assert operator_sequence_search([launch("k", [1], [2])] * 20) is None
    assert operator_sequence_search([]) is None
    assert data_dependency_search([launch("k", [1], [2])] * 20) is None


def test_fewer_than_two_repeats_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        operator_sequence_search(SIMPLE, min_repeats=1)


def test_dependency_search_finds_the_inference_behind_several_copies_back() -> None:
    log = [*LOADING, *MANY_COPIES * 3]
    assert extract(log, data_dependency_search(log)) == MANY_COPIES


def test_dependency_search_ignores_the_different_first_inference() -> None:
    first = [htod(INPUT), launch("grid", [INPUT], [9]), *SIMPLE[1:]]
    log = [*LOADING, *first, *SIMPLE * 3]
    assert extract(log, data_dependency_search(log)) == SIMPLE


def test_dependency_search_needs_a_connected_model_and_the_other_does_not() -> None:
    two_models = [*SIMPLE, htod(50), launch("other", [50], [51]), dtoh(51), SYNC]
    log = [*LOADING, *two_models * 4]
    assert len(extract(log, operator_sequence_search(log))) == len(two_models)
    assert data_dependency_search(log) is None


@settings(max_examples=80, deadline=None)
@given(
    noise=st.lists(st.sampled_from([*LOADING, *SIMPLE, QUERY]), max_size=12),
    layers=st.integers(1, 12),
    repeats=st.integers(3, 6),
    cut=st.integers(0, 30),
)
def test_any_chain_of_layers_is_recognised_behind_any_noise(
    noise: List[Call], layers: int, repeats: int, cut: int
) -> None:
    once = [htod(INPUT), *(launch(f"l{i}", [INPUT if i == 0 else 99 + i, WEIGHT], [100 + i]) for i in range(layers))]
    once += [dtoh(99 + layers), SYNC]
    log = [*noise, *once * repeats, *once[: min(cut, len(once) - 2)]]
    assert extract(log, operator_sequence_search(log)) == once


@given(st.lists(st.integers(0, 2), max_size=60))
def test_z_function_is_the_common_prefix(symbols: List[int]) -> None:
    def prefix(i: int) -> int:
        length = 0
        while i + length < len(symbols) and symbols[length] == symbols[i + length]:
            length += 1
        return length

    assert z_function(symbols) == [prefix(i) for i in range(len(symbols))]


@pytest.mark.parametrize("search", [operator_sequence_search, data_dependency_search])
def test_cost_grows_linearly_with_the_log(search) -> None:  # type: ignore[no-untyped-def]
    counts = []
    for inferences in (250, 1000):
        once = [htod(INPUT), *(launch(f"l{i}", [INPUT, 99 + i], [100 + i]) for i in range(46)), dtoh(145), SYNC]
        steps = Steps()
        assert search([*LOADING, *once * inferences], steps=steps) is not None
        counts.append(steps.count)
    assert counts[1] < 4.4 * counts[0]


def test_many_copies_in_one_inference_stay_linear() -> None:
    counts = []
    for pairs in (100, 400):
        once = []
        for i in range(pairs):
            once += [htod(1000 + i), launch("k", [1000 + i, 1999 + i], [2000 + i]), dtoh(2000 + i), SYNC]
        steps = Steps()
        log = once * 4
        assert len(extract(log, operator_sequence_search(log, steps=steps))) == len(once)
        counts.append(steps.count)
    assert counts[1] < 4.4 * counts[0]


def test_published_call_counts_and_the_search_over_them() -> None:
    log = synthetic_log(inferences=8)
    assert len(log) > 1e5
    for name, count in cricket.LOOP_INFERENCE.items():
        assert sum(call.function == name for call in synthetic_log(1)[-5895:]) == count
    sequence = operator_sequence_search(log)
    assert sequence is not None
    assert sequence.length == 5895
    assert sequence.repeats == 8
    assert extract(log, sequence) == log[-5895:]


def test_cricket_record_is_marked_as_synthetic() -> None:
    record = cricket.make_record()
    assert record["synthetic"] is True
    assert record["rpcs"] == {"cricket": 5895, "semi_rrto": 553, "rrto": 11}
