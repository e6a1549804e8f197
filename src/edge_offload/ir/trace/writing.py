"""The bytes that describe a call of this process's dispatcher; :mod:`~edge_offload.ir.trace.keys` reads them."""

from __future__ import annotations

import struct
from typing import Any, List, Mapping, NamedTuple, Sequence, Tuple

import torch

from edge_offload.errors import Unsupported
from edge_offload.ir.trace.keys import DTYPE_NUMBERS
from edge_offload.ir.trace.storage import layout_of

#: torch's numbering of memory formats (c10::MemoryFormat).
_MEMORY_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3,
}  # fmt: skip


class WrittenCall(NamedTuple):
    """A call as bytes.

    Attributes:
        name: as the dispatcher has it.
        key: its arguments, those of the schema one by one.
        operands: its tensors, in order.
        numbers: 16 bytes for each Python number in the place of a tensor.
    """

    name: str
    key: bytes
    operands: Tuple[torch.Tensor, ...]
    numbers: bytes


def write_call(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> WrittenCall:
    """Writes a call of ``overload``, with defaults in place of arguments that are not given.

    Raises:
        Unsupported: an argument is none that a key can hold.
    """
    schema = overload._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)
    writer = _KeyWriter(name)
    for position, argument in enumerate(schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
        writer.write_item(given, str(argument.type))
    return WrittenCall(name, bytes(writer.key), tuple(writer.operands), bytes(writer.numbers))


class _KeyWriter:
    def __init__(self, name: str) -> None:
        self.name = name
        self.key = bytearray()
        self.operands: List[torch.Tensor] = []
        self.numbers = bytearray()
        self._storages: List[int] = []

    def write_item(self, value: Any, kind: str) -> None:
        """Writes an argument whose type in the schema is ``kind``."""
        if isinstance(value, torch.Tensor):
            self._write_tensor(value)
        elif value is None:
            self.key += b"U" if "Tensor" in kind else b"N"
        elif isinstance(value, (list, tuple)):
            self._write_list(value, kind)
        elif isinstance(value, (bool, int, float)):
            self._write_number(value, kind)
        elif isinstance(value, complex):
            self.key += struct.pack("<cdd", b"Z", value.real, value.imag)
        elif isinstance(value, str):
            text = value.encode()
            self.key += struct.pack("<cI", b"X", len(text)) + text
        elif isinstance(value, torch.dtype) and value in DTYPE_NUMBERS:
            self.key += struct.pack("<cq", b"I", DTYPE_NUMBERS[value])
        elif isinstance(value, torch.layout) and value is torch.strided:
            self.key += struct.pack("<cq", b"I", 0)
        elif isinstance(value, torch.memory_format):
            self.key += struct.pack("<cq", b"I", _MEMORY_FORMATS[value])
        elif isinstance(value, torch.device):
            self.key += b"Y"
        else:
            raise Unsupported(f"{self.name} takes a {type(value).__name__}, which no recorded call has")

    def _write_list(self, values: Sequence[Any], kind: str) -> None:
        if values and all(type(value) is int for value in values):
            self.key += struct.pack(f"<cI{len(values)}q", b"V", len(values), *values)
            return
        self.key += struct.pack("<cI", b"L", len(values))
        for value in values:
            self.write_item(value, kind)

    def _write_number(self, value: float, kind: str) -> None:
        if kind in ("Tensor", "Optional[Tensor]"):
            form, letter, dtype = {bool: ("?7x", b"b", torch.bool), int: ("q", b"i", torch.int64)}.get(
                type(value), ("d", b"d", torch.float64)
            )
            self.key += struct.pack("<ccBB", b"W", letter, DTYPE_NUMBERS[dtype], 1)
            self.numbers += struct.pack(f"<{form}8x", value)
        elif isinstance(value, bool):
            self.key += struct.pack("<cB", b"B", value)
        elif isinstance(value, int) and kind not in ("float", "Optional[float]"):
            self.key += struct.pack("<cq", b"I", value)
        else:
            self.key += struct.pack("<cd", b"F", value)

    def _write_tensor(self, tensor: torch.Tensor) -> None:
        layout, storage = layout_of(tensor), tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages.append(storage._cdata)
        number = self._storages.index(storage._cdata)
        dims = len(layout.sizes)
        if number > 255 or min((*layout.strides, 0)) < 0:
            raise Unsupported(f"{self.name} takes more tensors, or others, than a recorded call can")
        integers = (*layout.sizes, *layout.strides, layout.offset, storage.nbytes())
        self.key += struct.pack(f"<cBBB{2 * dims + 2}qB", b"T", layout.dtype, layout.flags, dims, *integers, number)
        self.operands.append(tensor)
