"""Machine code of a CUDA library for one kind of GPU alone: the rest is set to zeros, which compress to nothing.

The containers of ``.nv_fatbin`` keep their structure and headers: the driver picks an entry by its header, and reads
the payload of no other.
"""

from __future__ import annotations

import pathlib
import struct
import subprocess
from collections import Counter
from typing import Dict, FrozenSet, List, Tuple

CONTAINER, PTX, ELF = 0xBA55ED50, 1, 2
#: Kind of payload, architecture, first byte, bytes.
Entry = Tuple[int, int, int, int]


def list_sections(path: pathlib.Path) -> Dict[str, Tuple[int, int]]:
    """Offsets and sizes of a library's sections, by name."""
    spans: Dict[str, Tuple[int, int]] = {}
    text = subprocess.run(["readelf", "-S", "-W", str(path)], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        parts = line.replace("[ ", "[").split()
        if len(parts) > 5 and parts[0].startswith("[") and parts[1].startswith("."):
            spans[parts[1]] = int(parts[4], 16), int(parts[5], 16)
    return spans


def list_entries(data: bytearray, first: int, stop: int) -> List[Entry]:
    """The entries of a container between two offsets."""
    listed: List[Entry] = []
    while first + 64 <= stop:
        kind, _, header, payload = struct.unpack_from("<HHIQ", data, first)
        (architecture,) = struct.unpack_from("<I", data, first + 28)
        if kind not in (PTX, ELF) or header < 64 or first + header + payload > stop:
            break
        listed.append((kind, architecture, first + header, payload))
        first += header + payload
    return listed


def thin_container(data: bytearray, begin: int, size: int, retained: FrozenSet[int]) -> Counter[str]:
    """Set to zeros what other GPUs than ``retained`` need; bytes by architecture, and of zeros.

    A container without code for these GPUs keeps the PTX that can be compiled for them.
    """
    totals: Counter[str] = Counter()
    at, end = begin, begin + size
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic != CONTAINER:
            at += 8
            continue
        stop = at + header + length
        inside = list_entries(data, at + header, stop)
        has = any(kind == ELF and architecture in retained for kind, architecture, _, _ in inside)
        for kind, architecture, first, payload in inside:
            totals[f"{'ptx' if kind == PTX else 'sm'}_{architecture}"] += payload
            needed = kind == ELF and architecture in retained
            if (has and not needed) or (not has and kind == ELF and architecture > max(retained)):
                data[first : first + payload] = bytes(payload)
                totals["zeros"] += payload
        at = stop
    return totals


def thin_library(path: pathlib.Path, architectures: FrozenSet[int]) -> None:
    """Thin a library in place."""
    data = bytearray(path.read_bytes())
    for name, (offset, size) in list_sections(path).items():
        if "nv_fatbin" in name:
            totals = thin_container(data, offset, size, architectures)
            print(name, size, {key: f"{value / 1e6:.1f} MB" for key, value in sorted(totals.items())}, flush=True)
    path.write_bytes(data)
