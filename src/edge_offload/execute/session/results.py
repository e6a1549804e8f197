"""What a call returned is to the client: a new storage, a view of one that it knows, an operand, or an error."""

from __future__ import annotations

from typing import List, Optional

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.devices import failure
from edge_offload.ir.trace.calls import ALIAS, ARGUMENT, NEW, UNDEFINED, BoundOperator, Result, StorageBuffer, layout_of
from edge_offload.ir.trace.keys import DTYPE_NUMBERS
from edge_offload.ir.trace.segments import CallFailed


def classify(
    operator: BoundOperator,
    tensor: Optional[torch.Tensor],
    tensors: List[torch.Tensor],
    slots: List[StorageBuffer],
    new: List[StorageBuffer],
) -> Result:
    """What ``tensor`` is, which ``operator`` returned for the operands ``tensors`` in the storages ``slots``.

    A storage that is new is added to ``new``, which has those of its earlier results.

    Raises:
        CallFailed: such a result is not supported.
    """
    if tensor is None:
        return Result(UNDEFINED)
    if (
        tensor.layout != torch.strided
        or tensor.is_nested
        or tensor.dtype not in DTYPE_NUMBERS
        or tensor.device.type != operator.device.type
    ):  # fmt: skip
        what = f"a {tensor.dtype} {tensor.layout} result of {operator.name} is not supported on the device"
        raise CallFailed(operator.name, NotImplementedError(f"{what} (edge_offload)"))
    storage = tensor.untyped_storage()
    layout = layout_of(tensor)
    for i, operand in enumerate(tensors):
        if operand is tensor:
            return Result(ARGUMENT, i, layout, storage.nbytes())
    for i, slot in enumerate(slots):
        if slot.storage._cdata == storage._cdata:
            return Result(ALIAS, operator.storages[i], layout, storage.nbytes())
    distinct = len(set(operator.storages))
    for i, slot in enumerate(new):
        if slot.storage._cdata == storage._cdata:
            return Result(ALIAS, distinct + i, layout, storage.nbytes())
    new.append(StorageBuffer(storage, tensor))
    return Result(NEW, 0, layout, storage.nbytes())


def failed_call(operator: str, error: Exception) -> EdgeOffloadError:
    """What the session raises where ``operator`` raised ``error``.

    Returns:
        DeviceLost: the GPU failed, and this process cannot use it any more.
        OutOfMemory: a library of the GPU has not enough memory.
        CallFailed: it is the program's, of the class that eager execution raises.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):  # its text is torch's, which programs look into
        return CallFailed(operator, error)
    return failure(error, operator) or CallFailed(operator, error)
