"""Locality of row-wise operators: products, softmax, reductions, norms, attention, look-ups, along their free axes."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch

from edge_offload.split.footprints.registry import (
    Footprint,
    Local,
    Locality,
    Rows,
    Site,
    all_rows,
    normal,
    rule,
    same_rows,
)


def _rowwise(site: Site, name: str, axis: int, outputs: Optional[int] = None) -> Local:
    """Return locality where output rows on ``axis`` need equal rows of argument ``name``, and the rest whole."""
    source = site.number(name)

    def run(low: int, high: int, reader: Rows) -> List[Any]:
        return site.call(reader, **{name: reader.rows(source, low, high)})

    axes = site.one_axis(axis) if outputs is None else (axis,) * outputs
    return Local(Locality.ROW, axes, site.output_shape[axis], _with_whole(site, {source: same_rows}), run)


def _with_whole(site: Site, needs: Dict[int, Footprint]) -> Dict[int, Footprint]:
    """Add every other operand that has an axis to ``needs``, in full."""
    for number in site.carried:
        if number not in needs:
            axis = site.axis(number)
            assert axis is not None
            needs[number] = all_rows(site.shape(number)[axis])
    return needs


@rule("aten.linear")
def linear(site: Site) -> Optional[Local]:
    """Split any axis but the last, which the product sums over."""
    source = site.number("input")
    axis = site.axis(source)
    if axis is None or axis == len(site.shape(source)) - 1:
        return None
    return _rowwise(site, "input", axis)


@rule("aten.mm", "aten.bmm", "aten.matmul")
def product(site: Site) -> Optional[Local]:
    """Split rows of the left operand, columns of the right one, or a batch axis of both."""
    left_name = "self"
    right_name = "mat2" if site.number("mat2") >= 0 else "other"
    return _product(site, left_name, right_name)


@rule("aten.addmm", "aten.baddbmm")
def product_with_sum(site: Site) -> Optional[Local]:
    """Split a product whose addend broadcasts to the result: the addend must not itself be split."""
    left_name, right_name = ("mat1", "mat2") if site.number("mat1") >= 0 else ("batch1", "batch2")
    addend = site.number("self")
    found = _product(site, left_name, right_name)
    if found is None or site.axis(addend) is not None:
        return None
    (axis,) = (found.axes[0],)
    assert axis is not None
    own = axis - len(site.output_shape) + len(site.shape(addend))
    if own >= 0 and site.shape(addend)[own] != 1:
        return _cut_addend(site, found, left_name, right_name, addend, own)
    return found


def _product(site: Site, left_name: str, right_name: str) -> Optional[Local]:
    left, right = site.number(left_name), site.number(right_name)
    one, other = site.axis(left), site.axis(right)
    ranks = len(site.shape(left)), len(site.shape(right))
    if left == right or min(ranks) < 2:
        return None
    rank = len(site.output_shape)
    if one is not None and other is not None:
        place = one + rank - ranks[0]
        if place < rank - 2 and other + rank - ranks[1] == place:
            needs: Dict[int, Footprint] = {left: same_rows, right: same_rows}

            def run(low: int, high: int, reader: Rows) -> List[Any]:
                return site.call(reader, **{left_name: reader.rows(left, low, high),
                                            right_name: reader.rows(right, low, high)})  # fmt: skip

            return Local(Locality.ROW, site.one_axis(place), site.output_shape[place], needs, run)
    if one == ranks[0] - 2 and one is not None:
        return _rowwise(site, left_name, rank - 2)
    if other == ranks[1] - 1 and other is not None:
        return _rowwise(site, right_name, rank - 1)
    return None


def _cut_addend(site: Site, found: Local, left_name: str, right_name: str, addend: int, own: int) -> Local:
    """Slice an addend that has rows where the product is split."""
    carried = {name: site.number(name) for name in (left_name, right_name)}

    def run(low: int, high: int, reader: Rows) -> List[Any]:
        given: Dict[str, Any] = {"self": reader.whole(addend).narrow(own, low, high - low)}
        for name, number in carried.items():
            if found.needs.get(number) is same_rows:
                given[name] = reader.rows(number, low, high)
        return site.call(reader, **given)

    return Local(found.kind, found.axes, found.length, found.needs, run)


@rule("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax", "aten.cumsum", "aten.cumprod",
      "aten.glu", "aten.flip", "aten.roll")  # fmt: skip
def along_another_axis(site: Site) -> Optional[Local]:
    """Split operators along ``dim`` (``dims``) on every other axis."""
    source = site.number("self")
    axis, rank = site.axis(source), len(site.shape(source))
    given = site.arg("dims") if "dims" in site.bound else site.arg("dim", -1)
    dims = _dims(given, rank)
    return None if axis is None or axis in dims or not dims else _rowwise(site, "self", axis)


@rule("aten.sort", "aten.topk", "aten.max.dim", "aten.min.dim", "aten.median.dim", "aten.kthvalue")
def order_along_another_axis(site: Site) -> Optional[Local]:
    """Split the outputs, values and positions along ``dim``; positions do not depend on the split axis."""
    source = site.number("self")
    axis, rank = site.axis(source), len(site.shape(source))
    dim = normal(int(site.arg("dim", -1)), rank)
    if axis is None or axis == dim:
        return None
    keeps = site.operator.base_name in ("aten.sort", "aten.topk") or bool(site.arg("keepdim", False))
    return _rowwise(site, "self", axis if keeps else axis - (dim < axis), outputs=len(site.operator.outputs))


@rule("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax", "aten.amin", "aten.argmax", "aten.argmin",
      "aten.prod.dim_int", "aten.logsumexp", "aten.any.dim", "aten.all.dim", "aten.norm.ScalarOpt_dim",
      "aten.var.correction", "aten.linalg_vector_norm", "aten.std.correction")  # fmt: skip
def reduction(site: Site) -> Optional[Local]:
    """Split reductions over other axes than the split one."""
    source = site.number("self")
    axis, rank = site.axis(source), len(site.shape(source))
    dims = _dims(site.arg("dim"), rank)
    if axis is None or axis in dims or not dims:
        return None
    return _rowwise(site, "self", axis if site.arg("keepdim", False) else axis - sum(dim < axis for dim in dims))


@rule("aten.layer_norm", "aten.native_layer_norm", "aten.rms_norm")
def layer_norm(site: Site) -> Optional[Local]:
    """Split the axes in front of the normalised ones."""
    source = site.number("input")
    axis, rank = site.axis(source), len(site.shape(source))
    inside = rank - len(site.arg("normalized_shape"))
    if axis is None or axis >= inside or any(position != 0 for position in site.used):
        return None
    return _rowwise(site, "input", axis)


@rule("aten.scaled_dot_product_attention", "aten._scaled_dot_product_flash_attention_for_cpu")
def attention(site: Site) -> Optional[Local]:
    """Split the queries, with keys and values whole; or a batch or head axis of all three."""
    query, key, value = (site.number(name) for name in ("query", "key", "value"))
    mask = site.number("attn_mask")
    axis, rank = site.axis(query), len(site.shape(query))
    if any(position != 0 for position in site.used) or float(site.arg("dropout_p", 0.0)) != 0.0:
        return None
    if axis is None or axis == rank - 1 or site.arg("is_causal", False) or site.axis(mask) is not None:
        return None
    if len({query, key, value}) != 3:
        return None
    along_queries = axis == rank - 2
    if not along_queries and (site.axis(key) != axis or site.axis(value) != axis or len(site.shape(key)) != rank):
        return None
    needs: Dict[int, Footprint] = {query: same_rows}
    if not along_queries:
        needs.update({key: same_rows, value: same_rows})
    own: Optional[int] = None
    if mask >= 0:
        place = axis - rank + len(site.shape(mask))
        own = place if place >= 0 and site.shape(mask)[place] != 1 else None

    def run(low: int, high: int, reader: Rows) -> List[Any]:
        given: Dict[str, Any] = {"query": reader.rows(query, low, high)}
        if not along_queries:
            given.update(key=reader.rows(key, low, high), value=reader.rows(value, low, high))
        if own is not None:
            given["attn_mask"] = reader.whole(mask).narrow(own, low, high - low)
        return site.call(reader, **given)

    return Local(Locality.ROW, site.one_axis(axis), site.output_shape[axis], _with_whole(site, needs), run)


@rule("aten.embedding")
def embedding(site: Site) -> Optional[Local]:
    """Split a table look-up per index."""
    axis = site.axis(site.number("indices"))
    return None if axis is None or site.axis(site.number("weight")) is not None else _rowwise(site, "indices", axis)


@rule("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(site: Site) -> Optional[Local]:
    """An output position reads the input wherever the grid points: along the grid's axes, with the input whole.

    Input [N, C, ...], grid [N, ..., coordinates], output [N, C, ...]. Where the input alone is split, the output has
    its axis: batch and channels row by row; behind those the grid, which is there whole, is cut on the spot.
    """
    source, grid = site.number("input"), site.number("grid")
    along_grid = site.axis(grid)
    if source == grid or along_grid == len(site.shape(grid)) - 1:
        return None
    axis = site.axis(source) if along_grid is None else along_grid + (along_grid > 0)
    if axis is None:
        return None
    place = {source: axis if axis < 2 else None, grid: None if axis == 1 else axis - (axis > 1)}
    needs: Dict[int, Footprint] = {
        number: same_rows for number, own in place.items() if own is not None and own == site.axis(number)
    }

    def part(number: int, low: int, high: int, reader: Rows) -> torch.Tensor:
        own = place[number]
        if own is None:
            return reader.whole(number)
        if own == site.axis(number):
            return reader.rows(number, low, high)
        return reader.whole(number).narrow(own, low, high - low)

    def run(low: int, high: int, reader: Rows) -> List[Any]:
        return site.call(reader, input=part(source, low, high, reader), grid=part(grid, low, high, reader))

    return Local(Locality.ROW, site.one_axis(axis), site.output_shape[axis], _with_whole(site, needs), run)


def _dims(given: Any, rank: int) -> Tuple[int, ...]:
    if given is None:
        return ()
    listed = (given,) if isinstance(given, int) else given
    return tuple(normal(int(dim), rank) for dim in listed)
