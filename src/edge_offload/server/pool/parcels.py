"""Tensors on their way between members: bytes, with the order in which the dimensions lie in memory."""

from __future__ import annotations

import warnings
from typing import Tuple, Union

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.execute.module import ALIGNMENT
from edge_offload.execute.tensors import TensorSpec

#: A tensor on its way: dtype, shape and order of its dimensions in memory, and its bytes.
Parcel = Tuple[str, Tuple[int, ...], Tuple[int, ...], Array]


def pack_tensor(tensor: torch.Tensor) -> Parcel:
    """Return a tensor of any device as bytes, with the order in which its dimensions lie in memory.

    On the CPU it is copied only where there are gaps; from a GPU it is fetched once it is computed.
    """
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))
    dense = tensor.detach().permute(order).contiguous().cpu()
    raw = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
    return TensorSpec.of(tensor).dtype, tuple(tensor.shape), order, raw


def unpack_tensor(parcel: Parcel, device: Union[str, torch.device] = "cpu") -> torch.Tensor:
    """Return the tensor of :func:`pack_tensor` on a device, in memory as it was.

    On the CPU the bytes are shared, and not to be written.

    Raises:
        BadInput: its bytes are not those of its shape.
    """
    dtype, shape, order, raw = parcel
    spec = TensorSpec(dtype, tuple(shape))
    if raw.dtype != np.uint8 or raw.size != spec.nbytes or sorted(order) != list(range(len(shape))):
        raise BadInput(f"{raw.size} bytes for {spec}", remedy="all members have one release of edge_offload")
    if raw.size == 0:
        return spec.zeros().to(device)
    if raw.ctypes.data % ALIGNMENT:
        flat = torch.empty(raw.size, dtype=torch.uint8)
        flat.numpy()[:] = raw
    else:
        with warnings.catch_warnings():  # nothing writes: sequences are functional
            warnings.simplefilter("ignore")
            flat = torch.from_numpy(raw)
    inverse = [order.index(dim) for dim in range(len(shape))]
    return flat.to(device).view(spec.torch_dtype).reshape([shape[dim] for dim in order]).permute(inverse)
