"""Storages, their views by layout, and tensors that lie otherwise than the robot supposed."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from edge_offload.errors import BadInput
from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.keys import DTYPE_NUMBERS, DTYPES, ITEM_BYTES


class Supposed(NamedTuple):
    """How the robot refers to a storage of ``nbytes`` bytes that one tensor fills, and that tensor.

    Kernels are given the tensor itself, or the view of it that has the same elements: they compute what they compute
    where nothing was supposed.
    """

    layout: Layout
    nbytes: int
    tensor: torch.Tensor

    def view(self, layout: Layout) -> Optional[torch.Tensor]:
        """The view of the tensor with the elements that ``layout`` has in the supposed storage.

        None: there is none by strides.
        """
        if layout.dtype != self.layout.dtype or layout.flags or self.layout.flags:
            return None
        if layout == self.layout:
            return self.tensor
        found = _steps(layout, self.layout)
        if found is None:
            return None
        origin, steps = found
        along = self.tensor.stride()
        offset = self.tensor.storage_offset() + sum(first * stride for first, stride in zip(origin, along))
        strides = [step * along[axis] if axis >= 0 else 0 for axis, step in steps]
        return torch.as_strided(self.tensor, layout.sizes, strides, offset)

    def laid_out(self) -> torch.Tensor:
        """A copy that lies as was supposed."""
        made = self.tensor.new_empty(0).set_(torch.UntypedStorage(self.nbytes, device=self.tensor.device))
        return made.as_strided(self.layout.sizes, self.layout.strides, self.layout.offset).copy_(self.tensor)

    @property
    def fits(self) -> bool:
        """Whether each element has a place of its own in the supposed storage."""
        sizes, strides, offset = self.layout[2:]
        if len(strides) != len(sizes) or min((*strides, offset)) < 0:
            return False
        end = 1
        for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes) if size > 1):
            if stride < end:
                return False
            end = stride * (size - 1) + end
        return 0 in sizes or (offset + end) * ITEM_BYTES[self.tensor.dtype] <= self.nbytes


def _steps(view: Layout, whole: Layout) -> Optional[Tuple[List[int], Sequence[Tuple[int, int]]]]:
    """Where ``view`` begins in ``whole``, and along which axis it goes by how much in each of its dimensions."""
    axes = sorted((axis for axis, size in enumerate(whole.sizes) if size > 1), key=lambda axis: -whole.strides[axis])
    rest, origin = view.offset - whole.offset, [0] * len(whole.sizes)
    for axis in axes:
        origin[axis], rest = divmod(rest, whole.strides[axis])
    if rest or 0 in view.sizes:
        return None
    last, steps = list(origin), []
    for size, stride in zip(view.sizes, view.strides):
        axis = next((axis for axis in axes if 0 < whole.strides[axis] <= stride), -1)
        if size == 1 or stride == 0:
            axis = -1
        elif axis < 0 or stride % whole.strides[axis]:
            return None
        step = stride // whole.strides[axis] if axis >= 0 else 0
        if axis >= 0:
            last[axis] += step * (size - 1)
        steps.append((axis, step))
    if any(first < 0 or index >= size for first, index, size in zip(origin, last, whole.sizes)):
        return None
    return origin, steps


class StorageBuffer:
    """One storage, and its views, by layout.

    It is given as such, or by a ``tensor`` that a kernel has made.

    Attributes:
        supposed: how the robot refers to it where it lies otherwise; None: as it lies.
    """

    __slots__ = ("_storage", "_tensor", "supposed", "views")

    def __init__(self, storage: Optional[torch.UntypedStorage] = None, tensor: Optional[torch.Tensor] = None) -> None:
        self._storage = storage
        self._tensor = tensor
        self.views: Dict[Layout, torch.Tensor] = {}
        self.supposed: Optional[Supposed] = None

    def suppose(self, supposed: Supposed) -> None:
        """Take views in a storage that lies otherwise, as long as they have the same elements in this one.

        Raises:
            BadInput: no storage lies so.
        """
        if not supposed.fits:
            raise BadInput(f"a tensor of {supposed.layout.sizes} does not fit a storage of {supposed.nbytes} bytes")
        self._storage, self._tensor, self.supposed = None, None, supposed
        self.views.clear()

    def lay_out(self) -> None:
        """Let it lie as was supposed; its views are others then."""
        if self.supposed is not None:
            self._tensor, self.supposed = self.supposed.laid_out(), None
            self.views.clear()

    @property
    def nbytes(self) -> int:
        """Its size, as the robot counts."""
        return self.storage.nbytes() if self.supposed is None else self.supposed.nbytes

    @property
    def present(self) -> torch.UntypedStorage:
        """The storage as it lies."""
        return self.storage if self.supposed is None else self.supposed.tensor.untyped_storage()

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
        found = self.views.get(layout)
        if found is not None:
            return found
        tensor = self._tensor if self.supposed is None else self.supposed.view(layout)
        if tensor is None or (self.supposed is None and not lies_so(tensor, layout)):
            self.lay_out()
            tensor = self._made(layout)
        self.views[layout] = tensor
        return tensor

    def forget_views(self) -> None:
        """An operator has changed the layout of a tensor in it."""
        self._storage, self._tensor = self.storage, None
        self.views.clear()

    def resize(self, nbytes: int) -> None:
        """Give the storage another size: views may reach beyond it now."""
        self.forget_views()
        self.storage.resize_(nbytes)

    def _made(self, layout: Layout) -> torch.Tensor:
        dtype = DTYPES[layout.dtype]
        last = layout.offset + sum((size - 1) * stride for size, stride in zip(layout.sizes, layout.strides))
        held = self.storage.nbytes()
        if 0 not in layout.sizes and (last + 1) * ITEM_BYTES[dtype] > held:
            raise BadInput(f"a tensor of {layout.sizes} reaches beyond its storage of {held} bytes")
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
    """How ``tensor`` lies in its storage."""
    return Layout(
        DTYPE_NUMBERS[tensor.dtype], _flags(tensor), tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    )


def lies_so(tensor: torch.Tensor, layout: Layout) -> bool:
    """Whether :func:`layout_of` of ``tensor`` is ``layout``."""
    return (
        tensor.shape == layout.sizes
        and tensor.stride() == layout.strides
        and tensor.storage_offset() == layout.offset
        and tensor.dtype == DTYPES[layout.dtype]
        and _flags(tensor) == layout.flags
    )


def _flags(tensor: torch.Tensor) -> int:
    return (1 if tensor.is_conj() else 0) | (2 if tensor.is_neg() else 0)
