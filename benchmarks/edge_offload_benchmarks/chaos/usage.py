"""What a process holds, read from outside: descriptors, threads, memory, children."""

from __future__ import annotations

import os
import pathlib
from typing import Dict

PAGE = os.sysconf("SC_PAGE_SIZE")


def read_usage(pid: int) -> Dict[str, int]:
    """``{descriptors, sockets, threads, memory, private, children}`` of a process; memory is resident, in bytes.

    ``private`` is what it holds of that for itself alone. The rest are pages of files, which the kernel takes back when
    it likes: code among them, which counts from the first time on that it is needed.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended.
    """
    root = pathlib.Path("/proc") / str(pid)
    targets = [_read_link(link) for link in (root / "fd").iterdir()]
    status = (root / "status").read_text().splitlines()
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
        "private": sum(
            int(fields[1]) << 10 for fields in map(str.split, status) if fields[0] in ("RssAnon:", "RssShmem:")
        ),
        "children": children,
    }


def _read_link(link: pathlib.Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # closed meanwhile
