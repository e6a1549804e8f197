"""Sizes that depend on data: the server runs ahead by formulas, and what it ran is never taken for something else."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.errors import ProtocolError
from edge_offload.ir.operators import OFFSET, SIZE, STRIDE, Varying
from edge_offload.ir.trace.keys import decode_key, first_integers
from edge_offload.ir.trace.segments import StepOutcome
from edge_offload.ir.trace.symbols import Formula, evaluate_formula, facts_of, parse_formula, split_sum
from edge_offload.ir.trace.symbols import explain_columns as explaining
from edge_offload.ir.trace.trace_graph import Patch, TraceGraph, TraceStep, following_step, parse_graph, parse_step
from edge_offload.replay.signatures import upload_sizes
from tests.replay.test_definitions import number, tensor

OutcomeHistory = List[Tuple[int, ...]]


def explain(columns: List[Tuple[int, ...]], samples: List[OutcomeHistory]) -> Dict[Tuple[int, ...], Any]:
    """What :func:`explaining` finds, however long it takes."""
    work = explaining(columns, samples)
    while True:
        try:
            next(work)
        except StopIteration as over:
            formulas: Dict[Tuple[int, ...], Any] = over.value
            return formulas


#: Twice the sum of two sizes, of which the second counts at most 300.
PARTS = (Formula(1, 0, ((1, 0, 0),)), Formula(1, 0, ((0, 1, 0),), (-(1 << 62), 300)))
FORMULA = Formula(2, 1, parts=PARTS)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=5, max_size=8, unique=True),
    st.integers(1, 16), st.integers(0, 64),
)  # fmt: skip
def test_formulas_are_derived_and_hold_for_unseen_sizes(
    sizes: List[Tuple[int, int]], factor: int, constant: int
) -> None:
    def since(n: int, m: int) -> OutcomeHistory:
        return [(n, 57), (1,), (m,)]

    truths = {"linear": lambda n, m: factor * n + constant, "product": lambda n, m: factor * n * m,
              "square": lambda n, m: 8 * m * m}  # fmt: skip
    samples = [since(n, m) for n, m in sizes]
    for truth in truths.values():
        column = tuple(truth(n, m) for n, m in sizes)
        if len(set(column)) == 1:
            continue
        formulas = explain([column], samples)
        assert all(evaluate_formula(formulas[column], item) == value for item, value in zip(samples, column))


@given(
    st.lists(st.integers(0, 900), min_size=4, max_size=8, unique=True),
    st.sampled_from([1, 4, 8, 16]),
    st.integers(1, 600),
)
def test_the_best_so_many_are_a_formula_too(sizes: List[int], factor: int, most: int) -> None:
    column = tuple(factor * min(size, most) for size in sizes)
    if not any(0 < size < most for size in sizes):
        return  # nothing says how it grows
    samples: List[OutcomeHistory] = [[(size, 57)] for size in sizes]
    formulas = explain([column], samples)
    assert [evaluate_formula(formulas[column], since) for since in samples] == list(column)


def test_a_bound_holds_for_sizes_beyond_it() -> None:
    samples: List[OutcomeHistory] = [[(size,)] for size in (7, 450, 12, 301)]
    column = (28, 1200, 48, 1200)
    formula = explain([column], samples)[column]
    assert [evaluate_formula(formula, [(size,)]) for size in (0, 9, 299, 300, 3234)] == [0, 36, 1196, 1200, 1200]


def test_sizes_are_added_up() -> None:
    since = [(4,), (700,), (6,)]
    assert evaluate_formula(FORMULA, since) == 2 * (6 + 300) + 1


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 400))
def test_summands_add_up_to_their_formula(factor: int, other: int, size: int) -> None:
    nested = Formula(factor, parts=(*PARTS, Formula(other, 3, ((1, 0, 0),), (0, 900))))
    summands, since = split_sum(nested), [(4,), (size,), (size,)]
    assert summands is not None
    assert not any(part.parts for part in summands)
    assert sum(evaluate_formula(part, since) for part in summands) == evaluate_formula(nested, since)


def test_a_bounded_sum_has_no_summands() -> None:
    assert split_sum(Formula(1, parts=PARTS, bounds=(0, 7))) is None


@pytest.mark.parametrize("bounds", [(0,), (0, 1, 2), (0, 1 << 63), (-(1 << 63), 0), "ab", (0.5, 1)])
def test_a_formula_with_other_bounds_is_refused(bounds: object) -> None:
    with pytest.raises(ValueError, match="formula"):
        parse_formula((1, 0, (), bounds, ()))


def test_a_formula_of_formulas_of_formulas_is_refused() -> None:
    inner = (1, 0, (), (), (FORMULA,))
    with pytest.raises(ValueError, match="malformed"):
        parse_formula(inner)


@pytest.mark.parametrize("value", [1 << 61, (1 << 64) - 1, -(1 << 61)])
def test_numbers_of_storages_that_would_not_fit_are_refused(value: int) -> None:
    node = [None, b"", [], [[0, 1, value]], [], b"", [], False, []]
    with pytest.raises(ProtocolError, match="malformed trace step"):
        parse_step(node)
    graph = [None, [], abs(value), 0, [], False]
    with pytest.raises(ValueError, match="number of things"):
        parse_graph(graph)


def test_a_formula_holds_for_the_next_size() -> None:
    samples: List[OutcomeHistory] = [[(n, 4), (m,)] for n, m in ((7, 3), (9, 3), (12, 5), (3, 2))]
    column = tuple(16 * first[0] for first, _ in samples)
    formulas = explain([column], samples)
    assert evaluate_formula(formulas[column], [(101, 4), (8,)]) == 1616


def test_what_follows_from_no_size_has_no_formula() -> None:
    assert explain([(3, 1, 4, 1, 5)], [[(n,)] for n in (2, 7, 18, 28, 30)]) == {}


@pytest.mark.parametrize(
    "formula", [Formula(1, 0, ((0, 3, 0),)), Formula(1, 0, ((1, 0, 9),)), Formula(1 << 62, 0, ((0, 0, 0),))]
)
def test_a_formula_that_cannot_be_evaluated_is_refused(formula: Formula) -> None:
    with pytest.raises(ProtocolError):
        evaluate_formula(formula, [(5, 6)])


def test_outcomes_are_distinguished_by_zero_one_and_more_by_truth_and_by_sign() -> None:
    def kind(value: object) -> tuple:
        return facts_of(StepOutcome(tensor=torch.tensor(value)))[1]

    assert kind(True) != kind(False)
    assert kind(2.5) != kind(-2.5)
    assert kind(2.5) == kind(7.5)
    assert kind(float("nan")) not in (kind(1.0), kind(-1.0), kind(0.0))
    sizes = [facts_of(StepOutcome(results=[["t", [0, 0, 4, 0, [n, 57], [57, 1], 0, 8]]])) for n in (0, 1, 2, 30)]
    assert len({outcome for _, outcome in sizes}) == 3
    assert sizes[3] == ((30, 57), (2, 2))


def test_the_places_of_integers_are_those_that_the_server_reads() -> None:
    key = tensor(6, 3) + number(5) + b"V" + (2).to_bytes(4, "little") + bytes(16) + b"NX\x02\0\0\0TIF" + bytes(8)
    operator, offsets, _ = decode_key("aten::any", key)
    ((first, view),) = first_integers(operator)
    assert (first, view.reference, view.layout.sizes) == (0, 0, (3,))
    changed = bytearray(key)
    for value, offset in enumerate(offsets, 2):
        changed[offset : offset + 8] = value.to_bytes(8, "little")
    read = decode_key("aten::any", bytes(changed)).operator
    assert read.args[0].layout.sizes == (2,)
    assert read.args[1:3] == (6, (7, 8))
    varying = decode_key("aten::any", key, {offset: value for value, offset in enumerate(offsets)}).operator
    assert varying.args[0].varying == ((SIZE, 0, 0), (STRIDE, 0, 1), (OFFSET, 0, 2))
    assert varying.args[1:3] == (Varying(4), (Varying(5), Varying(6)))


def test_nodes_and_courses_survive_the_wire() -> None:
    node = TraceStep(None, (0, 1), (Patch(0, 8, FORMULA),), ((0, 1, -3),), (2,), b"n", (b"p",), True, (0,))
    graph = TraceGraph([(4, [((2, 57), 0)]), (5, [])], [((), 1)], None, 17, [(3, 4), ()])
    read = msgpack.unpackb(msgpack.packb([node.to_wire(), graph.to_wire()]), use_list=True)
    assert parse_step(read[0]) == node
    assert parse_graph(read[1]) == (graph, False)
    assert following_step(graph.nodes[0][1], (2, 57)) == 0
    assert following_step(graph.nodes[0][1], (1, 57)) is None
    assert following_step([(None, 3), ((1,), 4)], (2,)) == 3


@given(st.binary(max_size=60) | st.lists(st.integers() | st.binary(max_size=4) | st.none(), max_size=9))
def test_what_is_no_node_is_refused(data: object) -> None:
    with pytest.raises(ProtocolError):
        parse_step(data)


@pytest.mark.process
@given(st.lists(st.integers() | st.lists(st.integers(), max_size=3) | st.none(), min_size=6, max_size=6))
def test_an_edge_of_a_graph_leads_somewhere(data: list) -> None:
    try:
        graph, _ = parse_graph(data)
    except (ValueError, TypeError):
        return
    assert all(node < len(graph.nodes) for _, edges in graph.nodes or () for _, node in edges)


@given(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=20), st.data())
def test_sizes_of_uploads_have_equal_places_before_the_last_one_arrives(
    shapes: List[List[int]], data: st.DataObject
) -> None:
    payloads = [torch.zeros(shape) for shape in shapes]
    made = data.draw(st.integers(0, len(payloads)))
    sizes = upload_sizes(payloads)
    begun = upload_sizes(payloads[:made], [bytes(payload.nbytes) for payload in payloads[made:]])
    assert sizes[: len(begun)] == begun
    assert len(begun) >= len(payloads)
