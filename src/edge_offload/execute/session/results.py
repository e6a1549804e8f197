"""What a call returned is to the client: a new storage, a view of one that it knows, an operand, or an error."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

from edge_offload.errors import Disagreement, EdgeOffloadError
from edge_offload.execute.devices import failure
from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.calls import ALIAS, ARGUMENT, NEW, UNDEFINED, BoundOperator, Result
from edge_offload.ir.trace.keys import DTYPE_NUMBERS
from edge_offload.ir.trace.segments import CallFailed
from edge_offload.ir.trace.storage import StorageBuffer, layout_of


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
        if slot.present._cdata == storage._cdata:
            return Result(ALIAS, operator.storages[i], layout, storage.nbytes())
    distinct = len(set(operator.storages))
    for i, slot in enumerate(new):
        if slot.storage._cdata == storage._cdata:
            return Result(ALIAS, distinct + i, layout, storage.nbytes())
    new.append(StorageBuffer(storage, tensor))
    return Result(NEW, 0, layout, storage.nbytes())


def result_of(
    operator: BoundOperator, tensor: Optional[torch.Tensor], tensors: List[torch.Tensor], slots: List[StorageBuffer],
    new: List[StorageBuffer], lay: List[Layout],
) -> Result:  # fmt: skip
    """What a call returned, as :func:`classify` has it; ``lay``: how its operands lay before.

    Raises:
        CallFailed: such a result is not supported.
        Disagreement: the robot has no name for it.
    """
    found = classify(operator, tensor, tensors, slots, new)
    if any(slot.supposed is not None for slot in slots):
        named = _in_supposed_terms(found, operator, lay, slots)
        if named is None:
            raise disagreement(operator, [["t", found.to_wire()]])
        return named
    if found.kind == ARGUMENT and lay[found.ref] != found.layout:
        operator.fixed = False
        slots[operator.views[found.ref].reference].forget_views()
    return found


def disagreement(operator: BoundOperator, described: List[Any]) -> Disagreement:
    """The error of a robot that has worked results out which are ``described`` otherwise."""
    return Disagreement(
        f"{operator.name}: robot and server disagree on its result ({operator.claimed} and {described})",
        remedy="do it again: the server is asked from now on; for a new start 'edge-offload exec --shapes ask'",
    )


def _in_supposed_terms(
    found: Result, operator: BoundOperator, lay: Sequence[Layout], slots: List[StorageBuffer]
) -> Optional[Result]:
    """A result as the robot refers to it, where operands lie otherwise than it supposes (in the layouts ``lay``).

    None: it cannot refer to it.
    """
    if found.kind not in (ALIAS, ARGUMENT):
        return found
    for number, (view, own) in enumerate(zip(operator.views, lay)):
        if own == found.layout and found.ref == (number if found.kind == ARGUMENT else view.storage):
            return Result(found.kind, found.ref, view.layout, slots[view.reference].nbytes)
    return None


def supposed_layouts(claimed: List[Any], found: List[Any]) -> Optional[List[Tuple[int, Layout, int]]]:
    """Of the new storages that lie otherwise than the robot has worked out: number, its layout and size.

    Args:
        claimed: results as it has worked them out, as they come on the wire.
        found: results as they are, likewise.

    Returns:
        None: they differ in more than in how new storages lie, or what is claimed is no result.
    """
    try:
        return _supposed_layouts(claimed, found)
    except (TypeError, ValueError, IndexError):
        return None


def _supposed_layouts(claimed: List[Any], found: List[Any]) -> Optional[List[Tuple[int, Layout, int]]]:
    if [kind for kind, _ in claimed] != [kind for kind, _ in found]:
        return None
    pairs: List[Tuple[List[Any], List[Any]]] = []
    for (kind, ours), (_, theirs) in zip(claimed, found):
        if kind == "v" or (kind == "l" and len(ours) != len(theirs)):
            return None
        pairs += [(ours, theirs)] if kind == "t" else list(zip(ours, theirs))
    layouts: List[Tuple[int, Layout, int]] = []
    new = 0
    for ours, theirs in pairs:
        if ours != theirs:
            if not ours[0] == theirs[0] == NEW or ours[1:5] != theirs[1:5] or ours[3]:
                return None
            _, _, dtype, flags, sizes, strides, offset, nbytes = ours
            if not all(type(number) is int for number in (*strides, offset, nbytes)):
                return None
            layouts.append((new, Layout(dtype, flags, tuple(sizes), tuple(strides), offset), nbytes))
        new += theirs[0] == NEW
    return None if layouts and any(theirs[0] == ALIAS for _, theirs in pairs) else layouts


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
