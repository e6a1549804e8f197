"""What tells two calls apart: quickly, to find one that was seen before, and as the key that the server reads."""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from edge_offload.capture.fallback.device import Slot, host_item
from edge_offload.capture.fallback.metadata import Metadata
from edge_offload.capture.fallback.operators import Operator, plain_item
from edge_offload.capture.fallback.tensor import RemoteTensor
from edge_offload.capture.keys import DTYPE_NUMBERS

_WRAPPED = {bool: torch.bool, int: torch.int64, float: torch.float64}


def scan(
    values: Sequence[Any], tensor_at: Sequence[bool], key: List[Any], tensors: List[RemoteTensor], hosts: List[Any]
) -> None:
    """Put what tells two calls apart into ``key``, operands into ``tensors``, host numbers (as bytes) and
    arrays into ``hosts``."""
    for value, tensor in zip(values, tensor_at):
        kind = type(value)
        if kind is RemoteTensor:
            key.append(value._layout)
            tensors.append(value)
        elif value is None or kind is str:
            key.append(value)
        elif kind is int or kind is bool:
            key.append(kind)
            if tensor:
                hosts.append(_pack_number(value))
            else:
                key.append(value)
        elif kind is float:
            key.append(kind)
            if tensor:
                hosts.append(_pack_number(value))
            else:
                key.append(value.hex())
        elif kind is list or kind is tuple:
            key.append(len(value))
            scan(value, _MANY if len(value) <= 64 else (False,) * len(value), key, tensors, hosts)
        elif isinstance(value, RemoteTensor):
            key.append(value._layout)
            tensors.append(value)
        elif isinstance(value, torch.Tensor):
            number = host_number(value)
            key.append(("W", value.dtype) if number is not None else (host_item(value), id(value)))
            hosts.append(value if number is None else number)
        elif isinstance(value, torch.Generator):
            key.append(("G", generator_number(value)))
        else:
            key.append((kind, value) if kind is not complex else (kind, repr(value)))


_MANY = (False,) * 64
#: Numbers of the device's generators, by the address of torch's object: it comes back as another Python object.
generators: Dict[int, int] = {}


def generator_number(generator: torch.Generator) -> int:
    """The number of a generator of the device.

    Raises:
        RuntimeError: it is one of the host.
    """
    number = generators.get(generator._cdata)  # type: ignore[attr-defined]
    if number is None:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    return number


def _pack_number(value: Any) -> bytes:
    kind = type(value)
    return struct.pack("<d8x" if kind is float else "<?15x" if kind is bool else "<q8x", value)


def host_number(tensor: torch.Tensor) -> Optional[bytes]:
    """The bytes of a host tensor that is one number; None for arrays."""
    if tensor.dim() or tensor.dtype.is_complex or tensor.device.type != "cpu":
        return None
    value = tensor.item()
    return _pack_number(float(value) if tensor.dtype.is_floating_point else value)


def number_item(dtype: torch.dtype, wrapped: bool) -> bytes:
    """The W item of a host number."""
    kind = b"b" if dtype == torch.bool else b"d" if dtype.is_floating_point else b"i"
    return b"W" + kind + struct.pack("<BB", DTYPE_NUMBERS[dtype], wrapped)


def tensor_item(metadata: Metadata, storage: int) -> bytes:
    """The T item of a device tensor; ``storage`` is the number of its storage within the call."""
    m = metadata
    dims = len(m.sizes)
    form = f"<BBB{dims}q{dims}qqqB"
    return b"T" + struct.pack(form, m.dtype, 0, dims, *m.sizes, *m.strides, m.offset, m.nbytes, storage)


def key_of(
    operator: Operator, values: Sequence[Any], slots: Sequence[Slot], metadata_of: Callable[[Any], Metadata]
) -> bytes:
    """The key of a call (``native/keys.h``).

    Args:
        operator: the overload.
        values: every argument.
        slots: of its device tensors, in order.
        metadata_of: of a device tensor.

    Raises:
        NotImplementedError: an argument cannot be sent.
    """
    distinct = {id(slot): number for number, slot in enumerate(dict.fromkeys(slots))}

    def item(value: Any, tensor: bool, integers: bool) -> bytes:
        if isinstance(value, RemoteTensor):
            return tensor_item(metadata_of(value), distinct[id(value._slot)])
        if isinstance(value, torch.Tensor):
            number = host_number(value)
            return host_item(value) if number is None else number_item(value.dtype, False)
        if tensor and isinstance(value, (bool, int, float)):
            return number_item(_WRAPPED[type(value)], True)
        if isinstance(value, (list, tuple)):
            if integers:
                return b"V" + struct.pack(f"<I{len(value)}q", len(value), *value)
            return b"L" + struct.pack("<I", len(value)) + b"".join(item(each, False, False) for each in value)
        if isinstance(value, torch.Generator):
            return b"G" + struct.pack("<q", generator_number(value))
        found = plain_item(value)
        if found is None:
            raise NotImplementedError(f"operator {operator.name!r}: {value!r} cannot be sent to the server")
        return found

    return b"".join(
        item(value, tensor, "List[int]" in str(argument.type))
        for value, tensor, argument in zip(values, operator.tensors, operator.arguments)
    )
