"""A tensor as a fact: what it looks like, where it comes from, and whose bytes it shares."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Dict, Optional, Tuple, Union

from edge_offload.errors import BadInput

DYNAMIC = -1
"""A size that is known only once the operator has run (``nonzero``, boolean indexing)."""

MAX_RANK = 64

ITEM_BYTES: Dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
    "quint8": 1, "qint8": 1, "qint32": 4,
}  # fmt: skip
"""Bytes of one element, by the name that torch gives the dtype (``torch.float32`` is ``"float32"``)."""


class Kind(str, enum.Enum):
    """Origin of a value."""

    INPUT = "input"
    """New for every inference (or state that an inference reads and replaces)."""
    CONSTANT = "constant"
    """A weight: identified by the hash of its content, never written."""
    INTERMEDIATE = "intermediate"
    """An output of an operator of the sequence."""


@dataclass(frozen=True)
class Value:
    """One tensor.

    Attributes:
        id: its number in the sequence, unique there.
        dtype: a key of :data:`ITEM_BYTES`.
        shape: sizes; :data:`DYNAMIC` where only running tells.
        kind: see :class:`Kind`.
        strides: in elements; ``None`` means contiguous (row-major).
        offset: storage offset, in elements.
        storage: number of the storage that holds the bytes. Values with the same number alias each other.
            ``None`` means a storage that no other value touches.
    """

    id: int
    dtype: str
    shape: Tuple[int, ...]
    kind: Kind = Kind.INTERMEDIATE
    strides: Optional[Tuple[int, ...]] = None
    offset: int = 0
    storage: Optional[int] = None

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise BadInput(f"value {self.id}: unknown dtype {self.dtype!r}", remedy=f"known: {', '.join(ITEM_BYTES)}")
        if self.id < 0 or len(self.shape) > MAX_RANK or any(size < DYNAMIC for size in self.shape):
            raise BadInput(f"value {self.id}: bad id or shape {self.shape}")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise BadInput(f"value {self.id}: {len(self.strides)} strides for {len(self.shape)} dimensions")
        if self.offset < 0:
            raise BadInput(f"value {self.id}: negative storage offset {self.offset}")

    @property
    def is_static(self) -> bool:
        """True if every size is known before running."""
        return DYNAMIC not in self.shape

    @property
    def elements(self) -> int:
        """Number of elements.

        Raises:
            BadInput: a size is dynamic.
        """
        if not self.is_static:
            raise BadInput(f"value {self.id} has a size that only running tells: {self.shape}")
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, packed (not of the storage)."""
        return self.elements * ITEM_BYTES[self.dtype]


def contiguous_strides(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Row-major strides in elements, as torch counts them (a size of 0 counts as 1)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def content_digest(dtype: str, shape: Tuple[int, ...], payload: Union[bytes, memoryview]) -> str:
    """Name of a constant: hex BLAKE2b-256 over dtype, shape and row-major bytes.

    Raises:
        BadInput: the payload has not the number of bytes that dtype and shape say.
    """
    view = memoryview(payload)
    expected = ITEM_BYTES[dtype]
    for size in shape:
        expected *= size
    if view.nbytes != expected:
        raise BadInput(f"{view.nbytes} bytes for a constant of dtype {dtype} and shape {shape}, expected {expected}")
    state = hashlib.blake2b(digest_size=32)
    state.update(f"{dtype}:{','.join(map(str, shape))}:".encode())
    if view.nbytes:
        state.update(view.cast("B"))
    return state.hexdigest()
