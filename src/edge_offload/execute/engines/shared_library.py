"""What a shared library needs of others, read from its file (ELF, 64 bits), and which of those this machine lacks."""

from __future__ import annotations

import ctypes
import pathlib
import struct
from typing import BinaryIO, Dict, List

#: Of the ELF format: types of segments, tags of the dynamic section.
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 0, 1, 5, 10


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
    at, length = next((at, length) for kind, at, _, length in segments if kind == _PT_DYNAMIC)
    stream.seek(at)
    names: List[int] = []
    tags: Dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", stream.read(length)):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            names.append(value)
        tags[tag] = value
    strings = tags[_DT_STRTAB]
    loaded = [(at, start) for kind, at, start, size in segments if kind == _PT_LOAD and 0 <= strings - start < size]
    at, start = next(iter(loaded))
    stream.seek(at + strings - start)
    table = stream.read(tags[_DT_STRSZ])
    return [table[name : table.index(b"\0", name)].decode() for name in names]
