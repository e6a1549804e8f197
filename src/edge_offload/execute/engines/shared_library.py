"""What a shared library needs of others, read from its file (ELF, 64 bits), and which of those this machine lacks."""

from __future__ import annotations

import ctypes
import enum
import pathlib
import struct
from typing import BinaryIO, Dict, List


class _Segment(enum.IntEnum):
    """Types of segments in the ELF format."""

    LOAD, DYNAMIC = 1, 2


class _Tag(enum.IntEnum):
    """Tags of the dynamic section in the ELF format."""

    NULL, NEEDED, STRTAB, STRSZ = 0, 1, 5, 10


def needed_libraries(path: pathlib.Path) -> List[str]:
    """Names of the libraries that the loader looks for with the one at ``path``; nothing for what is no such file."""
    try:
        with path.open("rb") as stream:
            return _read_needed(stream)
    except (OSError, struct.error, KeyError, StopIteration, ValueError, OverflowError):
        return []


def missing_library(path: pathlib.Path) -> str:
    """The first library that the one at ``path`` needs and that is neither beside it nor can be loaded; empty: none.

    It loads what is there: ask where the one at ``path`` is to be loaded, too.
    """
    for name in needed_libraries(path):
        if (path.parent / name).exists():
            continue
        try:
            ctypes.CDLL(name)
        except OSError:
            return name
    return ""


def _read_needed(stream: BinaryIO) -> List[str]:
    header = stream.read(64)
    if header[:5] != b"\x7fELF\x02":
        return []
    (offset,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
    segments = []
    for index in range(count):
        stream.seek(offset + index * size)
        kind, _, at, address, _, length, _, _ = struct.unpack("<IIQQQQQQ", stream.read(56))
        segments.append((kind, at, address, length))
    at, length = next((at, length) for kind, at, _, length in segments if kind == _Segment.DYNAMIC)
    stream.seek(at)
    names: List[int] = []
    tags: Dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", stream.read(length)):
        if tag == _Tag.NULL:
            break
        if tag == _Tag.NEEDED:
            names.append(value)
        tags[tag] = value
    strings = tags[_Tag.STRTAB]
    loaded = [
        (at, start) for kind, at, start, size in segments if kind == _Segment.LOAD and 0 <= strings - start < size
    ]
    at, start = next(iter(loaded))
    stream.seek(at + strings - start)
    table = stream.read(tags[_Tag.STRSZ])
    return [table[name : table.index(b"\0", name)].decode() for name in names]
