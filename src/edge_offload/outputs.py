"""Files that a command or a node writes: looked at before the work begins, and written whole or not at all.

Standard library only: launch files are checked with it, too.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import pathlib
import tempfile
from typing import Any, Callable, Dict, Iterator, Union

from edge_offload import places
from edge_offload.errors import BadInput

STANDARD_OUTPUT = "-"

Pathlike = Union[str, pathlib.Path]


def add_output(parser: Any, *flags: str, folder: bool = False, **options: Any) -> argparse.Action:
    """``parser.add_argument`` for a file (or folder) that is written; the command line checks it before the work.

    Args:
        parser: a parser or a group of one.
        *flags: names of the argument, as for ``add_argument``.
        folder: the argument names a folder.
        **options: as for ``add_argument``.
    """
    action: argparse.Action = parser.add_argument(*flags, **options)
    outputs: Dict[str, bool] = parser.get_default("outputs") or {}
    parser.set_defaults(outputs={**outputs, action.dest: folder})
    return action


def check_outputs(args: argparse.Namespace) -> None:
    """Check every argument that :func:`add_output` declared and the user gave.

    Raises:
        BadInput: nothing can be written there.
    """
    for dest, folder in getattr(args, "outputs", {}).items():
        value = getattr(args, dest, None)
        if value and str(value) != STANDARD_OUTPUT:
            check_folder(value) if folder else check_output(value)


def check_output(path: Pathlike) -> None:
    """Find out whether a file can be written, without touching what is there. Folders above it may be missing.

    Raises:
        BadInput: it cannot, and why.
    """
    path = places.expand(path).absolute()
    if path.is_dir():
        raise BadInput(f"{path} is a folder", remedy="give the name of a file in it")
    with _refused(path):
        if path.exists():
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "it may not be written")
            if not path.is_file() or not os.access(path.parent, os.W_OK):
                return  # a pipe, a terminal, /dev/stdout; or it can only be written in place
    check_folder(path.parent)


def check_folder(path: Pathlike) -> None:
    """Find out whether files can be made in a folder, which may be missing.

    Raises:
        BadInput: they cannot, and why.
    """
    path = places.expand(path).absolute()
    with _refused(path):
        existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(bytes(4096))


def write_text(path: Pathlike, text: str) -> None:
    """Write a file whole: what is there stays until the new one is complete. Makes the folders above it.

    Raises:
        BadInput: it cannot be written (no such place, no permission, the disk is full).
    """
    write_bytes(path, text.encode())


def write_bytes(path: Pathlike, data: bytes) -> None:
    """As :func:`write_text`."""
    path = places.expand(path)
    with _refused(path):
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK)):
            path.write_bytes(data)  # a pipe, a terminal, /dev/stdout; or it can only be written in place
            return
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        handle, temporary = tempfile.mkstemp(dir=str(path.parent), prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


class Kept:
    """Writes while the work goes on, which a file that cannot be written does not end: :meth:`settle` does."""

    def __init__(self) -> None:
        self._failed: Dict[str, BadInput] = {}

    def __call__(self, name: str, write: Callable[[], object]) -> None:
        """Call ``write``; a later one of the same name makes good what an earlier one could not."""
        self._failed.pop(name, None)
        try:
            write()
        except BadInput as error:
            self._failed[name] = error

    def settle(self) -> None:
        """Report failed writes, at the end, when the figures are on the terminal.

        Raises:
            BadInput: of the first that could not be written.
        """
        for error in self._failed.values():
            raise error


def write_each(*writes: Callable[[], object]) -> None:
    """Call all of ``writes``: a file that cannot be written keeps no other from being written.

    Raises:
        BadInput: of the first that could not.
    """
    kept = Kept()
    for number, write in enumerate(writes):
        kept(str(number), write)
    kept.settle()


@contextlib.contextmanager
def _refused(path: pathlib.Path) -> Iterator[None]:
    """Say in one line what the system refuses."""
    try:
        yield
    except OSError as error:
        remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose a place that can be written"
        raise BadInput(f"cannot write {path}: {error.strerror}", remedy=remedy) from error
