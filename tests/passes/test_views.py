"""Looks into a storage, found again as slices, permutations and reshapes: the same numbers, or an error."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import Unsupported
from edge_offload.ir.trace.storage import layout_of
from edge_offload.passes.views import is_dense, laid_out, view_as

KINDS = ("slice", "select", "permute", "merge", "divide", "expand", "unsqueeze", "step")


def viewed(tensor: torch.Tensor, kind: str, draw) -> torch.Tensor:
    """One more view of ``tensor``, as programs make them; the same one where it does not apply."""
    rank = tensor.dim()
    axis = draw(st.integers(0, max(rank - 1, 0)))
    if kind == "unsqueeze":
        return tensor.unsqueeze(draw(st.integers(0, rank)))
    if rank == 0:
        return tensor
    size = tensor.shape[axis]
    if kind == "slice":
        low = draw(st.integers(0, size - 1))
        return tensor.narrow(axis, low, draw(st.integers(1, size - low)))
    if kind == "step":
        return tensor[(slice(None),) * axis + (slice(None, None, 2),)]
    if kind == "select" and rank > 1:
        return tensor.select(axis, draw(st.integers(0, size - 1)))
    if kind == "permute":
        return tensor.permute(draw(st.permutations(range(rank))))
    if kind == "merge" and rank > 1 and tensor.is_contiguous():
        return tensor.flatten(min(axis, rank - 2), min(axis, rank - 2) + 1)
    if kind == "divide" and size % 2 == 0:
        return tensor.unflatten(axis, (size // 2, 2))
    if kind == "expand" and size == 1:
        return tensor.expand(*[3 if k == axis else -1 for k in range(rank)])
    return tensor


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_chain_of_views_is_recovered_or_refused(data) -> None:
    draw = data.draw
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    base = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    if len(shape) == 4 and draw(st.booleans()):
        base = base.contiguous(memory_format=torch.channels_last)
    expected = base
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=4)):
        expected = viewed(expected, kind, draw)
    try:
        recovered = view_as(base, layout_of(base), layout_of(expected))
    except Unsupported:
        return
    assert recovered.shape == expected.shape
    assert torch.equal(recovered, expected)
    assert recovered.untyped_storage()._cdata == base.untyped_storage()._cdata, "a view, not a copy"


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.flatten(1),
        lambda x: x.chunk(2, 1)[1],
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: x.flatten(2).transpose(1, 2),
        lambda x: x[:, :, 1:3, 2:],
        lambda x: x[0, 3][None],
        lambda x: x.reshape(2, 2, 4, 24)[:, 1].permute(2, 0, 1),
        lambda x: x[:, :1].expand(2, 5, 4, 6),
        lambda x: x[:, ::2],
        lambda x: x[:, ::3],
        lambda x: x[:, 1::3, ::3, 2::3].permute(0, 3, 1, 2),
        lambda x: x.flatten(2).transpose(1, 2).unflatten(1, (4, 6))[:, ::3, ::4],
    ],
)
def test_the_views_of_networks_are_understood(view) -> None:
    base = torch.rand(2, 8, 4, 6)
    assert torch.equal(view_as(base, layout_of(base), layout_of(view(base))), view(base))


def test_what_lies_over_itself_or_is_of_another_kind_is_refused() -> None:
    base = torch.rand(8)
    windows = base.as_strided((6, 3), (1, 1))
    with pytest.raises(Unsupported, match="strides"):
        view_as(base, layout_of(base), layout_of(windows))
    with pytest.raises(Unsupported, match="viewed as"):
        view_as(base, layout_of(base), layout_of(base.view(torch.int32)))


def test_memory_order_is_preserved() -> None:
    expected = torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    given_ = torch.rand(2, 3, 4, 5)
    assert is_dense(layout_of(expected))
    assert laid_out(given_, layout_of(expected)).stride() == expected.stride()
    assert torch.equal(laid_out(given_, layout_of(expected)), given_)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_part_of_a_divided_axis_is_recovered(channels_last) -> None:
    """As key points lie among a detector's channels: (x, y) pairs behind the box."""
    base = torch.arange(3.0 * 57 * 4 * 5).reshape(3, 57, 4, 5)
    base = base.contiguous(memory_format=torch.channels_last) if channels_last else base
    for expected in (base[:, 5:39].unflatten(1, (17, 2)), base.permute(0, 2, 3, 1)[..., 6:57].unflatten(3, (17, 3))):
        assert torch.equal(view_as(base, layout_of(base), layout_of(expected)), expected)
    beyond = layout_of(torch.zeros(3, 57, 4, 5))._replace(
        sizes=(3, 4, 5, 18, 3), strides=(1140, 5, 1, 60, 20), offset=600
    )
    with pytest.raises(Unsupported):
        view_as(torch.zeros(3, 57, 4, 5), layout_of(torch.zeros(3, 57, 4, 5)), beyond)


def test_empty_tensors_have_no_views() -> None:
    base = torch.zeros(0, 57)
    assert view_as(base, layout_of(base), layout_of(base.reshape(3, 0))).shape == (3, 0)
    with pytest.raises(Unsupported, match="beyond the end"):
        view_as(base, layout_of(base), layout_of(torch.zeros(4)))
