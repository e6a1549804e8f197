"""The executor process of one session on the server, and the channel to it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from typing import Optional, Sequence

from edge_offload.execute import heap
from edge_offload.execute.session.note import CrashNote, Process
from edge_offload.protocol.channel import Channel
from edge_offload.server.services.device.forking import fork_server


class ExecutorProcess:
    """An executor process, which :meth:`start` starts.

    Args:
        options: command line of the process.

    Attributes:
        channel: to it; None before it is started.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self.channel: Optional[Channel] = None
        self._options = options
        self._starting = threading.Lock()
        self._killed = False
        self._process: Optional[Process] = None
        self._note: Optional[CrashNote] = None

    def start(self) -> Channel:
        """Start the process, unless that was done before; it is not ready yet.

        Raises:
            OSError: it cannot be started, or was killed before.
        """
        with self._starting:
            if self._killed:
                raise ChildProcessError("it was killed before it was started")
            return self.channel or self._start_process()

    def _start_process(self) -> Channel:
        ours, theirs = socket.socketpair()
        note = CrashNote()
        try:
            descriptors = [theirs.fileno(), note.descriptor]
            self._process = self._launch_process(descriptors) if heap.LAUNCHER else self._fork_process(descriptors)
            self._note = note
        finally:
            note.close_descriptor()
            theirs.close()
        self.channel = Channel(ours)
        return self.channel

    def _fork_process(self, descriptors: Sequence[int]) -> Process:
        environment = heap.executor_environment(os.environ)
        try:
            return fork_server(environment).start_executor(self._options, descriptors, environment)
        except BrokenPipeError:
            # it has just ended
            return fork_server(environment).start_executor(self._options, descriptors, environment)

    def _launch_process(self, descriptors: Sequence[int]) -> Process:
        """Start the process behind a command of tests, which a fork cannot have."""
        control, note = map(str, descriptors)
        worker = [sys.executable, "-m", "edge_offload.execute.session.worker", control, *self._options, "--note", note]
        environment = heap.executor_environment(os.environ)
        return subprocess.Popen(
            [*heap.LAUNCHER, *worker], pass_fds=descriptors, env=environment, stdin=subprocess.DEVNULL
        )

    def kill_process(self) -> None:
        """Kill the process, if there is one; none is started any more."""
        with self._starting:
            self._killed = True
            channel, process = self.channel, self._process
        if channel is not None:
            channel.close()
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                # one that holds much memory takes its time
                process.wait(30.0)

    def describe_operator(self) -> str:
        """Return the running operator in words; empty if it is unknown."""
        return self._note.running_operator() if self._note is not None else ""

    def explain_exit(self) -> str:
        """Explain the end of the process; empty if it was never started."""
        process, note = self._process, self._note
        return note.describe_end(process) if process is not None and note is not None else ""
