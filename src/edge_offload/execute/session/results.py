"""What a call returned is to the client: a new storage, a view of one that it knows, an operand, or an error."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

from edge_offload.errors import Disagreement, EdgeOffloadError
from edge_offload.execute.devices import gpu_failure
from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.calls import ALIAS, ARGUMENT, NEW, UNDEFINED, BoundOperator, Result
from edge_offload.ir.trace.keys import DTYPE_NUMBERS
from edge_offload.ir.trace.segments import CallFailed
from edge_offload.ir.trace.storage import StorageBuffer, layout_of


def classify_result(
    operator: BoundOperator,
    tensor: Optional[torch.Tensor],
    tensors: List[torch.Tensor],
    buffers: List[StorageBuffer],
    new: List[StorageBuffer],
) -> Result:
    """Classifies a result of ``operator`` for the operands ``tensors`` in the storages ``buffers``.

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
    for i, buffer in enumerate(buffers):
        if buffer.actual_storage._cdata == storage._cdata:
            return Result(ALIAS, operator.storages[i], layout, storage.nbytes())
    distinct = len(set(operator.storages))
    for i, buffer in enumerate(new):
        if buffer.storage._cdata == storage._cdata:
            return Result(ALIAS, distinct + i, layout, storage.nbytes())
    new.append(StorageBuffer(storage, tensor))
    return Result(NEW, 0, layout, storage.nbytes())


def result_of(
    operator: BoundOperator, tensor: Optional[torch.Tensor], tensors: List[torch.Tensor], buffers: List[StorageBuffer],
    new: List[StorageBuffer], lay: List[Layout],
) -> Result:  # fmt: skip
    """Classifies a result as :func:`classify_result` does; ``lay``: layouts of its operands before the call.

    Raises:
        CallFailed: such a result is not supported.
        Disagreement: the robot has no name for it.
    """
    result = classify_result(operator, tensor, tensors, buffers, new)
    if any(buffer.assumed is not None for buffer in buffers):
        named = _in_assumed_terms(result, operator, lay, buffers)
        if named is None:
            raise disagreement_error(operator, [["t", result.to_wire()]])
        return named
    if result.kind == ARGUMENT and lay[result.ref] != result.layout:
        operator.fixed = False
        buffers[operator.views[result.ref].reference].drop_views()
    return result


def disagreement_error(operator: BoundOperator, described: List[Any]) -> Disagreement:
    """Builds the error for results that are ``described`` otherwise than the robot has derived."""
    return Disagreement(
        f"{operator.name}: robot and server disagree on its result ({operator.claimed} and {described})",
        remedy="do it again: the server is asked from now on; for a new start 'edge-offload exec --shapes ask'",
    )


def _in_assumed_terms(
    result: Result, operator: BoundOperator, lay: Sequence[Layout], buffers: List[StorageBuffer]
) -> Optional[Result]:
    """A result as the robot refers to it, where operands lie otherwise than it supposes (in the layouts ``lay``).

    None: it cannot refer to it.
    """
    if result.kind not in (ALIAS, ARGUMENT):
        return result
    for number, (view, actual) in enumerate(zip(operator.views, lay)):
        if actual == result.layout and result.ref == (number if result.kind == ARGUMENT else view.storage):
            return Result(result.kind, result.ref, view.layout, buffers[view.reference].nbytes)
    return None


def assumed_layouts(claimed: List[Any], actual: List[Any]) -> Optional[List[Tuple[int, Layout, int]]]:
    """Lists the new storages that lie otherwise than the robot assumes: number, its layout and size.

    Args:
        claimed: results as it has worked them out, as they come on the wire.
        actual: results as they are, likewise.

    Returns:
        None: they differ in more than in how new storages lie, or what is claimed is no result.
    """
    try:
        return _assumed_layouts(claimed, actual)
    except (TypeError, ValueError, IndexError):
        return None


def _assumed_layouts(claimed: List[Any], actual: List[Any]) -> Optional[List[Tuple[int, Layout, int]]]:
    if [kind for kind, _ in claimed] != [kind for kind, _ in actual]:
        return None
    pairs: List[Tuple[List[Any], List[Any]]] = []
    for (kind, ours), (_, theirs) in zip(claimed, actual):
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
    """Builds the error that the session raises where ``operator`` raised ``error``.

    Returns:
        DeviceLost: the GPU failed, and this process cannot use it any more.
        OutOfMemory: a library of the GPU has not enough memory.
        CallFailed: it is the program's, of the class that eager execution raises.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):  # its text is torch's, which programs look into
        return CallFailed(operator, error)
    return gpu_failure(error, operator) or CallFailed(operator, error)
