"""A tensor's memory as bytes."""

from __future__ import annotations

import torch


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The values of ``tensor`` in row-major order as one row of bytes on the CPU; a copy only where one is needed.

    A tensor of one value counts as contiguous whatever its strides are, and ``view`` minds them all the same
    (``torch.zeros(1).expand(1)`` has stride 0): the row gets strides of its own.

    Returns:
        uint8, shape ``[nbytes]``; not conjugated nor negated lazily, without gradient.
    """
    dense = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
