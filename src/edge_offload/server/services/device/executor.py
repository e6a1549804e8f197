"""The executor process of one session on the server, and the channel to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Optional, Sequence

from edge_offload.execute import heap
from edge_offload.execute.session.note import Note
from edge_offload.protocol.channel import Channel


class Executor:
    """An executor process, which :meth:`start` starts.

    Args:
        options: command line of the process.

    Attributes:
        channel: to it; None before it is started.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self.channel: Optional[Channel] = None
        self._options = options
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._note: Optional[Note] = None

    def start(self) -> Channel:
        """Start the process; it is not ready yet.

        Raises:
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        note = Note()
        try:
            worker = [sys.executable, "-m", "edge_offload.execute.session.worker", str(theirs.fileno())]
            command = [*heap.LAUNCHER, *worker, *self._options, "--note", str(note.descriptor)]
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno(), note.descriptor],
                env=heap.of_executor(os.environ),
                stdin=subprocess.DEVNULL,
            )
            self._note = note
        finally:
            note.shared()
            theirs.close()
        channel = Channel(ours)
        self._process, self.channel = process, channel
        return channel

    def end(self) -> None:
        """Kill the process, if there is one."""
        channel, process = self.channel, self._process
        if channel is not None:
            channel.close()
        if process is not None:
            process.kill()
            process.wait()

    def running(self) -> str:
        """The operator that it is running, in words; empty if that is not known."""
        return self._note.running() if self._note is not None else ""

    def epitaph(self) -> str:
        """Why the process ended, in words; empty if it was never started."""
        process, note = self._process, self._note
        return note.epitaph(process) if process is not None and note is not None else ""
