"""Expresses a view, of which only the layout is known, by slices, permutations and reshapes of a tensor.

The device describes views by sizes, strides and an offset. The operators used here can be divided by rows.
``as_strided`` cannot, and would read past the rows that a machine has, so it is never used.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

from edge_offload.errors import Unsupported
from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.keys import DTYPES

aten = torch.ops.aten
Sizes = Tuple[int, ...]


class _Cut(NamedTuple):
    """Slices of a row-major tensor of ``shape``: per axis ``lengths`` indices from ``starts`` on, by ``steps``."""

    shape: List[int]
    starts: List[int]
    lengths: List[int]
    steps: List[int]


def view_as(base: torch.Tensor, layout: Layout, target: Layout) -> torch.Tensor:
    """Views a tensor as another layout of its storage.

    Args:
        base: the tensor.
        layout: of ``base`` in its storage.
        target: layout of the view in the same storage.

    Raises:
        Unsupported: the view is no chain of slices, permutations, reshapes and expansions.
    """
    if (target.dtype, target.flags) != (layout.dtype, layout.flags):
        raise Unsupported(f"a {DTYPES[layout.dtype]} tensor is viewed as {DTYPES[target.dtype]}, or conjugated")
    if same_elements(layout, target):
        return base
    if 0 in target.sizes:  # the view has no elements
        return torch.zeros(target.sizes, dtype=DTYPES[target.dtype])
    if 0 in layout.sizes:
        raise Unsupported("a view reaches beyond the end of an empty tensor")
    start = target.offset - layout.offset
    if start < 0:
        raise Unsupported("a view begins before its tensor")
    view = _as_slices(base, layout, target, start)
    if view is not None:
        return view
    # axes from far apart in memory to near
    order = sorted(range(len(layout.sizes)), key=lambda axis: (-layout.strides[axis], layout.sizes[axis] > 1, axis))
    sizes = tuple(layout.sizes[axis] for axis in order)
    if not _is_row_major(sizes, tuple(layout.strides[axis] for axis in order)):
        raise Unsupported("a tensor with gaps is viewed in another shape")
    physical = base if order == sorted(order) else aten.permute.default(base, order)
    try:
        return _as_reshape(physical, sizes, target, start)
    except Unsupported:
        parts = _as_parts(physical, sizes, target, start)
        if parts is None:
            raise
        return parts


def same_elements(one: Layout, other: Layout) -> bool:
    """Tells whether two layouts show the same elements in the same order; strides of axes of size 1 do not matter."""
    return (one.dtype, one.flags, one.sizes, one.offset) == (other.dtype, other.flags, other.sizes, other.offset) and (
        all(a == b for a, b, size in zip(one.strides, other.strides, one.sizes) if size > 1)
    )


def is_dense(layout: Layout) -> bool:
    """Checks that a layout has neither gaps nor overlaps, in any order of its axes."""
    order = sorted(range(len(layout.sizes)), key=lambda axis: (-layout.strides[axis], layout.sizes[axis] > 1, axis))
    return _is_row_major(tuple(layout.sizes[i] for i in order), tuple(layout.strides[i] for i in order))


def laid_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """``tensor``, copied if need be so that its axes are ordered in memory as in a dense ``layout`` of its sizes."""
    if all(a == b for a, b, size in zip(tensor.stride(), layout.strides, layout.sizes) if size > 1):
        return tensor
    order = sorted(range(len(layout.sizes)), key=lambda axis: (-layout.strides[axis], layout.sizes[axis] > 1, axis))
    if order == sorted(order):
        copied: torch.Tensor = aten.clone.default(tensor, memory_format=torch.contiguous_format)
        return copied
    physical = aten.clone.default(aten.permute.default(tensor, order), memory_format=torch.contiguous_format)
    ordered: torch.Tensor = aten.permute.default(physical, _inverse_order(order))
    return ordered


def _is_row_major(sizes: Sizes, strides: Sizes) -> bool:
    """Checks for the strides of a row-major tensor without gaps."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _as_slices(base: torch.Tensor, layout: Layout, target: Layout, start: int) -> Optional[torch.Tensor]:
    """Builds the view by slices alone; None if it has other axes. ``start``: first element, counted from the base."""
    if len(layout.sizes) != len(target.sizes):
        return None
    if any(size > 1 and a != b for size, a, b in zip(target.sizes, target.strides, layout.strides)):
        return None
    starts = [0] * len(layout.sizes)
    for axis in sorted(range(len(layout.sizes)), key=lambda axis: -layout.strides[axis]):
        if layout.sizes[axis] > 1 and layout.strides[axis] > 0:
            starts[axis], start = divmod(start, layout.strides[axis])
    if start or any(a + size > extent for a, size, extent in zip(starts, target.sizes, layout.sizes)):
        return None
    return _slice_axes(base, _Cut(list(layout.sizes), starts, list(target.sizes), [1] * len(starts)))


def _as_reshape(physical: torch.Tensor, sizes: Sizes, target: Layout, start: int) -> torch.Tensor:
    """Builds the view of a row-major tensor by a reshape to axes whose strides divide the target's, then slices.

    Raises:
        Unsupported: there is no such shape.
    """
    count = 1
    for size in sizes:
        count *= size
    if start == 0 and _is_row_major(target.sizes, target.strides) and _element_count(target.sizes) == count:
        reshaped: torch.Tensor = aten.view.default(physical, list(target.sizes))
        return reshaped
    axes = _moving_axes(target)
    cut = _Cut([], [], [], [])
    remaining = count  # elements of the axes that the shape still lacks
    for axis in axes:
        stride = target.strides[axis]
        if remaining == stride:
            raise Unsupported("a tensor is viewed with strides that no reshape has")
        row = math.gcd(remaining, stride)
        place, start = divmod(start, row)
        cut.shape.append(remaining // row)
        cut.starts.append(place)
        cut.lengths.append(target.sizes[axis])
        cut.steps.append(stride // row)
        remaining = row
    if remaining > 1:
        cut.shape.append(remaining)
        cut.starts.append(start)
        cut.lengths.append(1)
        cut.steps.append(1)
    if any(place + (length - 1) * step >= extent for extent, place, length, step in zip(*cut)):
        raise Unsupported("a view reaches beyond an axis of its tensor")
    view = physical if tuple(cut.shape) == sizes else aten.view.default(physical, cut.shape)
    view = _slice_axes(view, cut)
    if remaining > 1:
        view = aten.select.int(view, len(axes), 0)
    return _arrange_axes(view, axes, target)


def _moving_axes(target: Layout) -> List[int]:
    """Axes with more than one element and a stride, from far apart in memory to near."""
    axes = [axis for axis, size in enumerate(target.sizes) if size > 1 and target.strides[axis] > 0]
    return sorted(axes, key=lambda axis: -target.strides[axis])


def _as_parts(physical: torch.Tensor, sizes: Sizes, target: Layout, start: int) -> Optional[torch.Tensor]:
    """Builds the view by one slice of each axis, then a reshape that splits axes; None if that is not enough."""
    axes = _moving_axes(target)
    cut, shape = _Cut(list(sizes), [], [], [1] * len(sizes)), []
    span = _element_count(sizes)  # elements from one index of the axis before to the next
    rest = list(axes)
    for size in sizes:
        step = span // size
        group = [axis for axis in rest if step <= target.strides[axis] < span]  # axes of the view inside this one
        rest = rest[len(group) :]
        extent = step
        for axis in reversed(group):
            if target.strides[axis] != extent:
                return None
            extent *= target.sizes[axis]
        place, start = divmod(start, step)
        if place + extent // step > size:
            return None
        cut.starts.append(place)
        cut.lengths.append(extent // step)
        shape += [target.sizes[axis] for axis in group]
        span = step
    if rest or start:
        return None
    view = _slice_axes(physical, cut)
    if shape != cut.lengths:
        view = aten.view.default(view, shape)
    return _arrange_axes(view, axes, target)


def _arrange_axes(view: torch.Tensor, axes: Sequence[int], target: Layout) -> torch.Tensor:
    """Permutes and expands ``view``, whose axes are those ``axes`` of the target, to the target's sizes."""
    order = [axes.index(axis) for axis in sorted(axes)]
    if order != sorted(order):
        view = aten.permute.default(view, order)
    for axis in range(len(target.sizes)):
        if axis not in axes:
            view = aten.unsqueeze.default(view, axis)
    if any(size > 1 and axis not in axes for axis, size in enumerate(target.sizes)):
        view = aten.expand.default(view, list(target.sizes))
    return view


def _slice_axes(tensor: torch.Tensor, box: _Cut) -> torch.Tensor:
    for axis, (extent, place, length, step) in enumerate(zip(*box)):
        if (place, length) != (0, extent):
            end = place + (length - 1) * step + 1
            tensor = aten.slice.Tensor(tensor, axis, place, end, *([] if step == 1 else [step]))
    return tensor


def _element_count(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _inverse_order(order: Sequence[int]) -> List[int]:
    return [list(order).index(axis) for axis in range(len(order))]
