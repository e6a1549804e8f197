"""Folder of a run's files: one per run, so that none is overwritten, with a limit on the size of all."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import time
from typing import List, Tuple

from edge_offload.errors import BadInput

LAST = "last"

_NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(-\d+)?")


def new_folder(root: pathlib.Path) -> pathlib.Path:
    """Make a folder named by the time in ``root``; ``root/last`` is a link to it.

    Raises:
        BadInput: it cannot be made.
    """
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    try:
        root.mkdir(parents=True, exist_ok=True)
        for name in (stamp, *(f"{stamp}-{number}" for number in range(2, 100))):
            try:
                (root / name).mkdir()
            except FileExistsError:
                continue
            _link_latest(root, name)
            return root / name
    except OSError as error:
        raise BadInput(f"cannot write {root}: {error.strerror}", remedy="name another folder (~runs)") from error
    raise BadInput(f"{root} has a hundred runs of this second")


def _link_latest(root: pathlib.Path, name: str) -> None:
    last = root / LAST
    if last.exists() and not last.is_symlink():
        return  # somebody's own
    aside = root / f".{LAST}.{os.getpid()}"
    aside.symlink_to(name)
    os.replace(aside, last)


def prune_runs(root: pathlib.Path, max_bytes: float, now_s: float) -> List[str]:
    """Remove the oldest runs in ``root`` until those that are left hold at most ``max_bytes``; their names.

    Only folders that :func:`new_folder` made are looked at, and none that was written in during the last hour.
    """
    runs = sorted(folder for folder in root.iterdir() if _NAME.fullmatch(folder.name) and folder.is_dir())
    facts = {folder: _size_and_time(folder) for folder in runs}
    total = sum(size for size, _ in facts.values())
    removed = []
    for folder, (size, written_s) in facts.items():
        if total <= max_bytes:
            break
        if now_s - written_s < 3600.0:  # it may belong to a run that is going on
            continue
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
        removed.append(folder.name)
    return removed


def _size_and_time(folder: pathlib.Path) -> Tuple[int, float]:
    entries = [path.lstat() for path in (folder, *folder.rglob("*"))]
    return sum(item.st_size for item in entries), max(item.st_mtime for item in entries)
