"""How device tensors look: layouts, and the metadata of a call's results from torch's meta kernels."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch

from edge_offload.capture.entries import ALIAS, ARGUMENT, NEW, UNDEFINED
from edge_offload.capture.keys import DTYPE_NUMBERS, DTYPES


class Metadata(NamedTuple):
    """A tensor's place in its storage; offset and strides in elements, ``nbytes`` of the storage."""

    dtype: int
    sizes: Tuple[int, ...]
    strides: Tuple[int, ...]
    offset: int
    nbytes: int

    @staticmethod
    def of(meta: torch.Tensor) -> Metadata:
        """That of a tensor on the meta device."""
        nbytes = meta.untyped_storage().nbytes()
        offset = int(meta.storage_offset())
        return Metadata(DTYPE_NUMBERS[meta.dtype], tuple(meta.shape), tuple(meta.stride()), offset, nbytes)

    @staticmethod
    def from_wire(item: Sequence[Any]) -> Metadata:
        """That of a result (:meth:`edge_offload.capture.entries.Result.to_wire`)."""
        _, _, dtype, _, sizes, strides, offset, nbytes = item
        return Metadata(dtype, tuple(sizes), tuple(strides), offset, nbytes)


def meta_results(operator: Any, values: Sequence[Any], metadata_of: Callable[[Any], Metadata]) -> List[Any]:
    """What a call returns, as the server would describe it; raises what eager execution would raise.

    Args:
        operator: an :class:`~edge_offload.capture.fallback.operators.Operator`.
        values: every argument.
        metadata_of: of a device tensor.
    """
    storages: List[torch.UntypedStorage] = []
    numbers: Dict[int, int] = {}
    operands: List[torch.Tensor] = []

    def convert(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [convert(each) for each in value]
        if isinstance(value, torch.device):
            return torch.device("meta")
        if isinstance(value, torch.Generator):
            return None
        slot = getattr(value, "_slot", None)
        if slot is None:
            return value
        metadata = metadata_of(value)
        if id(slot) not in numbers:
            numbers[id(slot)] = len(storages)
            storages.append(torch.empty(metadata.nbytes, dtype=torch.uint8, device="meta").untyped_storage())
        made = torch.empty(0, dtype=DTYPES[metadata.dtype], device="meta")
        made.set_(storages[numbers[id(slot)]], metadata.offset, metadata.sizes, metadata.strides)
        operands.append(made)
        return made

    def describe(tensor: Any) -> List[Any]:
        if tensor is None:
            return [UNDEFINED]
        storage = tensor.untyped_storage()
        number = next((i for i, known in enumerate(storages) if known._cdata == storage._cdata), None)
        kind, ref = (NEW, 0) if number is None else (ALIAS, number)
        if number is None:
            storages.append(storage)
        for index, operand in enumerate(operands):
            if operand is tensor:
                kind, ref = ARGUMENT, index
        flags = (1 if tensor.is_conj() else 0) | (2 if tensor.is_neg() else 0)
        m = Metadata.of(tensor)
        return [kind, ref, m.dtype, flags, list(m.sizes), list(m.strides), m.offset, m.nbytes]

    positional, named = operator.split([convert(value) for value in values])
    with torch.no_grad():
        returned = operator.func(*positional, **named)
    described: List[Any] = []
    for value in returned if isinstance(returned, tuple) else (returned,):
        if isinstance(value, list):
            described.append(["l", [describe(each) for each in value]])
        else:
            described.append(["t", describe(value)])
    return described
