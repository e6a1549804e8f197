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


def view_as(base: torch.Tensor, held: Layout, wanted: Layout) -> torch.Tensor:
    """``base``, which lies in its storage as ``held`` says, viewed as ``wanted`` says.

    Raises:
        Unsupported: that is no chain of slices, permutations, reshapes and expansions.
    """
    if (wanted.dtype, wanted.flags) != (held.dtype, held.flags):
        raise Unsupported(f"a {DTYPES[held.dtype]} tensor is viewed as {DTYPES[wanted.dtype]}, or conjugated")
    if same(held, wanted):
        return base
    if 0 in wanted.sizes:  # there is nothing in it
        return torch.zeros(wanted.sizes, dtype=DTYPES[wanted.dtype])
    if 0 in held.sizes:
        raise Unsupported("a view reaches beyond the end of an empty tensor")
    start = wanted.offset - held.offset
    if start < 0:
        raise Unsupported("a view begins before its tensor")
    sliced = _slices(base, held, wanted, start)
    if sliced is not None:
        return sliced
    order = sorted(range(len(held.sizes)), key=lambda axis: (-held.strides[axis], held.sizes[axis] > 1, axis))
    sizes = tuple(held.sizes[axis] for axis in order)
    if not _dense(sizes, tuple(held.strides[axis] for axis in order)):
        raise Unsupported("a tensor with gaps is viewed in another shape")
    physical = base if order == sorted(order) else aten.permute.default(base, order)
    try:
        return _regular(physical, sizes, wanted, start)
    except Unsupported:
        parts = _parts(physical, sizes, wanted, start)
        if parts is None:
            raise
        return parts


def same(one: Layout, other: Layout) -> bool:
    """Whether two layouts show the same numbers in the same order; strides of single rows do not matter."""
    return (one.dtype, one.flags, one.sizes, one.offset) == (other.dtype, other.flags, other.sizes, other.offset) and (
        all(a == b for a, b, size in zip(one.strides, other.strides, one.sizes) if size > 1)
    )


def is_dense(layout: Layout) -> bool:
    """Whether it has neither gaps nor overlaps, in whatever order its axes lie."""
    order = sorted(range(len(layout.sizes)), key=lambda axis: (-layout.strides[axis], layout.sizes[axis] > 1, axis))
    return _dense(tuple(layout.sizes[i] for i in order), tuple(layout.strides[i] for i in order))


def laid_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """``tensor``, of the same sizes, with its axes in the order of memory that a dense ``layout`` has."""
    if all(a == b for a, b, size in zip(tensor.stride(), layout.strides, layout.sizes) if size > 1):
        return tensor
    order = sorted(range(len(layout.sizes)), key=lambda axis: (-layout.strides[axis], layout.sizes[axis] > 1, axis))
    if order == sorted(order):
        found: torch.Tensor = aten.clone.default(tensor, memory_format=torch.contiguous_format)
        return found
    physical = aten.clone.default(aten.permute.default(tensor, order), memory_format=torch.contiguous_format)
    ordered: torch.Tensor = aten.permute.default(physical, _inverse(order))
    return ordered


def _dense(sizes: Sizes, strides: Sizes) -> bool:
    """Whether these are the strides of a row-major tensor without gaps."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _slices(base: torch.Tensor, held: Layout, wanted: Layout, start: int) -> Optional[torch.Tensor]:
    """The view as slices along axes that stay as they are; None if it is more than that."""
    if len(held.sizes) != len(wanted.sizes):
        return None
    if any(size > 1 and a != b for size, a, b in zip(wanted.sizes, wanted.strides, held.strides)):
        return None
    starts = [0] * len(held.sizes)
    for axis in sorted(range(len(held.sizes)), key=lambda axis: -held.strides[axis]):
        if held.sizes[axis] > 1 and held.strides[axis] > 0:
            starts[axis], start = divmod(start, held.strides[axis])
    if start or any(a + size > whole for a, size, whole in zip(starts, wanted.sizes, held.sizes)):
        return None
    return _cut(base, _Cut(list(held.sizes), starts, list(wanted.sizes), [1] * len(starts)))


def _regular(physical: torch.Tensor, sizes: Sizes, wanted: Layout, start: int) -> torch.Tensor:
    """The view of a row-major tensor: reshaped to a box whose axes have the strides that are wanted."""
    count = 1
    for size in sizes:
        count *= size
    if start == 0 and _dense(wanted.sizes, wanted.strides) and _product(wanted.sizes) == count:
        whole: torch.Tensor = aten.view.default(physical, list(wanted.sizes))
        return whole
    own = _own(wanted)
    cut = _Cut([], [], [], [])
    above = count
    for axis in own:
        stride = wanted.strides[axis]
        if above == stride:
            raise Unsupported("a tensor is viewed with strides that no reshape has")
        row = math.gcd(above, stride)
        place, start = divmod(start, row)
        cut.shape.append(above // row)
        cut.starts.append(place)
        cut.lengths.append(wanted.sizes[axis])
        cut.steps.append(stride // row)
        above = row
    if above > 1:
        cut.shape.append(above)
        cut.starts.append(start)
        cut.lengths.append(1)
        cut.steps.append(1)
    if any(place + (length - 1) * step >= whole for whole, place, length, step in zip(*cut)):
        raise Unsupported("a view reaches beyond an axis of its tensor")
    found = physical if tuple(cut.shape) == sizes else aten.view.default(physical, cut.shape)
    found = _cut(found, cut)
    if above > 1:
        found = aten.select.int(found, len(own), 0)
    return _arranged(found, own, wanted)


def _own(wanted: Layout) -> List[int]:
    """The axes that go through memory, from far apart to near."""
    own = [axis for axis, size in enumerate(wanted.sizes) if size > 1 and wanted.strides[axis] > 0]
    return sorted(own, key=lambda axis: -wanted.strides[axis])


def _parts(physical: torch.Tensor, sizes: Sizes, wanted: Layout, start: int) -> Optional[torch.Tensor]:
    """The view as one slice of each axis, some of which are then reshaped to several; None if it is more than that."""
    own = _own(wanted)
    cut, shape = _Cut(list(sizes), [], [], [1] * len(sizes)), []
    above = _product(sizes)
    rest = list(own)
    for size in sizes:
        step = above // size
        group = [axis for axis in rest if step <= wanted.strides[axis] < above]
        rest = rest[len(group) :]
        extent = step
        for axis in reversed(group):
            if wanted.strides[axis] != extent:
                return None
            extent *= wanted.sizes[axis]
        place, start = divmod(start, step)
        if place + extent // step > size:
            return None
        cut.starts.append(place)
        cut.lengths.append(extent // step)
        shape += [wanted.sizes[axis] for axis in group]
        above = step
    if rest or start:
        return None
    found = _cut(physical, cut)
    if shape != cut.lengths:
        found = aten.view.default(found, shape)
    return _arranged(found, own, wanted)


def _arranged(found: torch.Tensor, own: Sequence[int], wanted: Layout) -> torch.Tensor:
    """A tensor whose axes are ``own``, with the axes of ``wanted``."""
    order = [own.index(axis) for axis in sorted(own)]
    if order != sorted(order):
        found = aten.permute.default(found, order)
    for axis in range(len(wanted.sizes)):
        if axis not in own:
            found = aten.unsqueeze.default(found, axis)
    if any(size > 1 and axis not in own for axis, size in enumerate(wanted.sizes)):
        found = aten.expand.default(found, list(wanted.sizes))
    return found


def _cut(tensor: torch.Tensor, cut: _Cut) -> torch.Tensor:
    for axis, (whole, place, length, step) in enumerate(zip(*cut)):
        if (place, length) != (0, whole):
            end = place + (length - 1) * step + 1
            tensor = aten.slice.Tensor(tensor, axis, place, end, *([] if step == 1 else [step]))
    return tensor


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _inverse(order: Sequence[int]) -> List[int]:
    return [list(order).index(axis) for axis in range(len(order))]
