"""Storages, their views by layout, and tensors that lie otherwise than the robot supposed."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput
from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.keys import DTYPE_NUMBERS, DTYPES, ITEM_BYTES


class AssumedLayout(NamedTuple):
    """Layout under which the robot refers to a storage of ``nbytes`` bytes that one tensor fills, and that tensor.

    Kernels are given the tensor itself, or the view of it that has the same elements: they compute what they compute
    where nothing was supposed.
    """

    layout: Layout
    nbytes: int
    tensor: torch.Tensor

    def view(self, layout: Layout) -> Optional[torch.Tensor]:
        """Views the tensor with the elements that ``layout`` has in the assumed storage.

        None: there is none by strides.
        """
        if layout.dtype != self.layout.dtype or layout.flags or self.layout.flags:
            return None
        if layout == self.layout:
            return self.tensor
        steps_from = _view_steps(layout, self.layout)
        if steps_from is None:
            return None
        origin, strides_in = steps_from
        along = self.tensor.stride()
        offset = self.tensor.storage_offset() + sum(first * stride for first, stride in zip(origin, along))
        strides = [step * along[axis] if axis >= 0 else 0 for axis, step in strides_in]
        return torch.as_strided(self.tensor, layout.sizes, strides, offset)

    def laid_out(self) -> torch.Tensor:
        """Copies the tensor to a storage with the assumed layout."""
        made = self.tensor.new_empty(0).set_(torch.UntypedStorage(self.nbytes, device=self.tensor.device))
        return made.as_strided(self.layout.sizes, self.layout.strides, self.layout.offset).copy_(self.tensor)

    @property
    def fits_storage(self) -> bool:
        """True if no two elements share a place in the assumed storage, and it is large enough."""
        sizes, strides, offset = self.layout[2:]
        if len(strides) != len(sizes) or min((*strides, offset)) < 0:
            return False
        end = 1
        for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes) if size > 1):
            if stride < end:
                return False
            end = stride * (size - 1) + end
        return 0 in sizes or (offset + end) * ITEM_BYTES[self.tensor.dtype] <= self.nbytes


def _view_steps(view: Layout, base: Layout) -> Optional[Tuple[List[int], Sequence[Tuple[int, int]]]]:
    """Position in ``base`` at which ``view`` begins, and for each of its dimensions the axis and step."""
    axes = sorted((axis for axis, size in enumerate(base.sizes) if size > 1), key=lambda axis: -base.strides[axis])
    rest, origin = view.offset - base.offset, [0] * len(base.sizes)
    for axis in axes:
        origin[axis], rest = divmod(rest, base.strides[axis])
    if rest or 0 in view.sizes:
        return None
    last, steps = list(origin), []
    for size, stride in zip(view.sizes, view.strides):
        axis = next((axis for axis in axes if 0 < base.strides[axis] <= stride), -1)
        if size == 1 or stride == 0:
            axis = -1
        elif axis < 0 or stride % base.strides[axis]:
            return None
        step = stride // base.strides[axis] if axis >= 0 else 0
        if axis >= 0:
            last[axis] += step * (size - 1)
        steps.append((axis, step))
    if any(first < 0 or index >= size for first, index, size in zip(origin, last, base.sizes)):
        return None
    return origin, steps


class StorageBuffer:
    """One storage, and its views, by layout.

    It is given as such, or by a ``tensor`` that a kernel has made.

    Attributes:
        assumed: how the robot refers to it where it lies otherwise; None: as it lies.
    """

    __slots__ = ("_storage", "_tensor", "assumed", "views")

    def __init__(self, storage: Optional[torch.UntypedStorage] = None, tensor: Optional[torch.Tensor] = None) -> None:
        self._storage = storage
        self._tensor = tensor
        self.views: Dict[Layout, torch.Tensor] = {}
        self.assumed: Optional[AssumedLayout] = None

    def assume_layout(self, assumed: AssumedLayout) -> None:
        """Takes views in a storage that lies otherwise, as long as they have the same elements in this one.

        Raises:
            BadInput: no storage lies so.
        """
        if not assumed.fits_storage:
            raise BadInput(f"a tensor of {assumed.layout.sizes} does not fit a storage of {assumed.nbytes} bytes")
        self._storage, self._tensor, self.assumed = None, None, assumed
        self.views.clear()

    def lay_out(self) -> None:
        """Moves the contents to the assumed layout; drops its views."""
        if self.assumed is not None:
            self._tensor, self.assumed = self.assumed.laid_out(), None
            self.views.clear()

    @property
    def nbytes(self) -> int:
        """Size in bytes under the layout that the robot assumes."""
        return self.storage.nbytes() if self.assumed is None else self.assumed.nbytes

    @property
    def actual_storage(self) -> torch.UntypedStorage:
        """Storage as it lies."""
        return self.storage if self.assumed is None else self.assumed.tensor.untyped_storage()

    @property
    def storage(self) -> torch.UntypedStorage:
        """The storage itself, as the robot refers to it."""
        self.lay_out()
        if self._storage is None:
            assert self._tensor is not None
            self._storage = self._tensor.untyped_storage()
        return self._storage

    @property
    def tensor(self) -> torch.Tensor:
        """Some tensor in it, as the robot refers to it."""
        self.lay_out()
        if self._tensor is None:
            assert self._storage is not None
            self._tensor = torch.empty(0, dtype=torch.uint8, device=self._storage.device).set_(self._storage)
        return self._tensor

    def view(self, layout: Layout) -> torch.Tensor:
        """The tensor of ``layout``, made on first use.

        Raises:
            BadInput: it would reach beyond the storage.
        """
        cached = self.views.get(layout)
        if cached is not None:
            return cached
        tensor = self._tensor if self.assumed is None else self.assumed.view(layout)
        if tensor is None or (self.assumed is None and not has_layout(tensor, layout)):
            self.lay_out()
            tensor = self._make_view(layout)
        self.views[layout] = tensor
        return tensor

    def drop_views(self) -> None:
        """Drops the views: an operator has changed the layout of a tensor in it."""
        self._storage, self._tensor = self.storage, None
        self.views.clear()

    def resize(self, nbytes: int) -> None:
        """Gives the storage another size: views may reach beyond it now."""
        self.drop_views()
        self.storage.resize_(nbytes)

    def _make_view(self, layout: Layout) -> torch.Tensor:
        dtype = DTYPES[layout.dtype]
        last = layout.offset + sum((size - 1) * stride for size, stride in zip(layout.sizes, layout.strides))
        nbytes = self.storage.nbytes()
        if 0 not in layout.sizes and (last + 1) * ITEM_BYTES[dtype] > nbytes:
            raise BadInput(f"a tensor of {layout.sizes} reaches beyond its storage of {nbytes} bytes")
        try:
            if (
                self._tensor is not None
                and self._tensor.dtype == dtype
                and not layout.flags
                and not _flags(self._tensor)
            ):
                return torch.as_strided(self._tensor, layout.sizes, layout.strides, layout.offset)
            tensor = torch.empty(0, dtype=dtype, device=self.storage.device)
            tensor.set_(self.storage, layout.offset, layout.sizes, layout.strides)
            if layout.flags & 1:
                tensor = torch._conj(tensor)
            if layout.flags & 2:
                tensor = torch._neg_view(tensor)
        except RuntimeError as error:
            raise BadInput(f"a tensor of {layout.sizes} does not fit its storage: {error}") from None
        return tensor


def layout_of(tensor: torch.Tensor) -> Layout:
    """Reads the layout of ``tensor`` in its storage."""
    return Layout(
        DTYPE_NUMBERS[tensor.dtype], _flags(tensor), tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    )


def has_layout(tensor: torch.Tensor, layout: Layout) -> bool:
    """Compares :func:`layout_of` of ``tensor`` with ``layout``."""
    return (
        tensor.shape == layout.sizes
        and tensor.stride() == layout.strides
        and tensor.storage_offset() == layout.offset
        and tensor.dtype == DTYPES[layout.dtype]
        and _flags(tensor) == layout.flags
    )


def _flags(tensor: torch.Tensor) -> int:
    return (1 if tensor.is_conj() else 0) | (2 if tensor.is_neg() else 0)
