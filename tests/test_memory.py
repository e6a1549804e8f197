"""Bytes of tensors of any strides."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_offload.memory import flat_bytes

DTYPES = (torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.complex64)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=4),
    st.integers(0, 5),
)
def test_values_in_row_major_order_whatever_the_strides(dtype, axes, offset):
    sizes, strides = [size for size, _ in axes], [stride for _, stride in axes]
    room = 1 + offset + sum(max(size - 1, 0) * stride for size, stride in axes)
    tensor = torch.arange(room).to(dtype).as_strided(sizes, strides, offset)
    expected = torch.tensor(tensor.tolist(), dtype=dtype).reshape(-1)
    got = flat_bytes(tensor)
    assert (got.dtype, got.dim()) == (torch.uint8, 1)
    assert got.view(dtype).tolist() == expected.tolist()


def test_lazy_conjugation_and_negation_are_done():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert flat_bytes(z.conj()).equal(flat_bytes(torch.tensor([1 - 2j, 3 + 4j])))
    assert flat_bytes(z.conj().imag).equal(flat_bytes(torch.tensor([-2.0, 4.0])))


def test_no_copy_of_what_is_dense():
    x = torch.arange(6.0).requires_grad_()
    assert flat_bytes(x).data_ptr() == x.data_ptr()
