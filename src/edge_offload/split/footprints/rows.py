"""Locality of row-wise operators: products, softmax, reductions, norms, attention, look-ups, along their free axes."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch

from edge_offload.split.footprints.registry import (
    Footprint,
    Local,
    Locality,
    RowReader,
    Site,
    all_rows,
    normalise_axis,
    register_rule,
    same_rows,
)


def _local_rows(site: Site, name: str, axis: int, outputs: Optional[int] = None) -> Local:
    """Return locality where output rows on ``axis`` need equal rows of argument ``name``, and the rest whole."""
    source = site.number_of(name)

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        return site.call_overload(reader, **{name: reader.rows(source, low, high)})

    axes = site.one_axis(axis) if outputs is None else (axis,) * outputs
    return Local(Locality.ROW, axes, site.output_shape[axis], _add_whole(site, {source: same_rows}), run)


def _add_whole(site: Site, needs: Dict[int, Footprint]) -> Dict[int, Footprint]:
    """Add every other operand that has an axis to ``needs``, in full."""
    for number in site.carried:
        if number not in needs:
            axis = site.axis_of(number)
            assert axis is not None
            needs[number] = all_rows(site.shape_of(number)[axis])
    return needs


@register_rule("aten.linear")
def linear_rule(site: Site) -> Optional[Local]:
    """Split any axis but the last, which the product sums over."""
    source = site.number_of("input")
    axis = site.axis_of(source)
    if axis is None or axis == len(site.shape_of(source)) - 1:
        return None
    return _local_rows(site, "input", axis)


@register_rule("aten.mm", "aten.bmm", "aten.matmul")
def product_rule(site: Site) -> Optional[Local]:
    """Split rows of the left operand, columns of the right one, or a batch axis of both."""
    left_name = "self"
    right_name = "mat2" if site.number_of("mat2") >= 0 else "other"
    return _local_product(site, left_name, right_name)


@register_rule("aten.addmm", "aten.baddbmm")
def addmm_rule(site: Site) -> Optional[Local]:
    """Split a product whose addend broadcasts to the result: the addend must not itself be split."""
    left_name, right_name = ("mat1", "mat2") if site.number_of("mat1") >= 0 else ("batch1", "batch2")
    addend = site.number_of("self")
    local = _local_product(site, left_name, right_name)
    if local is None or site.axis_of(addend) is not None:
        return None
    (axis,) = (local.axes[0],)
    assert axis is not None
    addend_axis = axis - len(site.output_shape) + len(site.shape_of(addend))
    if addend_axis >= 0 and site.shape_of(addend)[addend_axis] != 1:
        return _slice_addend(site, local, left_name, right_name, addend, addend_axis)
    return local


def _local_product(site: Site, first_name: str, second_name: str) -> Optional[Local]:
    first, second = site.number_of(first_name), site.number_of(second_name)
    one, other = site.axis_of(first), site.axis_of(second)
    ranks = len(site.shape_of(first)), len(site.shape_of(second))
    if first == second or min(ranks) < 2:
        return None
    rank = len(site.output_shape)
    if one is not None and other is not None:
        place = one + rank - ranks[0]
        if place < rank - 2 and other + rank - ranks[1] == place:
            needs: Dict[int, Footprint] = {first: same_rows, second: same_rows}

            def run(low: int, high: int, reader: RowReader) -> List[Any]:
                return site.call_overload(reader, **{first_name: reader.rows(first, low, high),
                                            second_name: reader.rows(second, low, high)})  # fmt: skip

            return Local(Locality.ROW, site.one_axis(place), site.output_shape[place], needs, run)
    if one == ranks[0] - 2 and one is not None:
        return _local_rows(site, first_name, rank - 2)
    if other == ranks[1] - 1 and other is not None:
        return _local_rows(site, second_name, rank - 1)
    return None


def _slice_addend(site: Site, local: Local, left_name: str, right_name: str, addend: int, addend_axis: int) -> Local:
    """Slice an addend that has rows where the product is split."""
    carried = {name: site.number_of(name) for name in (left_name, right_name)}

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        replaced: Dict[str, Any] = {"self": reader.whole(addend).narrow(addend_axis, low, high - low)}
        for name, number in carried.items():
            if local.needs.get(number) is same_rows:
                replaced[name] = reader.rows(number, low, high)
        return site.call_overload(reader, **replaced)

    return Local(local.kind, local.axes, local.length, local.needs, run)


@register_rule("aten.softmax", "aten._softmax", "aten.log_softmax", "aten._log_softmax", "aten.cumsum", "aten.cumprod",
      "aten.glu", "aten.flip", "aten.roll")  # fmt: skip
def other_axis_rule(site: Site) -> Optional[Local]:
    """Split operators along ``dim`` (``dims``) on every other axis."""
    source = site.number_of("self")
    axis, rank = site.axis_of(source), len(site.shape_of(source))
    given = site.argument("dims") if "dims" in site.bound else site.argument("dim", -1)
    dims = _parse_dims(given, rank)
    return None if axis is None or axis in dims or not dims else _local_rows(site, "self", axis)


@register_rule("aten.sort", "aten.topk", "aten.max.dim", "aten.min.dim", "aten.median.dim", "aten.kthvalue")
def order_rule(site: Site) -> Optional[Local]:
    """Split the outputs, values and positions along ``dim``; positions do not depend on the split axis."""
    source = site.number_of("self")
    axis, rank = site.axis_of(source), len(site.shape_of(source))
    dim = normalise_axis(int(site.argument("dim", -1)), rank)
    if axis is None or axis == dim:
        return None
    keeps = site.operator.base_name in ("aten.sort", "aten.topk") or bool(site.argument("keepdim", False))
    return _local_rows(site, "self", axis if keeps else axis - (dim < axis), outputs=len(site.operator.outputs))


@register_rule("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax", "aten.amin", "aten.argmax", "aten.argmin",
      "aten.prod.dim_int", "aten.logsumexp", "aten.any.dim", "aten.all.dim", "aten.norm.ScalarOpt_dim",
      "aten.var.correction", "aten.linalg_vector_norm", "aten.std.correction")  # fmt: skip
def reduction_rule(site: Site) -> Optional[Local]:
    """Split reductions over other axes than the split one."""
    source = site.number_of("self")
    axis, rank = site.axis_of(source), len(site.shape_of(source))
    dims = _parse_dims(site.argument("dim"), rank)
    if axis is None or axis in dims or not dims:
        return None
    return _local_rows(
        site, "self", axis if site.argument("keepdim", False) else axis - sum(dim < axis for dim in dims)
    )


@register_rule("aten.layer_norm", "aten.native_layer_norm", "aten.rms_norm")
def layer_norm_rule(site: Site) -> Optional[Local]:
    """Split the axes in front of the normalised ones."""
    source = site.number_of("input")
    axis, rank = site.axis_of(source), len(site.shape_of(source))
    inside = rank - len(site.argument("normalized_shape"))
    if axis is None or axis >= inside or any(position != 0 for position in site.used):
        return None
    return _local_rows(site, "input", axis)


@register_rule(
    "aten.scaled_dot_product_attention",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
)
def attention_rule(site: Site) -> Optional[Local]:
    """Split the queries, with keys and values whole; or a batch or head axis of all three."""
    query, key, value = (site.number_of(name) for name in ("query", "key", "value"))
    mask = site.number_of("attn_mask")
    axis, rank = site.axis_of(query), len(site.shape_of(query))
    if any(position != 0 for position in site.used) or float(site.argument("dropout_p", 0.0)) != 0.0:
        return None
    if axis is None or axis == rank - 1 or site.argument("is_causal", False) or site.axis_of(mask) is not None:
        return None
    if len({query, key, value}) != 3:
        return None
    along_queries = axis == rank - 2
    if not along_queries and (
        site.axis_of(key) != axis or site.axis_of(value) != axis or len(site.shape_of(key)) != rank
    ):
        return None
    needs: Dict[int, Footprint] = {query: same_rows}
    if not along_queries:
        needs.update({key: same_rows, value: same_rows})
    mask_axis: Optional[int] = None
    if mask >= 0:
        place = axis - rank + len(site.shape_of(mask))
        mask_axis = place if place >= 0 and site.shape_of(mask)[place] != 1 else None

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        replaced: Dict[str, Any] = {"query": reader.rows(query, low, high)}
        if not along_queries:
            replaced.update(key=reader.rows(key, low, high), value=reader.rows(value, low, high))
        if mask_axis is not None:
            replaced["attn_mask"] = reader.whole(mask).narrow(mask_axis, low, high - low)
        return site.call_overload(reader, **replaced)

    return Local(Locality.ROW, site.one_axis(axis), site.output_shape[axis], _add_whole(site, needs), run)


@register_rule("aten.embedding")
def embedding_rule(site: Site) -> Optional[Local]:
    """Split a table look-up per index."""
    axis = site.axis_of(site.number_of("indices"))
    return (
        None
        if axis is None or site.axis_of(site.number_of("weight")) is not None
        else _local_rows(site, "indices", axis)
    )


@register_rule("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler_rule(site: Site) -> Optional[Local]:
    """An output position reads the input wherever the grid points: along the grid's axes, with the input whole.

    Input [N, C, ...], grid [N, ..., coordinates], output [N, C, ...]. Where the input alone is split, the output has
    its axis: batch and channels row by row; behind those the grid, which is there whole, is cut on the spot.
    """
    source, grid = site.number_of("input"), site.number_of("grid")
    along_grid = site.axis_of(grid)
    if source == grid or along_grid == len(site.shape_of(grid)) - 1:
        return None
    axis = site.axis_of(source) if along_grid is None else along_grid + (along_grid > 0)
    if axis is None:
        return None
    place = {source: axis if axis < 2 else None, grid: None if axis == 1 else axis - (axis > 1)}
    needs: Dict[int, Footprint] = {
        number: same_rows
        for number, operand_axis in place.items()
        if operand_axis is not None and operand_axis == site.axis_of(number)
    }

    def operand_rows(number: int, low: int, high: int, reader: RowReader) -> torch.Tensor:
        operand_axis = place[number]
        if operand_axis is None:
            return reader.whole(number)
        if operand_axis == site.axis_of(number):
            return reader.rows(number, low, high)
        return reader.whole(number).narrow(operand_axis, low, high - low)

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        return site.call_overload(
            reader, input=operand_rows(source, low, high, reader), grid=operand_rows(grid, low, high, reader)
        )

    return Local(Locality.ROW, site.one_axis(axis), site.output_shape[axis], _add_whole(site, needs), run)


def _parse_dims(given: Any, rank: int) -> Tuple[int, ...]:
    if given is None:
        return ()
    listed = (given,) if isinstance(given, int) else given
    return tuple(normalise_axis(int(dim), rank) for dim in listed)
