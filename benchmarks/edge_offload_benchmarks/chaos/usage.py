"""What a process holds, read from outside: descriptors, threads, memory, children."""

from __future__ import annotations

import os
import pathlib
from typing import Dict

PAGE = os.sysconf("SC_PAGE_SIZE")


def usage(pid: int) -> Dict[str, int]:
    """``{descriptors, sockets, threads, memory, children}`` of a process; memory is resident, in bytes.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
    """
    root = pathlib.Path("/proc") / str(pid)
    targets = [_target(link) for link in (root / "fd").iterdir()]
    children = 0
    for thread in (root / "task").iterdir():
        try:
            children += len((thread / "children").read_text().split())
        except FileNotFoundError:
            continue  # a thread that has just ended, or a kernel that does not tell
    return {
        "descriptors": len(targets),
        "sockets": sum(target.startswith("socket:") for target in targets),
        "threads": len(list((root / "task").iterdir())),
        "memory": int((root / "statm").read_text().split()[1]) * PAGE,
        "children": children,
    }


def _target(link: pathlib.Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed meanwhile
