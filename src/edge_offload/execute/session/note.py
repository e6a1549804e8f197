"""What an executor process leaves for its parent: whether it started, and the operator that it is about to run."""

from __future__ import annotations

import mmap
import os
import subprocess
from typing import Any, Dict, Protocol

from edge_offload.errors import LinkLost
from edge_offload.protocol.channel import Channel

#: Its size.
NOTE_BYTES = 128


class Process(Protocol):
    """An executor process, as its parent sees it."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def wait(self, timeout: float = ...) -> int:
        """Return its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """


class CrashNote:
    """Memory shared with one process, in which it leaves the name of the operator that it runs.

    Attributes:
        descriptor: for the process to inherit, until :meth:`close_descriptor`.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("edge_offload-operator"), "r+b", 0)
        self._file.truncate(NOTE_BYTES)
        self.descriptor = self._file.fileno()
        self._memory = mmap.mmap(self.descriptor, NOTE_BYTES)

    def close_descriptor(self) -> None:
        """The process has inherited it, or will not."""
        self._file.close()

    def running_operator(self) -> str:
        """``, while running …``: the operator that the process is running, or was when it ended; empty if none."""
        operator = bytes(self._memory[:NOTE_BYTES]).rstrip(b"\0").decode(errors="replace")
        return f", while running {operator}" if operator else ""

    def describe_end(self, process: Process) -> str:
        """Describes how ``process`` ended, and the operator that it was running."""
        try:
            code = process.wait(5.0)
        except subprocess.TimeoutExpired:
            return self.running_operator()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f", {how}{self.running_operator()}"


def wait_until_ready(channel: Channel) -> Dict[str, Any]:
    """The header that an executor process sends when it has started: ``ready`` (version of torch) and ``gpu`` (facts).

    Raises:
        LinkLost: it did not start; with its reason, where it could send one.
    """
    ready, _ = channel.receive()
    if "failed" in ready:
        raise LinkLost(str(ready["failed"])[:500])
    return ready
