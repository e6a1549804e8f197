"""What the package uses of torch's tensors that torch up to 2.0 lacks: imported by those who use it.

Interfaces of C++ that changed are in ``native/cpp/torch_versions.h``.
"""

from __future__ import annotations

import warnings

import torch

if not hasattr(torch.Tensor, "nbytes"):
    torch.Tensor.nbytes = property(lambda tensor: tensor.numel() * tensor.element_size())  # type: ignore[assignment]


def item_bytes(dtype: torch.dtype) -> int:
    """Bytes of an element."""
    if hasattr(dtype, "itemsize"):
        return int(dtype.itemsize)
    with warnings.catch_warnings():  # complex numbers of 16 bits are experimental
        warnings.simplefilter("ignore")
        return torch.empty(0, dtype=dtype).element_size()
