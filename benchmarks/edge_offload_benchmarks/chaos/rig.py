"""Robot and server as processes, an emulated link between them, and the means to do them harm from outside."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from edge_offload.errors import LinkLost
from edge_offload.link.emulate.emulator import Emulator
from edge_offload.link.emulate.trace import BYTES_PER_MBIT, Link, Trace
from edge_offload.link.sockets.ports import lasting_port
from edge_offload_benchmarks.chaos.robot import MODEL
from edge_offload_benchmarks.chaos.usage import usage
from edge_offload_benchmarks.chaos.verdict import went_remote
from edge_offload_benchmarks.chaos.wall_clock import WallClock

#: The link between the faults.
MBPS, RTT_S = 93.0, 2.6e-3
START_S = 120.0


class Process:
    """A child whose standard output is read line by line."""

    def __init__(self, command: Sequence[str], environment: Optional[Dict[str, str]] = None) -> None:
        self.lines: List[str] = []
        self._changed = threading.Condition()
        # lives as long as the process is of interest
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_line(self, start: str, timeout_s: float = START_S) -> str:
        """The first line that begins so.

        Raises:
            LinkLost: it did not come; the cause holds the end of what the process said.
        """

        def found() -> Optional[str]:
            return next((line for line in self.lines if line.startswith(start)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or not self._reader.is_alive(), timeout_s)
        line = found()
        if line is None:
            raise LinkLost(f"the process did not start: {self.said()[-500:]}")
        return line

    def said(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.alive:
            self.process.send_signal(number)

    def end(self, timeout_s: float = 60.0) -> Optional[int]:
        """Close its standard input and wait; its exit code, None if it had to be killed."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            code: Optional[int] = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        self._reader.join(5.0)
        return code

    def kill(self) -> None:
        """End it without a chance to say anything."""
        if self.alive:
            self.process.kill()
        self.process.wait()


class Rig:
    """One server, one robot, one link. A context manager that leaves nothing running.

    Args:
        robot_options: further arguments of the robot.
        server_prefix: command words before the server's, for a scenario that needs another environment for it.
        own_clocks: give robot and server wall clocks of their own: :attr:`clocks`, by name of the side.

    Raises:
        Unsupported: there is no libfaketime for that.
    """

    def __init__(
        self, robot_options: Sequence[str] = (), server_prefix: Sequence[str] = (), own_clocks: bool = False
    ) -> None:
        self.clocks = {side: WallClock() for side in ("robot", "server")} if own_clocks else {}
        self._directory = tempfile.TemporaryDirectory()
        self._keys = str(pathlib.Path(self._directory.name) / "keys")
        self._robot_options = list(robot_options)
        self._prefix = [*self._clock_words("server"), *server_prefix]
        # what a server keeps on its disk outlives it, but not the run; a prefix has a disk of its own
        kept = str(pathlib.Path(self._directory.name) / "kept")
        self._server_options = [] if server_prefix else ["--weights-cache", kept]
        self.marks: Dict[str, float] = {}
        self.server_starts = 0

    def __enter__(self) -> Rig:
        try:
            self.server = self.start_server(f"tcp://127.0.0.1:{lasting_port()}")
            address = self.server.wait_line("listening on ").split()[2]
            self.server_address = address
            link = Link.of("chaos", Trace.constant(MBPS * BYTES_PER_MBIT), RTT_S)
            self.emulator = Emulator("127.0.0.1:0", address[len("tcp://") :], link).start()
            command = [*self._clock_words("robot"), sys.executable, "-m", "edge_offload_benchmarks.chaos.robot"]
            command += ["--server", self.emulator.address]
            self.robot = Process([*command, "--keys", self._keys, *self._robot_options])
            self.ready: Dict[str, Any] = json.loads(self.robot.wait_line('{"ready"'))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        for name in ("robot", "server"):
            process = getattr(self, name, None)
            if process is not None:
                process.signal(signal.SIGCONT)
                process.kill()
        if hasattr(self, "emulator"):
            self.emulator.close()
        for clock in self.clocks.values():
            clock.close()
        self._directory.cleanup()

    def _clock_words(self, side: str) -> List[str]:
        return self.clocks[side].words() if side in self.clocks else []

    def start_server(self, bind: str) -> Process:
        """A server process; it does not wait until it listens."""
        self.server_starts += 1
        options = ["--threads", "1", "--keys", self._keys, "--allow", MODEL, *self._server_options]
        return Process([*self._prefix, sys.executable, "-m", "edge_offload.cli", "serve", "--bind", bind, *options])

    def restart_server(self) -> None:
        """Kill the server if it runs, start another one at its address, and wait until it listens."""
        self.server.kill()
        self.server = self.start_server(self.server_address)
        self.server.wait_line("listening on ")

    def mark(self, name: str) -> None:
        """Remember this moment: ``fault`` begins, ``restored``, ..."""
        self.marks[name] = time.monotonic()

    def sides(self) -> List[Tuple[str, Process]]:
        """Both processes, by name."""
        return [("robot", self.robot), ("server", self.server)]

    def usage(self) -> Dict[str, Dict[str, int]]:
        """What each side holds now, and which process that is."""
        return {side: {"pid": process.process.pid, **usage(process.process.pid)} for side, process in self.sides()}

    def frames(self) -> List[Dict[str, Any]]:
        """Results so far."""
        return [json.loads(line) for line in list(self.robot.lines) if line.startswith('{"frame"')]

    def wait_remote(self, since: float, timeout_s: float) -> Optional[float]:
        """When the first frame that began after ``since`` and ran on the server was done, None if none was."""
        ends = time.monotonic() + timeout_s
        seen = 0
        while time.monotonic() < ends and self.robot.alive:
            lines = self.robot.lines
            for line in lines[seen:]:
                if line.startswith('{"frame"'):
                    frame = json.loads(line)
                    if frame["t"] >= since and went_remote(frame):
                        return float(frame["t"] + frame["total_s"])
            seen = len(lines)
            time.sleep(0.02)
        return None

    def summary(self) -> Dict[str, Any]:
        """End the robot; its last line, with its exit code."""
        code = self.robot.end()
        line = next((line for line in self.robot.lines if line.startswith('{"summary"')), "{}")
        return {**json.loads(line), "exit_code": code}
