"""Every rule: output rows computed from the footprint alone equal those rows of the whole operator."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.ir import Kind, Operator, OperatorSequence, Ref, Value
from edge_offload.older_torch import RELEASE
from edge_offload.split.footprints.registry import _RULES, Locality
from edge_offload.split.model.locality import LocalityMap, analyse_locality, axis_choices
from tests.split.split_chains import Chain

X = Ref(0)
R = torch.randn


class Fragments:
    """Serves exactly the rows that the footprint names; anything else is an error, as it is on a real side."""

    def __init__(self, chain: Chain, located: LocalityMap, allowed: Dict[int, Tuple[int, int]]) -> None:
        self.chain, self.located, self.allowed = chain, located, allowed

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        first, last = self.allowed.get(number, (0, 0))
        assert first <= low <= high <= last, f"rows [{low}, {high}) of {number} are outside its footprint"
        return self.chain.tensors[number].narrow(self.located.axes[number], low, high - low).clone()

    def whole(self, number: int) -> torch.Tensor:
        if number in self.located.axes:
            return self.rows(number, 0, self.located.count_rows(number))
        return self.chain.tensors[number]


def check_rows(chain: Chain, axis: int, ranges: List[Tuple[int, int]]) -> LocalityMap:
    """Analyse, then compute each range of the last operator from its footprint only, and compare."""
    sequence = chain.finish()
    located = analyse_locality(sequence, {0: axis})
    index = len(sequence) - 1
    footprint = located.operators[index]
    assert footprint.local is not None, f"{sequence.operators[index].name} is not local"
    (number,) = sequence.outputs
    complete, out_axis = chain.tensors[number], located.axes[number]
    assert footprint.length == complete.shape[out_axis]
    for low, high in ranges:
        low, high = low % footprint.length, footprint.length - high % footprint.length
        if low >= high:
            low, high = 0, footprint.length
        fragments = Fragments(chain, located, located.footprint(index, low, high))
        got = footprint.local.run(low, high, fragments)[0]
        want = complete.narrow(out_axis, low, high - low)
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if want.dtype.is_floating_point:
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12, equal_nan=True)
        else:
            assert torch.equal(got, want)
    return located


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=3, max_size=3)


@given(
    axis=st.integers(0, 1), ranges=RANGES, kernel=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 3)), padding=st.tuples(st.integers(0, 5), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 2)), groups=st.sampled_from([1, 2, 4]), bias=st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_convolution(axis: int, ranges: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int,
                     bias: bool) -> None:  # fmt: skip
    chain = Chain(R(1, 4, 17, 15, dtype=torch.double))
    weight = R(8, 4 // groups, *kernel, dtype=torch.double)
    chain.call("aten.convolution.default", X, weight, R(8, dtype=torch.double) if bias else None, list(stride),
               list(padding), list(dilation), False, [0, 0], groups)  # fmt: skip
    if chain.tensors[chain.last].shape[2 + axis] > 1:
        check_rows(chain, 2 + axis, ranges)


@given(ranges=RANGES, axis=st.integers(0, 2), kernel=st.integers(1, 3), stride=st.integers(1, 3),
       padding=st.integers(0, 2), dilation=st.integers(1, 2))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_convolution_in_3d(ranges: Any, axis: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
    chain = Chain(R(1, 2, 7, 8, 9, dtype=torch.double))
    chain.call("aten.conv3d.default", X, R(3, 2, kernel, kernel, kernel, dtype=torch.double), None, [stride] * 3,
               [padding] * 3, [dilation] * 3)  # fmt: skip
    if chain.tensors[chain.last].shape[2 + axis] > 1:
        check_rows(chain, 2 + axis, ranges)


@given(ranges=RANGES, kernel=st.integers(1, 5), stride=st.integers(1, 4), padding=st.integers(0, 2),
       extra=st.integers(0, 3), dilation=st.integers(1, 2), groups=st.sampled_from([1, 2]))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_transposed_convolution(ranges: Any, kernel: int, stride: int, padding: int, extra: int, dilation: int,
                                groups: int) -> None:  # fmt: skip
    if padding > dilation * (kernel - 1) or extra >= max(stride, dilation):
        return
    chain = Chain(R(1, 4, 9, 6, dtype=torch.double))
    chain.call("aten.conv_transpose2d.input", X, R(4, 3, kernel, 3, dtype=torch.double), R(3 * groups).double(),
               [stride, 1], [padding, 1], [extra, 0], groups, [dilation, 1])  # fmt: skip
    check_rows(chain, 2, ranges)


@given(ranges=RANGES, kernel=st.integers(1, 4), stride=st.integers(1, 4), padding=st.integers(0, 2),
       ceil_mode=st.booleans(), include=st.booleans(), override=st.sampled_from([None, 3]),
       which=st.sampled_from(["max", "avg"]), axis=st.integers(2, 3))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_pooling(ranges: Any, kernel: int, stride: int, padding: int, ceil_mode: bool, include: bool, override: Any,
                 which: str, axis: int) -> None:  # fmt: skip
    if padding * 2 > kernel:
        return
    chain = Chain(R(1, 2, 13, 11, dtype=torch.double))
    sizes = ([kernel, kernel], [stride, stride], [padding, padding])
    if which == "max":
        chain.call("aten.max_pool2d.default", X, *sizes, [1, 1], ceil_mode)
    else:
        chain.call("aten.avg_pool2d.default", X, *sizes, ceil_mode, include, override)
    if chain.tensors[chain.last].shape[axis] > 1:
        check_rows(chain, axis, ranges)


@given(ranges=RANGES, mode=st.sampled_from(["nearest", "exact", "bilinear", "bilinear_corners", "bicubic"]),
       size=st.integers(2, 31), by_scale=st.sampled_from([None, 2.0, 1.5, 0.7]))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_interpolation(ranges: Any, mode: str, size: int, by_scale: Any) -> None:
    chain = Chain(R(1, 2, 10, 7, dtype=torch.double))
    sizes, scales = ([size, 12], None) if by_scale is None else (None, [by_scale, 1.3])
    names = {"nearest": "upsample_nearest2d", "exact": "_upsample_nearest_exact2d", "bicubic": "upsample_bicubic2d"}
    name = f"aten.{names.get(mode, 'upsample_bilinear2d')}.vec"
    if mode in ("nearest", "exact"):
        chain.call(name, X, sizes, scales)
    else:
        chain.call(name, X, sizes, mode == "bilinear_corners", scales)
    check_rows(chain, 2, ranges)


@given(ranges=RANGES, mode=st.sampled_from(["constant", "reflect", "replicate", "circular"]), top=st.integers(-2, 4),
       bottom=st.integers(-2, 4))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_padding(ranges: Any, mode: str, top: int, bottom: int) -> None:
    if mode != "constant":
        top, bottom = abs(top), abs(bottom)
    chain = Chain(R(1, 2, 6, 7, dtype=torch.double))
    chain.call("aten.pad.default", X, [1, 2, top, bottom], mode, 0.5 if mode == "constant" else None)
    check_rows(chain, 2, ranges)


GRID = torch.empty(8, 7, 9, 2, dtype=torch.double).uniform_(-1.3, 1.3)

SINGLE: Dict[str, Tuple[Tuple[int, ...], int, Callable[[Chain], Any]]] = {
    "relu": ((1, 3, 8, 5), 2, lambda c: c.call("aten.relu.default", X)),
    "add broadcast row constant": ((1, 3, 8, 5), 2, lambda c: c.call("aten.add.Tensor", X, R(8, 1).double())),
    "mul by gate": ((1, 3, 8, 5), 2, lambda c: c.call("aten.mul.Tensor", X, R(1, 3, 1, 1).double())),
    "scalar left": ((1, 3, 8, 5), 3, lambda c: c.call("aten.rsub.Scalar", X, 2.0)),
    "self with itself": ((1, 3, 8, 5), 3, lambda c: c.call("aten.mul.Tensor", X, X)),
    "where": ((1, 3, 8, 5), 2, lambda c: c.call("aten.where.self", R(8, 5) > 0, X, R(()).double())),
    "batch norm": ((1, 3, 8, 5), 2, lambda c: c.call(
        "aten._native_batch_norm_legit_no_training.default", X, *[R(3).double().abs() for _ in range(4)], 0.1, 1e-5)),
    "batch norm as torch 2.0 traces it": ((1, 3, 8, 5), 2, lambda c: c.call(
        "aten.native_batch_norm.default", X, *[R(3).double().abs() for _ in range(4)], False, 0.1, 1e-5)),
    "prelu": ((1, 3, 8, 5), 2, lambda c: c.call("aten.prelu.default", X, R(3).double())),
    "prelu over channels": ((1, 8, 5), 1, lambda c: c.call("aten.prelu.default", X, R(8).double())),
    "prelu with one slope": ((1, 8, 5), 1, lambda c: c.call("aten.prelu.default", X, R(1).double())),
    "zero": ((1, 3, 8, 5), 2, lambda c: c.call("aten.zero.default", X)),
    "prelu of a program": ((1, 3, 8, 5), 2, lambda c: c.call("aten._prelu_kernel.default", X, R(1, 3, 1, 1).double())),
    "prelu of a program over channels": ((1, 8, 5), 1, lambda c: c.call(
        "aten._prelu_kernel.default", X, R(1, 8, 1).double())),
    "expand": ((1, 3, 8, 1), 2, lambda c: c.call("aten.expand.default", X, [4, 3, -1, 5])),
    "adaptive average": ((1, 3, 11, 5), 2, lambda c: c.call("aten.adaptive_avg_pool2d.default", X, [7, 2])),
    "conv same": ((1, 3, 9, 8), 2, lambda c: c.call(
        "aten.conv2d.padding", X, R(4, 3, 4, 3).double(), R(4).double(), [1, 1], "same", [2, 1])),
    "permute": ((2, 3, 8, 5), 2, lambda c: c.call("aten.permute.default", X, [0, 2, 3, 1])),
    "transpose": ((2, 3, 8), 1, lambda c: c.call("aten.transpose.int", X, 1, -1)),
    "unsqueeze": ((3, 8), 1, lambda c: c.call("aten.unsqueeze.default", X, 0)),
    "squeeze": ((1, 3, 1, 8), 3, lambda c: c.call("aten.squeeze.dim", X, 2)),
    "squeeze all": ((1, 3, 1, 8), 3, lambda c: c.call("aten.squeeze.default", X)),
    "merge H and W": ((1, 3, 6, 4), 2, lambda c: c.call("aten.view.default", X, [1, 3, 24])),
    "merge from W fails": ((1, 1, 6, 4), 2, lambda c: c.call("aten.view.default", X, [24])),
    "split rows": ((1, 12, 5), 1, lambda c: c.call("aten.view.default", X, [1, 3, 4, 5])),
    "unequal merge": ((1, 6, 4), 1, lambda c: c.call("aten.view.default", X, [1, 8, 3])),
    "cat across": ((1, 3, 8, 5), 2, lambda c: c.call("aten.cat.default", [X, R(1, 2, 8, 5).double(), X], 1)),
    "cat along": ((1, 8, 5), 1, lambda c: c.call(
        "aten.cat.default", [R(1, 1, 5).double(), X, R(1, 3, 5).double()], 1)),
    "stack": ((3, 8), 1, lambda c: c.call("aten.stack.default", [X, X], 1)),
    "slice along": ((1, 3, 13, 5), 2, lambda c: c.call("aten.slice.Tensor", X, 2, 1, 100, 2)),
    "slice negative": ((1, 3, 13, 5), 2, lambda c: c.call("aten.slice.Tensor", X, 2, -6, -1, 1)),
    "slice across": ((1, 3, 13, 5), 2, lambda c: c.call("aten.slice.Tensor", X, 1, 0, 2, 1)),
    "select across": ((4, 3, 8, 5), 2, lambda c: c.call("aten.select.int", X, 0, -1)),
    "chunk": ((1, 4, 8), 2, lambda c: c.call("aten.chunk.default", X, 2, 1)),
    "unsafe split": ((1, 4, 8), 2, lambda c: c.call("aten.unsafe_split.Tensor", X, 2, 1)),
    "unbind": ((3, 8, 2), 1, lambda c: c.call("aten.unbind.int", X, 0)),
    "pixel shuffle": ((1, 8, 5, 4), 2, lambda c: c.call("aten.pixel_shuffle.default", X, 2)),
    "pixel unshuffle": ((1, 2, 12, 4), 2, lambda c: c.call("aten.pixel_unshuffle.default", X, 2)),
    "linear": ((1, 8, 5), 1, lambda c: c.call("aten.linear.default", X, R(4, 5).double(), R(4).double())),
    "mm rows": ((8, 5), 0, lambda c: c.call("aten.mm.default", X, R(5, 3).double())),
    "mm columns": ((5, 8), 1, lambda c: c.call("aten.mm.default", R(3, 5).double(), X)),
    "matmul broadcast": ((2, 8, 5), 1, lambda c: c.call("aten.matmul.default", X, R(5, 3).double())),
    "addmm": ((8, 5), 0, lambda c: c.call("aten.addmm.default", R(8, 3).double(), X, R(5, 3).double())),
    "softmax": ((1, 3, 8, 5), 2, lambda c: c.call("aten.softmax.int", X, -1)),
    "argmax": ((1, 3, 8, 5), 2, lambda c: c.call("aten.argmax.default", X, 1)),
    "mean keepdim": ((1, 3, 8, 5), 2, lambda c: c.call("aten.mean.dim", X, [1, -1], True)),
    "topk": ((4, 8), 0, lambda c: c.call("aten.topk.default", X, 3)),
    "max over channels": ((1, 3, 8, 5), 3, lambda c: c.call("aten.max.dim", X, 1)),
    "layer norm": ((1, 8, 5), 1, lambda c: c.call("aten.layer_norm.default", X, [5], R(5).double(), R(5).double())),
    "grid sample by batch": ((8, 3, 5, 4), 0, lambda c: c.call("aten.grid_sampler.default", X, GRID, 0, 0, False)),
    "grid sample by channels": ((1, 8, 5, 4), 1, lambda c: c.call(
        "aten.grid_sampler_2d.default", X, GRID[:1], 2, 1, True)),
    "grid sample in a volume": ((1, 2, 5, 4, 6), 3, lambda c: c.call(
        "aten.grid_sampler_3d.default", X, R(1, 3, 7, 2, 3).double(), 1, 2, False)),
    "attention by query": ((1, 2, 8, 4), 2, lambda c: c.call(
        "aten.scaled_dot_product_attention.default", X, R(1, 2, 6, 4).double(), R(1, 2, 6, 4).double(),
        R(8, 6).double())),
}  # fmt: skip
#: Releases from which on torch has the operator.
LATER = {"batch norm": (2, 1)}


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_single_operators(name: str) -> None:
    if LATER.get(name, RELEASE) > RELEASE:
        pytest.skip("a later torch has this operator")
    shape, axis, build = SINGLE[name]
    chain = Chain(R(*shape, dtype=torch.double))
    build(chain)
    check_rows(chain, axis, [(0, 0), (1, 0), (0, 1), (2, 1), (3, 3), (5, 9)])


GLOBAL: Dict[str, Tuple[Tuple[int, ...], int, Callable[[Chain], Any]]] = {
    "mean over the axis": ((1, 3, 8), 2, lambda c: c.call("aten.mean.dim", X, [2])),
    "softmax along the axis": ((1, 3, 8), 2, lambda c: c.call("aten.softmax.int", X, 2)),
    "pool to one": ((1, 3, 8, 8), 2, lambda c: c.call("aten.adaptive_avg_pool2d.default", X, [1, 1])),
    "flatten behind channels": ((1, 3, 8), 2, lambda c: c.call("aten.view.default", X, [1, 24])),
    "linear over the axis": ((2, 8), 1, lambda c: c.call("aten.linear.default", X, R(3, 8).double())),
    "training batch norm": ((2, 3, 8), 2, lambda c: c.call(
        "aten.batch_norm.default", X, None, None, None, None, True, 0.1, 1e-5, False)),
    "training batch norm as torch 2.0 traces it": ((2, 3, 8), 2, lambda c: c.call(
        "aten.native_batch_norm.default", X, None, None, None, None, True, 0.1, 1e-5)),
    "group norm": ((1, 4, 8), 2, lambda c: c.call("aten.group_norm.default", X, 2)),
    "sort along": ((2, 8), 1, lambda c: c.call("aten.sort.default", X, 1)),
    "one row": ((1, 3, 8), 2, lambda c: c.call("aten.select.int", X, 2, 4)),
    "flip along": ((2, 8), 1, lambda c: c.call("aten.flip.default", X, [1])),
    "unknown operator": ((2, 8), 1, lambda c: c.call("aten.cummax.default", X, 0)),
    "grid split between its coordinates": ((1, 6, 7, 2), 3, lambda c: c.call(
        "aten.grid_sampler.default", R(1, 3, 5, 4).double(), X, 0, 0, False)),
    "causal attention": ((1, 2, 8, 4), 2, lambda c: c.call(
        "aten.scaled_dot_product_attention.default", X, R(1, 2, 8, 4).double(), R(1, 2, 8, 4).double(), None, 0.0,
        True)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GLOBAL))
def test_what_needs_everything_is_global(name: str) -> None:
    shape, axis, build = GLOBAL[name]
    chain = Chain(R(*shape, dtype=torch.double))
    build(chain)
    assert analyse_locality(chain.finish(), {0: axis}).operators[-1].kind is Locality.GLOBAL


def test_indices_of_a_pool_make_it_global_only_if_read() -> None:
    chain = Chain(R(1, 2, 8, 8).double())
    chain.call("aten.max_pool2d_with_indices.default", X, [2, 2])
    values = chain.finish()
    assert analyse_locality(values, {0: 2}).operators[0].kind is Locality.BLOCK
    indices = chain.operators[0].outputs[1]
    assert indices is not None
    assert analyse_locality(chain.finish(indices), {0: 2}).operators[0].kind is Locality.GLOBAL


def test_operators_of_other_libraries_are_global_not_errors() -> None:
    values = {0: Value(0, "float32", (2, 8), Kind.INPUT), 1: Value(1, "float32", (2, 8))}
    sequence = OperatorSequence(values, (0,), {}, (Operator("mylib.secret.default", (X,), (), (1,)),), (1,)).validate()
    assert analyse_locality(sequence, {0: 1}).operators[0].kind is Locality.GLOBAL


def test_keys_and_values_are_needed_completely_while_queries_are_split() -> None:
    chain = Chain(R(1, 2, 8, 4).double())
    key = Ref(chain.call("aten.mul.Tensor", X, 2.0))
    value = Ref(chain.call("aten.mul.Tensor", X, 3.0))
    chain.call("aten.scaled_dot_product_attention.default", X, key, value)
    located = check_rows(chain, 2, [(0, 0), (1, 2)])
    assert located.footprint(2, 3, 5) == {0: (3, 5), key.id: (0, 8), value.id: (0, 8)}


@given(ranges=RANGES, axis=st.integers(0, 2), mode=st.integers(0, 2), padding=st.integers(0, 2), corners=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_grid_is_split_and_what_it_points_into_is_not(ranges: Any, axis: int, mode: int, padding: int,
                                                        corners: bool) -> None:  # fmt: skip
    chain = Chain(GRID)
    chain.call("aten.grid_sampler_2d.default", R(8, 3, 5, 4).double(), X, mode, padding, corners)
    check_rows(chain, axis, ranges)


def test_a_grid_of_the_inputs_points_anywhere_into_it() -> None:
    """The grid is computed from the input's rows, as optical flow is: both are split, and one is needed whole."""
    chain = Chain(R(1, 2, 7, 5).double())
    grid = Ref(chain.call("aten.permute.default", Ref(chain.call("aten.tanh.default", X)), [0, 2, 3, 1]))
    chain.call("aten.grid_sampler.default", X, grid, 0, 0, False)
    located = check_rows(chain, 2, [(0, 0), (1, 2), (3, 1)])
    assert located.footprint(2, 2, 4) == {0: (0, 7), grid.id: (2, 4)}
    assert analyse_locality(chain.finish(), {0: 1}).operators[-1].kind is Locality.GLOBAL, (
        "the grid's axis is its coordinates"
    )


def test_a_complete_grid_is_cut_where_the_input_is_split() -> None:
    chain = Chain(R(1, 3, 6, 4).double())
    chain.call("aten.grid_sampler_2d.default", X, GRID[:1], 0, 0, False)
    located = check_rows(chain, 3, [(0, 0), (1, 2)])
    assert located.count_rows(located.sequence.outputs[0]) == GRID.shape[2]
    assert located.footprint(0, 2, 4) == {0: (0, 4)}


def test_convolution_footprint_is_exactly_the_window() -> None:
    chain = Chain(R(1, 1, 20, 4).double())
    chain.call("aten.conv2d.default", X, R(1, 1, 3, 3).double(), None, [2, 2], [1, 1], [3, 1])
    located = analyse_locality(chain.finish(), {0: 2})
    assert located.footprint(0, 2, 4) == {0: (3, 12)}  # rows 2*2-1 .. 3*2-1+6
    assert located.footprint(0, 0, 1) == {0: (2, 6)}  # taps at -1 (padding), 2 and 5


def test_choices_of_axis_put_height_and_width_first() -> None:
    chain = Chain(R(1, 3, 8, 6).double())
    chain.call("aten.conv2d.default", X, R(3, 3, 3, 3).double(), None, [1, 1], [1, 1])
    assert axis_choices(chain.finish())[:2] == [{0: 2}, {0: 3}]


@pytest.mark.skipif(RELEASE < (2, 6), reason="operators that came later have rules, too")
def test_every_rule_names_an_operator_that_torch_has() -> None:
    assert [name for name in _RULES if not hasattr(torch.ops.aten, name.split(".")[1])] == []


def test_random_operators_are_never_replicated() -> None:
    chain = Chain(R(1, 3, 8, 6).double())
    noise = Ref(chain.call("aten.rand.default", [1, 3, 8, 6]))
    chain.call("aten.add.Tensor", X, noise)
    kinds = [entry.kind for entry in analyse_locality(chain.finish(), {0: 2}).operators]
    assert kinds == [Locality.GLOBAL, Locality.ELEMENT]
    dropout = Chain(R(1, 3, 8, 6).double())
    dropout.call("aten.dropout.default", X, 0.5, True)
    assert analyse_locality(dropout.finish(), {0: 2}).operators[0].kind is Locality.GLOBAL
