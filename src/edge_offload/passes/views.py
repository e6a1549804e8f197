"""A view of a storage as operators: a layout, found again as slices, permutations and reshapes of a tensor.

The device knows views only as sizes, strides and an offset. Operators that say which rows they take can be divided by
rows; ``as_strided`` cannot, and it would read past a tensor that is there in parts, so it is never used.
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
    """A tensor in row-major order as a box of ``shape``: ``lengths`` rows from ``starts`` on, every ``steps``-th."""

    shape: List[int]
    starts: List[int]
    lengths: List[int]
    steps: List[int]


def view_as(base: torch.Tensor, layout: Layout, target: Layout) -> torch.Tensor:
    """Views ``base``, which lies in its storage as ``layout`` says, as ``target`` says.

    Raises:
        Unsupported: that is no chain of slices, permutations, reshapes and expansions.
    """
    if (target.dtype, target.flags) != (layout.dtype, layout.flags):
        raise Unsupported(f"a {DTYPES[layout.dtype]} tensor is viewed as {DTYPES[target.dtype]}, or conjugated")
    if same_elements(layout, target):
        return base
    if 0 in target.sizes:  # there is nothing in it
        return torch.zeros(target.sizes, dtype=DTYPES[target.dtype])
    if 0 in layout.sizes:
        raise Unsupported("a view reaches beyond the end of an empty tensor")
    start = target.offset - layout.offset
    if start < 0:
        raise Unsupported("a view begins before its tensor")
    view = _as_slices(base, layout, target, start)
    if view is not None:
        return view
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
    """Compares layouts: True if both show the same elements in the same order; strides of single rows do not matter."""
    return (one.dtype, one.flags, one.sizes, one.offset) == (other.dtype, other.flags, other.sizes, other.offset) and (
        all(a == b for a, b, size in zip(one.strides, other.strides, one.sizes) if size > 1)
    )


def is_dense(layout: Layout) -> bool:
    """Checks that a layout has neither gaps nor overlaps, in any order of its axes."""
    order = sorted(range(len(layout.sizes)), key=lambda axis: (-layout.strides[axis], layout.sizes[axis] > 1, axis))
    return _is_row_major(tuple(layout.sizes[i] for i in order), tuple(layout.strides[i] for i in order))


def laid_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """``tensor``, of the same sizes, with its axes in the order of memory that a dense ``layout`` has."""
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
    """Builds the view from slices along axes that stay as they are; None if that is not enough."""
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
    """Builds the view of a row-major tensor by a reshape to a box whose axes have the target's strides."""
    count = 1
    for size in sizes:
        count *= size
    if start == 0 and _is_row_major(target.sizes, target.strides) and _element_count(target.sizes) == count:
        reshaped: torch.Tensor = aten.view.default(physical, list(target.sizes))
        return reshaped
    axes = _moving_axes(target)
    cut = _Cut([], [], [], [])
    above = count
    for axis in axes:
        stride = target.strides[axis]
        if above == stride:
            raise Unsupported("a tensor is viewed with strides that no reshape has")
        row = math.gcd(above, stride)
        place, start = divmod(start, row)
        cut.shape.append(above // row)
        cut.starts.append(place)
        cut.lengths.append(target.sizes[axis])
        cut.steps.append(stride // row)
        above = row
    if above > 1:
        cut.shape.append(above)
        cut.starts.append(start)
        cut.lengths.append(1)
        cut.steps.append(1)
    if any(place + (length - 1) * step >= extent for extent, place, length, step in zip(*cut)):
        raise Unsupported("a view reaches beyond an axis of its tensor")
    view = physical if tuple(cut.shape) == sizes else aten.view.default(physical, cut.shape)
    view = _slice_axes(view, cut)
    if above > 1:
        view = aten.select.int(view, len(axes), 0)
    return _arrange_axes(view, axes, target)


def _moving_axes(target: Layout) -> List[int]:
    """Axes that go through memory, from far apart to near."""
    axes = [axis for axis, size in enumerate(target.sizes) if size > 1 and target.strides[axis] > 0]
    return sorted(axes, key=lambda axis: -target.strides[axis])


def _as_parts(physical: torch.Tensor, sizes: Sizes, target: Layout, start: int) -> Optional[torch.Tensor]:
    """Slices each axis once and reshapes some to several; None if the view is more than that."""
    axes = _moving_axes(target)
    cut, shape = _Cut(list(sizes), [], [], [1] * len(sizes)), []
    above = _element_count(sizes)
    rest = list(axes)
    for size in sizes:
        step = above // size
        group = [axis for axis in rest if step <= target.strides[axis] < above]
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
        above = step
    if rest or start:
        return None
    view = _slice_axes(physical, cut)
    if shape != cut.lengths:
        view = aten.view.default(view, shape)
    return _arrange_axes(view, axes, target)


def _arrange_axes(view: torch.Tensor, axes: Sequence[int], target: Layout) -> torch.Tensor:
    """Brings ``view``, whose axes are ``axes`` of the target, to the target's order and shape."""
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
