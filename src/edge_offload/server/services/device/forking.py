"""Executor processes by fork: a process that has imported torch is copied, which takes milliseconds instead of seconds.

:class:`ForkServer` belongs to the server, as :mod:`multiprocessing.forkserver` does to a program; that one cannot be
used, since it imports the program's main module again in every process. ``python -m
edge_offload.server.services.device.forking FD`` imports what an executor needs, uses nothing of it (no GPU, no thread
pool), and forks an executor for each message on ``FD``.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from edge_offload.execute.session import worker

MESSAGE_BYTES = 1 << 20
# fmt: off
LOADER_PREFIXES = ("LD_", "MALLOC", "OMP_", "GOMP_", "KMP_", "MKL_", "PYTHON", "PYTORCH", "TORCH", "CUDA", "NVIDIA",
          "EDGE_OFFLOAD")
# fmt: on
"""Prefixes of environment variables that are read while programs and libraries are loaded."""


class ForkedProcess:
    """An executor with the interface of :class:`subprocess.Popen`."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self._server, self._number = server, number
        self._code: Optional[int] = None

    def kill(self) -> None:
        """Send SIGKILL; nothing happens if it has ended."""
        self._server.kill(self._number)

    def wait(self, timeout: float = 5.0) -> int:
        """Return its exit code, or minus the signal that ended it.

        Raises:
            subprocess.TimeoutExpired: it has not ended, or nobody knows.
        """
        ends_s = time.monotonic() + timeout
        while self._code is None:
            self._code = self._server.take_exit_code(self._number)
            if self._code is not None:
                break
            if time.monotonic() >= ends_s:
                raise subprocess.TimeoutExpired("executor", timeout)
            # only the end of a session waits for this
            time.sleep(0.02)
        return self._code


class ForkServer:
    """A process that forks executors. Thread-safe.

    Args:
        environment: of the process.
    """

    def __init__(self, environment: Dict[str, str]) -> None:
        self._environment = _loader_environment(environment)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "edge_offload.server.services.device.forking", str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        finally:
            theirs.close()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._pids: Dict[int, int] = {}
        self._ended: Dict[int, int] = {}

    def fits(self, environment: Dict[str, str]) -> bool:
        """True if it can still fork executors with this environment."""
        return self._process.poll() is None and self._environment == _loader_environment(environment)

    def start_executor(
        self, options: Sequence[str], descriptors: Sequence[int], environment: Dict[str, str]
    ) -> ForkedProcess:  # fmt: skip
        """Fork an executor, as soon as everything is imported.

        Args:
            options: of its command line, behind its socket.
            descriptors: its socket and its note, which it inherits.
            environment: that it is to have.

        Raises:
            OSError: the process that forks has ended.
        """
        number = next(self._numbers)
        rights = array.array("i", descriptors)
        message = {"start": number, "options": list(options), "environment": environment}
        with self._lock:
            self._control.sendmsg(
                [json.dumps(message).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )  # fmt: skip
        return ForkedProcess(self, number)

    def kill(self, number: int) -> None:
        """Kill an executor, unless it has ended."""
        with self._lock:
            try:
                self._control.send(json.dumps({"kill": number}).encode())
            except OSError:
                # the process that forked it has ended, which would have reaped it
                self._read_reports()
                if number in self._pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._pids.pop(number), signal.SIGKILL)
                    self._ended[number] = -signal.SIGKILL

    def take_exit_code(self, number: int) -> Optional[int]:
        """Return the exit code of an executor, once; None while it runs, or if that is not known."""
        with self._lock:
            self._read_reports()
            return self._ended.pop(number, None)

    def _read_reports(self) -> None:
        """Read which executors have started and ended; the caller holds the lock."""
        with contextlib.suppress(OSError):
            while select.select([self._control], [], [], 0)[0]:
                data = self._control.recv(MESSAGE_BYTES)
                if not data:
                    return
                message = json.loads(data)
                if "pid" in message:
                    self._pids[message["number"]] = message["pid"]
                else:
                    self._pids.pop(message["number"], None)
                    self._ended[message["number"]] = message["code"]

    def close(self) -> None:
        """Fork no more; executors go on until their sessions end."""
        with self._lock:
            self._read_reports()
            self._control.shutdown(socket.SHUT_RDWR)


def _loader_environment(environment: Dict[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(LOADER_PREFIXES)}


_shared: Optional[ForkServer] = None
_sharing = threading.Lock()


def fork_server(environment: Dict[str, str]) -> ForkServer:
    """Return the fork server of this process; start it, if there is none that can have this environment.

    Raises:
        OSError: it cannot be started.
    """
    global _shared
    with _sharing:
        if _shared is None or not _shared.fits(environment):
            if _shared is not None:
                _shared.close()
            _shared = ForkServer(environment)
        return _shared


class _ForkLoop:
    """The process that forks, on the other end of the control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers: Dict[int, int] = {}
        self._woken, self._wake = os.pipe()
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)

    def run(self) -> Optional[Tuple[int, Dict[str, Any]]]:
        """Fork until the server hangs up, then return None; return in each executor its socket and its message."""
        while True:
            sources: List[Any] = [self._control, self._woken]
            readable, _, _ = select.select(sources, [], [])
            if self._woken in readable:
                os.read(self._woken, MESSAGE_BYTES)
                self._report_ended()
            if self._control not in readable:
                continue
            space = socket.CMSG_SPACE(2 * array.array("i").itemsize)
            data, ancillary, _, _ = self._control.recvmsg(MESSAGE_BYTES, space)
            if not data:
                return None
            message = json.loads(data)
            if "kill" in message:
                for pid, number in self._numbers.items():
                    if number == message["kill"]:
                        os.kill(pid, signal.SIGKILL)
                continue
            descriptors = array.array("i", b"".join(part for *_, part in ancillary))
            pid = os.fork()
            if pid == 0:
                message["note"] = descriptors[1]
                return descriptors[0], message
            self._numbers[pid] = message["start"]
            self._report({"number": message["start"], "pid": pid})
            for descriptor in descriptors:
                os.close(descriptor)

    def _report_ended(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._report({"number": self._numbers.pop(pid), "code": code})

    def _report(self, message: Dict[str, int]) -> None:
        with contextlib.suppress(OSError):  # the server has ended
            self._control.send(json.dumps(message).encode())

    def release_all(self) -> None:
        """Release all resources of the loop, in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for descriptor in (self._woken, self._wake):
            os.close(descriptor)


def main() -> int:
    """Import, and fork until the server hangs up; each executor serves its session."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.prepare_imports()
    loop = _ForkLoop(socket.socket(fileno=int(sys.argv[1])))
    forked = loop.run()
    if forked is None:
        return 0
    loop.release_all()
    descriptor, message = forked
    os.environ.clear()
    os.environ.update(message["environment"])
    return worker.main([str(descriptor), *message["options"], "--note", str(message["note"])])


if __name__ == "__main__":
    sys.exit(main())
