"""The bytes that describe one call, read on the server (``native/keys.h`` has the format and writes it).

Nothing here executes anything: a key becomes an argument list with holes for the operands, within bounds.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from typing import Any, List, NamedTuple, Tuple

import torch

from edge_offload.errors import ProtocolError

MAX_KEY_BYTES = 1 << 20
MAX_DIMS = 64
MAX_DEPTH = 4

#: torch's numbering of dtypes (c10::ScalarType), which keys use. Quantised types are not handled.
DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
_NEWER = {
    23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
    27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
DTYPES.update({number: getattr(torch, name) for number, name in _NEWER.items() if hasattr(torch, name)})
DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class Layout(NamedTuple):
    """How a device tensor lies in its storage. ``flags``: 1 conjugate, 2 negated; offset and strides in elements."""

    dtype: int
    flags: int
    sizes: Tuple[int, ...]
    strides: Tuple[int, ...]
    offset: int


class Operand(NamedTuple):
    """A hole in the argument list: the ``number``-th operand of ``kind`` T (tensor), P (host tensor) or W (number)."""

    kind: str
    number: int


class DeviceMarker(NamedTuple):
    """Stands for the device on which the server computes."""


class GeneratorMarker(NamedTuple):
    """Stands for a random generator of the session."""

    number: int


class HostSpec(NamedTuple):
    """A host tensor that travels with the call."""

    dtype: torch.dtype
    sizes: Tuple[int, ...]


class NumberSpec(NamedTuple):
    """A host number that travels with the call: kind d, i or b; a wrapped one is a Python number."""

    kind: str
    dtype: torch.dtype
    wrapped: bool


@dataclass
class ParsedKey:
    """A key as structure.

    Attributes:
        arguments: one per argument of the schema; operands are :class:`Operand` holes, also inside lists.
        tensors: layout of each T operand.
        storages: for each reference (T operands and S items, in order) the number of its storage within the call.
        tensor_references: for each T operand, its position among the references.
        strange: dtype numbers that are not in :data:`DTYPES`; such a call is read but never run.
        hosts, numbers: specification of each P and W operand.
    """

    arguments: List[Any] = field(default_factory=list)
    tensors: List[Layout] = field(default_factory=list)
    storages: List[int] = field(default_factory=list)
    tensor_references: List[int] = field(default_factory=list)
    strange: List[int] = field(default_factory=list)
    hosts: List[HostSpec] = field(default_factory=list)
    numbers: List[NumberSpec] = field(default_factory=list)


def parse_key(data: bytes) -> ParsedKey:
    """Read a key.

    Raises:
        ProtocolError: it is malformed or exceeds a bound.
    """
    if len(data) > MAX_KEY_BYTES:
        raise ProtocolError(f"a call of {len(data)} bytes exceeds the limit of {MAX_KEY_BYTES}")
    reader = _Reader(data)
    try:
        while reader.position < len(data):
            reader.parsed.arguments.append(reader.item(0))
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise ProtocolError(f"malformed call: {error}") from None
    return reader.parsed


@functools.lru_cache(maxsize=256)
def _plan(form: str) -> struct.Struct:
    return struct.Struct("<" + form)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.parsed = ParsedKey()

    def take(self, form: str) -> Tuple[Any, ...]:
        plan = _plan(form)
        values = plan.unpack_from(self.data, self.position)
        self.position += plan.size
        return values

    def integers(self, count: int) -> Tuple[int, ...]:
        if count < 0 or count * 8 > len(self.data) - self.position:
            raise ProtocolError("malformed call: a list is longer than the message")
        return self.take(f"{count}q")

    def dims(self, count: int) -> Tuple[int, ...]:
        if count > MAX_DIMS:
            raise ProtocolError(f"malformed call: {count} dimensions")
        values = self.integers(count)
        if any(value < 0 for value in values):
            raise ProtocolError("malformed call: a negative size or stride")
        return values

    def item(self, depth: int) -> Any:
        (tag,) = self.take("c")
        kind = tag.decode("ascii")
        if kind in "UN":
            return None
        if kind == "T":
            return self.tensor()
        if kind == "S":
            (number,) = self.take("B")
            self.parsed.storages.append(number)
            return Operand("S", len(self.parsed.storages) - 1)
        if kind == "P":
            dtype, dims = self.take("BB")
            self.parsed.hosts.append(HostSpec(self.dtype(dtype), self.dims(dims)))
            return Operand("P", len(self.parsed.hosts) - 1)
        if kind == "W":
            number_kind, dtype, wrapped = self.take("cBB")
            self.parsed.numbers.append(NumberSpec(number_kind.decode("ascii"), self.dtype(dtype), bool(wrapped)))
            return Operand("W", len(self.parsed.numbers) - 1)
        if kind == "I":
            return self.take("q")[0]
        if kind == "F":
            return self.take("d")[0]
        if kind == "B":
            return bool(self.take("B")[0])
        if kind == "Z":
            return complex(*self.take("dd"))
        if kind == "Y":
            return DeviceMarker()
        if kind == "G":
            return GeneratorMarker(self.take("q")[0])
        if kind == "X":
            (size,) = self.take("I")
            if size > len(self.data) - self.position:
                raise ProtocolError("malformed call: a string is longer than the message")
            text = self.data[self.position : self.position + size].decode("utf-8")
            self.position += size
            return text
        if kind == "V":
            return list(self.integers(self.take("I")[0]))
        if kind == "L":
            (count,) = self.take("I")
            if depth >= MAX_DEPTH or count > len(self.data) - self.position:
                raise ProtocolError("malformed call: a list is too deep or longer than the message")
            return [self.item(depth + 1) for _ in range(count)]
        raise ProtocolError(f"malformed call: unknown item {kind!r}")

    def dtype(self, number: int) -> torch.dtype:
        if number not in DTYPES:
            self.parsed.strange.append(number)
        return DTYPES.get(number, torch.uint8)

    def tensor(self) -> Operand:
        dtype, flags, dims = self.take("BBB")
        self.dtype(dtype)
        sizes, strides = self.dims(dims), self.dims(dims)
        offset, _storage_bytes, storage = self.take("qqB")
        if offset < 0 or flags > 3:
            raise ProtocolError("malformed call: a tensor with a negative offset or flags that are none")
        self.parsed.tensors.append(Layout(dtype, flags, sizes, strides, offset))
        self.parsed.tensor_references.append(len(self.parsed.storages))
        self.parsed.storages.append(storage)
        return Operand("T", len(self.parsed.tensors) - 1)


def integer_offsets(key: bytes) -> Tuple[Tuple[int, ...], int]:
    """Where the integers of a key are that sizes go into (``native/keys.h``), and how many storages it refers to."""
    offsets, references, _ = _look_through(key)
    return offsets, references


def tensor_operands(key: bytes) -> List[Tuple[int, int, int]]:
    """Where each device tensor of a key is described.

    Which of those integers is its first, how many dimensions it has, and which of those storages it looks into.
    """
    return _look_through(key)[2]


def _look_through(key: bytes) -> Tuple[Tuple[int, ...], int, List[Tuple[int, int, int]]]:
    offsets: List[int] = []
    tensors: List[Tuple[int, int, int]] = []
    references = position = 0
    while position < len(key):  # the items of a list follow each other as arguments do
        tag = key[position : position + 1]
        position += 1
        if tag == b"T":
            count = 2 * key[position + 2] + 2
            tensors.append((len(offsets), key[position + 2], references))
            offsets += range(position + 3, position + 3 + 8 * count, 8)
            position += 3 + 8 * count + 1
            references += 1
        elif tag == b"S":
            position += 1
            references += 1
        elif tag == b"P":
            count = key[position + 1]
            offsets += range(position + 2, position + 2 + 8 * count, 8)
            position += 2 + 8 * count
        elif tag == b"I":
            offsets.append(position)
            position += 8
        elif tag == b"V":
            (count,) = struct.unpack_from("<I", key, position)
            offsets += range(position + 4, position + 4 + 8 * count, 8)
            position += 4 + 8 * count
        elif tag == b"X":
            position += 4 + struct.unpack_from("<I", key, position)[0]
        else:
            position += {b"W": 3, b"F": 8, b"G": 8, b"B": 1, b"Z": 16, b"L": 4}.get(tag, 0)
    return tuple(offsets), references, tensors


def integers_of(key: bytes) -> Tuple[int, ...]:
    """Those integers."""
    return tuple([struct.unpack_from("<q", key, offset)[0] for offset in integer_offsets(key)[0]])
