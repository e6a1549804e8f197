"""Locality of operators that only move data: views, permutations, cat, slices, padding."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.nn import functional

from edge_offload.ir import Ref
from edge_offload.split.footprints.registry import (
    EMPTY,
    Footprint,
    Local,
    Locality,
    Range,
    RowReader,
    Site,
    normalise_axis,
    register_rule,
    same_rows,
)


def _move_rows(site: Site, axis: int) -> Local:
    """Move the first argument's rows to ``axis`` of the output; arguments do not mention sizes."""
    source = site.number_of("self")

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        return site.call_overload(reader, self=reader.rows(source, low, high))

    return Local(Locality.ELEMENT, site.one_axis(axis), site.output_shape[axis], {source: same_rows}, run)


@register_rule("aten.permute")
def permute_rule(site: Site) -> Optional[Local]:
    """Move the axis to its place in the permutation."""
    axis = site.axis_of(site.number_of("self"))
    rank = len(site.output_shape)
    order = [normalise_axis(int(dim), rank) for dim in site.argument("dims")]
    return None if axis is None else _move_rows(site, order.index(axis))


@register_rule("aten.transpose.int", "aten.t", "aten.numpy_T", "aten.movedim.int")
def transpose_rule(site: Site) -> Optional[Local]:
    """Exchange two axes (``movedim`` moves one)."""
    source = site.number_of("self")
    axis, rank = site.axis_of(source), len(site.output_shape)
    if axis is None or rank < 2:
        return None
    if site.operator.base_name == "aten.movedim":
        order = list(range(rank))
        order.insert(
            normalise_axis(site.argument("destination"), rank), order.pop(normalise_axis(site.argument("source"), rank))
        )
        return _move_rows(site, order.index(axis))
    if site.operator.base_name == "aten.transpose":
        one, other = (normalise_axis(site.argument(name), rank) for name in ("dim0", "dim1"))
    elif rank == 2:
        one, other = 0, 1
    else:
        return None
    return _move_rows(site, {one: other, other: one}.get(axis, axis))


@register_rule("aten.unsqueeze")
def unsqueeze_rule(site: Site) -> Optional[Local]:
    """Move the axis back behind a new one."""
    axis = site.axis_of(site.number_of("self"))
    place = normalise_axis(site.argument("dim"), len(site.output_shape))
    return None if axis is None else _move_rows(site, axis + (place <= axis))


@register_rule("aten.squeeze")
def squeeze_rule(site: Site) -> Optional[Local]:
    """Remove axes of size 1; the split axis is never one of them."""
    source = site.number_of("self")
    axis, shape = site.axis_of(source), site.shape_of(source)
    if axis is None:
        return None
    dims = site.argument("dim")
    listed = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    removed = {
        normalise_axis(int(dim), len(shape)) for dim in listed if shape[normalise_axis(int(dim), len(shape))] == 1
    }
    if dims is None:  # a slice of one row must not lose its axis
        fixed = [size for k, size in enumerate(shape) if k not in removed]
        return _reshape_rows(site, axis - sum(dim < axis for dim in removed), fixed)
    return _move_rows(site, axis - sum(dim < axis for dim in removed))


@register_rule("aten.view.default", "aten.reshape", "aten._unsafe_view", "aten.flatten.using_ints",
               "aten.unflatten.int", "aten._reshape_alias")  # fmt: skip
def reshape_rule(site: Site) -> Optional[Local]:
    """Split in row-major order: a range of rows stays one stretch of elements inside every outer slab."""
    source = site.number_of("self")
    axis = site.axis_of(source)
    if axis is None:
        return None
    shape, result = site.shape_of(source), site.output_shape
    outer = _count_elements(shape[:axis])
    candidates = [k for k in range(len(result)) if result[k] > 1 and _count_elements(result[:k]) == outer]
    if not candidates:
        return None
    place = next((k for k in candidates if result[k] == shape[axis]), candidates[0])
    return _reshape_rows(site, place, result)


def _reshape_rows(site: Site, place: int, result: Any) -> Local:
    source = site.number_of("self")
    axis = site.axis_of(source)
    assert axis is not None
    shape = site.shape_of(source)
    outer, inner, inner_out = (
        _count_elements(shape[:axis]),
        _count_elements(shape[axis + 1 :]),
        _count_elements(result[place + 1 :]),
    )
    size = shape[axis]

    def source_rows(low: int, high: int) -> Range:
        return low * inner_out // inner, min(-(-high * inner_out // inner), size)

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        first, last = source_rows(low, high)
        rows = reader.rows(source, first, last).reshape(outer, -1)
        start = low * inner_out - first * inner
        sizes = list(result)
        sizes[place] = high - low
        return [rows[:, start : start + (high - low) * inner_out].reshape(sizes)]

    kind = Locality.ELEMENT if inner == inner_out else Locality.BLOCK
    return Local(kind, site.one_axis(place), result[place], {source: source_rows}, run)


@register_rule("aten.cat", "aten.concat", "aten.concatenate")
def cat_rule(site: Site) -> Optional[Local]:
    """Concatenate equal rows of all parts across the split axis; along it each part gives its own stretch."""
    numbers = [item.id for item in site.argument("tensors", ()) if isinstance(item, Ref)]
    shape = site.output_shape
    dim = normalise_axis(int(site.argument("dim", 0)), len(shape))
    axes = {site.axis_of(number) for number in numbers} - {None}
    if len(axes) != 1 or len(set(numbers)) != len(numbers) or any(len(site.shape_of(n)) != len(shape) for n in numbers):
        return _cat_repeated(site, numbers, dim) if len(axes) == 1 else None
    (axis,) = axes
    assert axis is not None
    if dim != axis:
        return _cat_across(site, numbers, dim, axis)
    starts: Dict[int, int] = {}
    total = 0
    for number in numbers:
        starts[number] = total
        total += site.shape_of(number)[axis]

    def part_footprint(number: int) -> Footprint:
        start, size = starts[number], site.shape_of(number)[axis]

        def part_rows(low: int, high: int) -> Range:
            first, last = max(low - start, 0), min(high - start, size)
            return (first, last) if first < last else EMPTY

        return part_rows

    footprints = {number: part_footprint(number) for number in numbers if site.axis_of(number) is not None}

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        parts = []
        for number in numbers:
            first, last = part_footprint(number)(low, high)
            if first < last:
                parts.append(_read_rows(site, reader, number, axis, first, last))
        return [torch.cat(parts, dim=axis)]

    return Local(Locality.BLOCK, (axis,), shape[axis], footprints, run)


def _cat_repeated(site: Site, numbers: List[int], dim: int) -> Optional[Local]:
    """Concatenate a tensor with itself, across the axis only."""
    axis = next(site.axis_of(number) for number in numbers if site.axis_of(number) is not None)
    if axis is None or axis == dim or any(len(site.shape_of(n)) != len(site.output_shape) for n in numbers):
        return None
    return _cat_across(site, numbers, dim, axis)


def _cat_across(site: Site, numbers: List[int], dim: int, axis: int) -> Local:
    needs: Dict[int, Footprint] = {number: same_rows for number in numbers if site.axis_of(number) is not None}

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        return [torch.cat([_read_rows(site, reader, number, axis, low, high) for number in numbers], dim=dim)]

    return Local(Locality.ELEMENT, (axis,), site.output_shape[axis], needs, run)


@register_rule("aten.stack")
def stack_rule(site: Site) -> Optional[Local]:
    """Stack parts on a new axis."""
    numbers = [item.id for item in site.argument("tensors", ()) if isinstance(item, Ref)]
    axes = {site.axis_of(number) for number in numbers} - {None}
    if len(axes) != 1:
        return None
    (axis,) = axes
    assert axis is not None
    dim = normalise_axis(int(site.argument("dim", 0)), len(site.output_shape))
    place = axis + (dim <= axis)
    needs: Dict[int, Footprint] = {number: same_rows for number in numbers if site.axis_of(number) is not None}

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        return [torch.stack([_read_rows(site, reader, number, axis, low, high) for number in numbers], dim=dim)]

    return Local(Locality.ELEMENT, (place,), site.output_shape[place], needs, run)


@register_rule("aten.slice.Tensor")
def slice_rule(site: Site) -> Optional[Local]:
    """Map output row j to input row start + step * j along the split axis."""
    source = site.number_of("self")
    axis, shape = site.axis_of(source), site.shape_of(source)
    if axis is None:
        return None
    dim = normalise_axis(int(site.argument("dim", 0)), len(shape))
    if dim != axis:
        return _move_rows(site, axis)
    start, step = site.argument("start"), int(site.argument("step", 1))
    start = 0 if start is None else int(start)
    start = min(start + shape[axis] if start < 0 else start, shape[axis])

    def source_rows(low: int, high: int) -> Range:
        return start + step * low, start + step * (high - 1) + 1

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        first, last = source_rows(low, high)
        return site.call_overload(reader, self=reader.rows(source, first, last), start=0, end=last - first)

    return Local(Locality.BLOCK, site.one_axis(axis), site.output_shape[axis], {source: source_rows}, run)


@register_rule("aten.select.int")
def select_rule(site: Site) -> Optional[Local]:
    """Select an index of another axis, which preserves the rows; selecting one row is global."""
    source = site.number_of("self")
    axis = site.axis_of(source)
    dim = normalise_axis(int(site.argument("dim")), len(site.shape_of(source)))
    return None if axis is None or dim == axis else _move_rows(site, axis - (dim < axis))


@register_rule(
    "aten.chunk", "aten.split", "aten.unsafe_split", "aten.split_with_sizes", "aten.unbind", "aten.tensor_split"
)
def chunk_rule(site: Site) -> Optional[Local]:
    """Cut several outputs along another axis."""
    source = site.number_of("self")
    axis = site.axis_of(source)
    dim = normalise_axis(int(site.argument("dim", 0)), len(site.shape_of(source)))
    if axis is None or dim == axis:
        return None
    place = axis - (dim < axis) if site.operator.base_name == "aten.unbind" else axis

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        return site.call_overload(reader, self=reader.rows(source, low, high))

    axes = (place,) * len(site.operator.outputs)
    return Local(Locality.ELEMENT, axes, site.output_shape[place], {source: same_rows}, run)


@register_rule("aten.index_select")
def index_select_rule(site: Site) -> Optional[Local]:
    """Select along another axis, which preserves the rows."""
    source = site.number_of("self")
    axis = site.axis_of(source)
    dim = normalise_axis(int(site.argument("dim")), len(site.shape_of(source)))
    return (
        None
        if axis in (None, dim) or site.axis_of(site.number_of("index")) is not None
        else _move_rows(site, int(axis or 0))
    )


@register_rule("aten.pixel_shuffle")
def pixel_shuffle_rule(site: Site) -> Optional[Local]:
    """Map output row j to input row j // factor."""
    source = site.number_of("self")
    axis, factor = site.axis_of(source), int(site.argument("upscale_factor"))
    if axis is None or axis < len(site.shape_of(source)) - 2:
        return None
    size = site.shape_of(source)[axis]

    def source_rows(low: int, high: int) -> Range:
        return low // factor, min(-(-high // factor), size)

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        first, last = source_rows(low, high)
        (full,) = site.call_overload(reader, self=reader.rows(source, first, last))
        return [full.narrow(axis, low - first * factor, high - low)]

    return Local(Locality.BLOCK, site.one_axis(axis), site.output_shape[axis], {source: source_rows}, run)


@register_rule("aten.pixel_unshuffle")
def pixel_unshuffle_rule(site: Site) -> Optional[Local]:
    """Map output row j to ``factor`` input rows."""
    source = site.number_of("self")
    axis, factor = site.axis_of(source), int(site.argument("downscale_factor"))
    if axis is None or axis < len(site.shape_of(source)) - 2:
        return None

    def source_rows(low: int, high: int) -> Range:
        return low * factor, high * factor

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        return site.call_overload(reader, self=reader.rows(source, *source_rows(low, high)))

    return Local(Locality.BLOCK, site.one_axis(axis), site.output_shape[axis], {source: source_rows}, run)


@register_rule("aten.pad", "aten.constant_pad_nd", "aten.reflection_pad1d", "aten.reflection_pad2d",
               "aten.reflection_pad3d", "aten.replication_pad1d", "aten.replication_pad2d",
               "aten.replication_pad3d")  # fmt: skip
def pad_rule(site: Site) -> Optional[Local]:
    """Copy one input row per output row, or a constant; the mode decides which."""
    source = site.number_of("self")
    axis, shape = site.axis_of(source), site.shape_of(source)
    if axis is None:
        return None
    amounts = [int(amount) for amount in (site.argument("pad") or site.argument("padding"))]
    place = (len(shape) - 1 - axis) * 2
    before = amounts[place] if place < len(amounts) else 0
    if place < len(amounts):
        amounts[place] = amounts[place + 1] = 0
    name = site.operator.base_name
    mode = str(site.argument("mode", "constant")) if name == "aten.pad" else (
        "reflect" if "reflection" in name else "replicate" if "replication" in name else "constant"
    )  # fmt: skip
    value = site.argument("value")
    size, length = shape[axis], site.output_shape[axis]
    origin = [_source_row(row - before, size, mode) for row in range(length)]

    def source_rows(low: int, high: int) -> Range:
        real = [row for row in origin[low:high] if row is not None]
        return (min(real), max(real) + 1) if real else EMPTY

    def run(low: int, high: int, reader: RowReader) -> List[Any]:
        first, last = source_rows(low, high)
        rows = reader.rows(source, first, last)
        index = [0 if row is None else row - first for row in origin[low:high]]
        constant = [k for k, row in enumerate(origin[low:high]) if row is None]
        if first >= last:
            sizes = list(shape)
            sizes[axis] = high - low
            rows = rows.new_zeros(sizes)
        else:
            rows = rows.index_select(axis, torch.tensor(index).to(rows.device, non_blocking=True))
        if constant:
            rows.index_fill_(
                axis, torch.tensor(constant).to(rows.device, non_blocking=True), 0.0 if value is None else value
            )
        options = {"value": value} if mode == "constant" and value is not None else {}
        trimmed = _without_trailing_zeros(amounts)
        return [functional.pad(rows, trimmed, mode=mode, **options) if trimmed else rows]

    return Local(Locality.BLOCK, site.one_axis(axis), length, {source: source_rows}, run)


def _source_row(row: int, size: int, mode: str) -> Optional[int]:
    """Return the input row that output row ``row`` (counted from the first real one) copies."""
    if 0 <= row < size:
        return row
    if mode == "constant":
        return None
    if mode == "replicate":
        return min(max(row, 0), size - 1)
    if mode == "circular":
        return row % size
    return -row if row < 0 else 2 * (size - 1) - row


def _without_trailing_zeros(amounts: List[int]) -> List[int]:
    """Return pairs for ``functional.pad``: as many axes as the mode pads, without zeros on batch axes."""
    remaining = list(amounts)
    while len(remaining) > 4 and remaining[-2:] == [0, 0]:
        remaining = remaining[:-2]
    return remaining if any(remaining) else []


def _read_rows(site: Site, reader: RowReader, number: int, axis: int, low: int, high: int) -> torch.Tensor:
    if site.axis_of(number) is not None:
        return reader.rows(number, low, high)
    return reader.whole(number).narrow(axis, low, high - low)


def _count_elements(sizes: Tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
