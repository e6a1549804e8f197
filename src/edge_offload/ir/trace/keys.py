"""The bytes that describe calls and segments, decoded (``native/cpp/keys.h`` and ``segment.h`` have the formats).

Nothing here executes anything: a key becomes an :class:`~edge_offload.ir.operators.Operator`, within bounds, and the
codes of a segment become its calls with the numbers of the storages that they refer to.
"""

from __future__ import annotations

import functools
import itertools
import struct
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Protocol, Sequence, Tuple, TypeVar

import torch

from edge_offload.errors import ProtocolError
from edge_offload.ir.operators import (
    OFFSET,
    SIZE,
    STRIDE,
    Arg,
    Hole,
    HostNumber,
    HostTensor,
    Layout,
    Operand,
    Operator,
    StorageRef,
    Symbol,
    Varying,
    View,
)
from edge_offload.older_torch import item_bytes

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
ITEM_BYTES = {dtype: item_bytes(dtype) for dtype in DTYPE_NUMBERS}


_NOTHING_VARIES: Mapping[int, int] = {}


class DecodedKey(NamedTuple):
    """A decoded key.

    Attributes:
        operator: the call.
        offsets: of the integers that sizes go into, in bytes.
        operands: leaves of the call that stand for tensors, storages and parameters, in order.
    """

    operator: Operator
    offsets: Tuple[int, ...]
    operands: Tuple[Operand, ...]


def decode_key(name: str, key: bytes, varying: Mapping[int, int] = _NOTHING_VARIES) -> DecodedKey:
    """Decodes the call that ``key`` describes.

    Args:
        name: as the dispatcher has it.
        key: its arguments.
        varying: offset of an integer -> the value that goes there: it becomes a leaf that says so.

    Raises:
        ProtocolError: the key is malformed or exceeds a bound.
    """
    if len(key) > MAX_KEY_BYTES:
        raise ProtocolError(f"a call of {len(key)} bytes exceeds the limit of {MAX_KEY_BYTES}")
    decoder = _Decoder(key, varying)
    arguments: List[Arg] = []
    try:
        while decoder.position < len(key):
            arguments.append(decoder.read_item(0))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"malformed call: {error}") from None
    return DecodedKey(Operator(name, tuple(arguments)), tuple(decoder.offsets), tuple(decoder.operands))


class KeyTemplate:
    """Makes the keys of calls that differ in the integers at ``offsets`` (ascending) from ``key`` alone."""

    def __init__(self, key: bytes, offsets: Sequence[int]) -> None:
        ends = [0, *(offset + 8 for offset in offsets)]
        between = [key[end:offset] for end, offset in zip(ends, [*offsets, len(key)])]
        self._struct = struct.Struct("<" + "q".join(f"{len(part)}s" for part in between))
        self._between, self._rest = between[:-1], between[-1]

    def fill_integers(self, integers: Sequence[int]) -> bytes:
        """The key with these integers."""
        return self._struct.pack(*itertools.chain.from_iterable(zip(self._between, integers)), self._rest)


def integers_of(key: bytes, offsets: Tuple[int, ...]) -> Tuple[int, ...]:
    """The integers at ``offsets`` of a key."""
    return tuple([_INTEGER(key, offset)[0] for offset in offsets])


def first_integers(operator: Operator) -> List[Tuple[int, View]]:
    """Pairs each device tensor of a recorded call with the position of its first integer among those of the key."""
    positions: List[Tuple[int, View]] = []
    position = 0
    for leaf in operator.leaves():
        if isinstance(leaf, View):
            positions.append((position, leaf))
            position += 2 * len(leaf.layout.sizes) + 2
        elif isinstance(leaf, HostTensor):
            position += len(leaf.sizes)
        elif type(leaf) is int:
            position += 1
    return positions


class Refers(Protocol):
    """Call of a segment, as far as its codes go."""

    @property
    def references(self) -> int:
        """Number of the storages that it refers to."""


C = TypeVar("C", bound=Refers)


def calls_in(codes: Sequence[int], call: Callable[[int], C]) -> Iterator[Tuple[C, Tuple[int, ...]]]:
    """The calls of a segment, each with its storages by canonical number.

    Args:
        codes: per call its number, then those of its storages.
        call: the one of a number.

    Raises:
        ProtocolError: the words end inside a call.
    """
    position = 0
    while position < len(codes):
        current = call(codes[position])
        stop = position + 1 + current.references
        if stop > len(codes):
            raise ProtocolError("a segment ends inside a call")
        yield current, tuple(codes[position + 1 : stop])
        position = stop


def pack_codes(codes: Sequence[int]) -> bytes:
    """Packs codes for the wire: 32 bits each, little-endian."""
    return struct.pack(f"<{len(codes)}I", *codes)


def unpack_codes(data: bytes) -> Tuple[int, ...]:
    """Unpacks them; raises struct.error if the length is no multiple of 4 bytes."""
    return struct.unpack(f"<{len(data) // 4}I", data)


_INTEGER = struct.Struct("<q").unpack_from


@functools.lru_cache(maxsize=256)
def _struct_of(form: str) -> struct.Struct:
    return struct.Struct("<" + form)


class _Decoder:
    def __init__(self, key: bytes, varying: Mapping[int, int]) -> None:
        self.key = key
        self.varying = varying
        self.position = 0
        self.offsets: List[int] = []
        self.operands: List[Operand] = []
        self.views = self.references = self.hosts = self.numbers = 0

    def read_struct(self, form: str) -> Tuple[Any, ...]:
        plan = _struct_of(form)
        values = plan.unpack_from(self.key, self.position)
        self.position += plan.size
        return values

    def read_byte(self) -> int:
        self.position += 1
        return self.key[self.position - 1]

    def read_integers(self, count: int) -> Tuple[Tuple[int, ...], Dict[int, int]]:
        """Reads ``count`` integers; returns them and, by position, the values that go where one varies."""
        if count * 8 > len(self.key) - self.position:
            raise ProtocolError("malformed call: a list is longer than the message")
        offsets = range(self.position, self.position + 8 * count, 8)
        self.offsets += offsets
        values = self.read_struct(f"{count}q")
        if not self.varying:
            return values, {}
        varying = {i: self.varying[offset] for i, offset in enumerate(offsets) if offset in self.varying}
        return tuple(0 if i in varying else value for i, value in enumerate(values)), varying

    def read_item(self, depth: int) -> Arg:
        kind = chr(self.key[self.position])
        self.position += 1
        if kind in "TSPW":
            operand = self.read_operand(kind)
            self.operands.append(operand)
            return operand
        if kind in "UN":
            return None
        if kind == "I":
            values, varying = self.read_integers(1)
            return Varying(varying[0]) if varying else values[0]
        if kind == "V":
            values, varying = self.read_integers(self.read_struct("I")[0])
            if not varying:
                return values
            return tuple([Varying(varying[i]) if i in varying else value for i, value in enumerate(values)])
        if kind == "B":
            return bool(self.read_byte())
        if kind == "F":
            number: float = self.read_struct("d")[0]
            return number
        if kind == "Z":
            return complex(*self.read_struct("dd"))
        if kind == "Y":
            return Symbol("device", "cuda")
        if kind == "G":
            return Symbol("generator", str(self.read_struct("q")[0]))
        if kind == "X":
            (size,) = self.read_struct("I")
            if size > len(self.key) - self.position:
                raise ProtocolError("malformed call: a string is longer than the message")
            text = self.key[self.position : self.position + size].decode("utf-8")
            self.position += size
            return text
        if kind == "L":
            (count,) = self.read_struct("I")
            if depth >= MAX_DEPTH or count > len(self.key) - self.position:
                raise ProtocolError("malformed call: a list is too deep or longer than the message")
            return tuple([self.read_item(depth + 1) for _ in range(count)])
        raise ProtocolError(f"malformed call: unknown item {kind!r}")

    def read_operand(self, kind: str) -> Operand:
        if kind == "T":
            return self.read_view()
        if kind == "S":
            self.references += 1
            return StorageRef(self.references - 1, self.read_byte())
        if kind == "P":
            return self.read_host_tensor()
        number_kind, dtype, wrapped = self.read_struct("cBB")
        if number_kind not in (b"d", b"i", b"b"):
            raise ProtocolError(f"malformed call: a number of unknown kind {number_kind!r}")
        self.numbers += 1
        return HostNumber(self.numbers - 1, number_kind.decode("ascii"), dtype, bool(wrapped))

    def read_view(self) -> View:
        dtype, flags, dims = self.read_struct("BBB")
        if dims > MAX_DIMS:
            raise ProtocolError(f"malformed call: {dims} dimensions")
        values, varying = self.read_integers(2 * dims + 2)
        if flags > 3 or min(values[:-1]) < 0:
            raise ProtocolError("malformed call: a tensor with a negative size, stride or offset, or unknown flags")
        holes: Tuple[Hole, ...] = ()
        if varying:
            fields = [*((SIZE, i) for i in range(dims)), *((STRIDE, i) for i in range(dims)), (OFFSET, 0)]
            holes = tuple([Hole(*fields[i], value) for i, value in varying.items() if i < len(fields)])
        layout = Layout(dtype, flags, values[:dims], values[dims : 2 * dims], values[2 * dims])
        self.views += 1
        self.references += 1
        return View(self.views - 1, self.references - 1, self.read_byte(), layout, holes)

    def read_host_tensor(self) -> HostTensor:
        dtype, dims = self.read_struct("BB")
        if dims > MAX_DIMS:
            raise ProtocolError(f"malformed call: {dims} dimensions")
        sizes, varying = self.read_integers(dims)
        if min(sizes, default=0) < 0:
            raise ProtocolError("malformed call: a negative size")
        self.hosts += 1
        return HostTensor(self.hosts - 1, dtype, sizes, tuple(Hole(SIZE, i, value) for i, value in varying.items()))
