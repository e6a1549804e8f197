"""A storage that lies otherwise than the robot supposes: whatever view it takes has the elements that it means."""

from __future__ import annotations

import random

import pytest
import torch

from edge_offload.errors import BadInput
from edge_offload.execute.session.results import assumed_layouts
from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.calls import ALIAS, NEW, Result
from edge_offload.ir.trace.storage import AssumedLayout, StorageBuffer, layout_of


def in_order(tensor: torch.Tensor, order: list) -> torch.Tensor:
    """The same values, with axes that lie in memory in ``order``."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def some_view(tensor: torch.Tensor, draws: random.Random) -> torch.Tensor:
    """Slices, permutations, and dimensions that are split, put together or added."""
    for _ in range(draws.randrange(5)):
        axis = draws.randrange(tensor.dim()) if tensor.dim() else 0
        way = draws.randrange(6)
        if way == 0 and tensor.dim() and tensor.size(axis) > 1:
            tensor = tensor.narrow(axis, 1, tensor.size(axis) - 1)
        elif way == 1 and tensor.dim() and tensor.size(axis) > 1:
            tensor = tensor.select(axis, draws.randrange(tensor.size(axis)))
        elif way == 2 and tensor.dim():
            tensor = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], 2, *tensor.shape[axis:])
        elif way == 3 and tensor.dim():
            tensor = tensor.permute(draws.sample(range(tensor.dim()), tensor.dim()))
        elif way == 4 and tensor.dim() and tensor.size(axis) % 2 == 0:
            tensor = tensor.unflatten(axis, (2, tensor.size(axis) // 2))
        elif way == 5 and tensor.dim() > 1:
            try:
                tensor = tensor.view(-1, *tensor.shape[2:])
            except RuntimeError:
                continue
    return tensor


def test_every_view_has_the_elements_that_it_has_where_the_robot_supposes_them():
    draws, assumed = random.Random(3), 0
    for _ in range(400):
        sizes = [draws.choice((1, 2, 3, 4)) for _ in range(draws.randrange(1, 5))]
        values = torch.rand(sizes)
        real = in_order(values, draws.sample(range(len(sizes)), len(sizes)))
        supposed = in_order(values, draws.sample(range(len(sizes)), len(sizes)))
        buffer = StorageBuffer(tensor=real)
        buffer.assume_layout(AssumedLayout(layout_of(supposed), supposed.untyped_storage().nbytes(), real))
        for _ in range(3):
            view = some_view(supposed, draws)
            viewed = buffer.view(layout_of(view))
            assert torch.equal(viewed, view)
            assumed += buffer.assumed is not None
            if not any(stride == 0 for stride in view.stride()):  # what is written is written in both
                viewed.add_(1)
                view.add_(1)
        assert torch.equal(buffer.view(layout_of(supposed)), supposed)
        buffer.lay_out()
        assert buffer.view(layout_of(supposed)).stride() == supposed.stride()
        assert torch.equal(buffer.view(layout_of(supposed)), supposed)
    assert assumed > 300, "most views are views of what a kernel has made"


@pytest.mark.parametrize(
    ("strides", "offset", "nbytes"),
    [((1, 1), 0, 64), ((3, 1), 0, 20), ((3, 1), 1, 24), ((-3, 1), 0, 64), ((3,), 0, 64)],
)
def test_what_has_no_place_for_every_element_is_refused(strides, offset, nbytes):
    real = torch.rand(2, 3)
    with pytest.raises(BadInput):
        StorageBuffer(tensor=real).assume_layout(AssumedLayout(Layout(6, 0, (2, 3), strides, offset), nbytes, real))


def test_only_how_new_storages_lie_may_differ():
    def wire(kind: int = NEW, sizes: tuple = (2, 3), strides: tuple = (3, 1), dtype: int = 6, ref: int = 0) -> list:
        return Result(kind, ref, Layout(dtype, 0, sizes, strides, 0), 24).to_wire()

    layouts = [["t", wire()], ["l", [wire(), wire()]]]
    assert assumed_layouts(layouts, layouts) == []
    other = [["t", wire()], ["l", [wire(), wire(strides=(1, 2))]]]
    assert assumed_layouts(other, layouts) == [(2, Layout(6, 0, (2, 3), (1, 2), 0), 24)]
    for wrong in (wire(sizes=(3, 2)), wire(dtype=7), wire(kind=ALIAS), [3]):
        assert assumed_layouts([["t", wrong], layouts[1]], layouts) is None
    assert assumed_layouts(layouts[:1], layouts) is None
