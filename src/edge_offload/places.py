"""Where files of a user lie: the one module that reads HOME, the XDG variables and ``EDGE_OFFLOAD_*`` folders."""

from __future__ import annotations

import errno
import os
import pathlib
import pwd
from typing import Optional, Union

from edge_offload.errors import BadInput

CACHE, KEYS = "EDGE_OFFLOAD_CACHE", "EDGE_OFFLOAD_KEYS"
_APPLICATION = "edge_offload"


def cache_folder() -> pathlib.Path:
    """The cache: ``$EDGE_OFFLOAD_CACHE``, else ``edge_offload`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        BadInput: no variable names it, and this user has no home directory.
    """
    return _named(CACHE) or _base("XDG_CACHE_HOME", ".cache", CACHE) / _APPLICATION


def native_folder() -> pathlib.Path:
    """The folder of compiled libraries; errors as :func:`cache_folder`."""
    return cache_folder() / "native"


def blobs_folder() -> pathlib.Path:
    """The folder of weights that robots sent to a server; errors as :func:`cache_folder`."""
    return cache_folder() / "blobs"


def keys_folder() -> pathlib.Path:
    """The folder of keys: ``$EDGE_OFFLOAD_KEYS``, else ``edge_offload/keys`` in ``$XDG_CONFIG_HOME`` or ``~/.config``.

    Raises:
        BadInput: no variable names it, and this user has no home directory.
    """
    return _named(KEYS) or _base("XDG_CONFIG_HOME", ".config", KEYS) / _APPLICATION / "keys"


def pool_folder() -> pathlib.Path:
    """The folder of a pool's token: ``edge_offload/pool`` in ``$XDG_CONFIG_HOME`` or ``~/.config``.

    Raises:
        BadInput: the variable is not set, and this user has no home directory.
    """
    return _base("XDG_CONFIG_HOME", ".config", "XDG_CONFIG_HOME") / _APPLICATION / "pool"


def expand(path: Union[str, os.PathLike[str]]) -> pathlib.Path:
    """``path`` with a leading ``~`` replaced.

    Raises:
        BadInput: there is no such home directory.
    """
    try:
        return pathlib.Path(path).expanduser()
    except (RuntimeError, KeyError):
        raise BadInput(f"{os.fspath(path)}: there is no such home directory", remedy="write the whole path") from None


def unwritable(folder: pathlib.Path, variable: str, error: OSError) -> BadInput:
    """The error of a folder of this module in which nothing can be written; ``variable`` names another."""
    reason = error.strerror or str(error)
    return BadInput(f"cannot write in {folder}: {reason}", remedy=f"set {variable} to a folder that can be written")


def explained(error: OSError) -> Exception:
    """``error``, or :func:`unwritable` where this user has no right to the cache or to a folder above it."""
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR) or error.filename is None:
        return error
    try:
        folder, place = cache_folder().absolute(), pathlib.Path(os.fsdecode(error.filename)).absolute()
    except BadInput:
        return error
    inside = folder in (place, *place.parents) or place in folder.parents
    return unwritable(folder, CACHE, error) if inside else error


def _named(variable: str) -> Optional[pathlib.Path]:
    value = os.environ.get(variable)
    return expand(value) if value else None


def _base(variable: str, usual: str, remedy: str) -> pathlib.Path:
    # XDG Base Directory Specification: a relative path is not valid, and is ignored
    value = os.environ.get(variable, "")
    return pathlib.Path(value) if os.path.isabs(value) else _home(remedy) / usual


def _home(variable: str) -> pathlib.Path:
    """The home directory; ``variable`` is what a user without one has to set."""
    home = os.environ.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = ""
    if not home:
        raise BadInput(
            f"there is no home directory: HOME is not set, and the system has no entry for uid {os.getuid()}",
            remedy=f"set {variable} to a folder that can be written",
        )
    return pathlib.Path(home)
