"""What the package uses of torch that older releases lack or do otherwise: imported by those who use it.

Interfaces of C++ that changed are in ``native/cpp/torch_versions.h``.
"""

from __future__ import annotations

import warnings

import torch

RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
"""Major and minor number of this torch."""
CAPTURES_BESIDE_THREADS = RELEASE >= (2, 1)
"""Whether other threads may use a GPU while a CUDA graph is captured."""

if not hasattr(torch.Tensor, "nbytes"):
    torch.Tensor.nbytes = property(lambda tensor: tensor.numel() * tensor.element_size())  # type: ignore[assignment]


def item_bytes(dtype: torch.dtype) -> int:
    """Bytes of an element."""
    if hasattr(dtype, "itemsize"):
        return int(dtype.itemsize)
    with warnings.catch_warnings():  # complex numbers of 16 bits are experimental
        warnings.simplefilter("ignore")
        return torch.empty(0, dtype=dtype).element_size()
