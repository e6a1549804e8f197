"""Errors that a user meets: each names the cause and, where there is one, the remedy.

Programs catch :class:`EdgeOffloadError`; the command line prints it as one line and exits non-zero.
"""

from __future__ import annotations

import errno
import os
import pathlib
import sys
from typing import Dict

#: Environment variable that names the Python under which nodes and the command line run.
PYTHON_VARIABLE = "EDGE_OFFLOAD_PYTHON"
#: What comes with ROS and its messages, not with edge_offload's Python packages.
_OF_ROS = ("ros", "genpy", "edge_offload_msgs", "cv_bridge", "tf2_ros", "diagnostic_", "dynamic_reconfigure",
           "message_filters", "std_", "sensor_msgs", "geometry_msgs", "nav_msgs", "visualization_msgs")  # fmt: skip


class EdgeOffloadError(RuntimeError):
    """Base of every error raised on purpose; a RuntimeError, as frameworks expect of a device that fails.

    Args:
        cause: what is wrong, in words that name the thing (file, peer, operator).
        remedy: what to do about it; empty when there is nothing to advise.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause if not remedy else f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy


class BadInput(EdgeOffloadError, ValueError):
    """A value, file or message from the user or a sensor that cannot be used."""


class LinkLost(EdgeOffloadError):
    """The peer did not answer in time, or the connection broke."""


class Refused(EdgeOffloadError):
    """The peer answered and said no (unknown key, full, wrong version, wrong weights)."""


class ProtocolError(EdgeOffloadError):
    """The peer sent something that the protocol does not allow."""


class RemoteError(EdgeOffloadError):
    """The server accepted the request and failed while computing it."""


class Disagreement(RemoteError):
    """A result on the server differs from the shape or type that the robot had worked out for its operator.

    The cause begins with the operator's name.
    """

    @property
    def operator(self) -> str:
        """The operator's name, as the dispatcher has it."""
        return self.cause.split(": ")[0]


class OutOfMemory(EdgeOffloadError):
    """A program would hold more than its device has; it sees torch.cuda.OutOfMemoryError."""


class DeviceLost(EdgeOffloadError):
    """A GPU failed in a way from which this process does not recover."""


class Unsupported(EdgeOffloadError):
    """An operator, option or platform that edge_offload does not handle."""


REMEDIES: Dict[int, str] = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file; check the path",
    errno.EISDIR: "name a file",
    errno.EEXIST: "name another path, or move it away",
    errno.EACCES: "give yourself the right to it, or name another",
    errno.EPERM: "give yourself the right to it, or name another",
    errno.EROFS: "name a place that can be written",
    errno.ENOSPC: "free some space, or name another place",
    errno.EDQUOT: "free some space, or name another place",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EADDRINUSE: "choose another port, or stop who uses it",
    errno.ECONNREFUSED: "check the address, and that somebody listens there",
}


def in_words(error: BaseException, otherwise: str = "") -> str:
    """One sentence on ``error`` for a user: what is wrong with what, and what to do.

    Args:
        error: what was raised.
        otherwise: what to do where the error does not say it.
    """
    if isinstance(error, MemoryError):
        text, remedy = f"not enough memory{f' ({error})' if str(error) else ''}", "use a smaller input, or free some"
    elif isinstance(error, OSError) and error.errno is not None:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror)
        remedy = REMEDIES.get(error.errno, "")
    elif isinstance(error, EdgeOffloadError):
        text, remedy = error.cause, error.remedy
    else:
        text, remedy = str(error), ""
    remedy = remedy or otherwise
    return f"{text}; {remedy}" if remedy else text


def without_module(error: ModuleNotFoundError) -> str:
    """One line on a module that this Python lacks, and where to get it.

    Raises:
        ModuleNotFoundError: it is one of edge_offload's own, which no set-up brings.
    """
    name = (error.name or "").split(".")[0]
    if name in ("", "edge_offload"):
        raise error
    if name.startswith(_OF_ROS) and "ROS_PACKAGE_PATH" not in os.environ:
        remedy = "source the workspace's setup.bash first"
    else:
        root = pathlib.Path(__file__).resolve().parents[2]
        setup = root / "scripts" / "setup"
        where = str(setup) if setup.exists() else "scripts/setup in the checkout of edge_offload"
        sees = "sees ROS's packages (a venv made with --system-site-packages)" if name.startswith(_OF_ROS) else "has it"
        remedy = f"run {where}, or export {PYTHON_VARIABLE}=/path/to/venv/bin/python3 with a Python that {sees}"
    return f"{sys.executable} has no module {name!r}; {remedy}"
