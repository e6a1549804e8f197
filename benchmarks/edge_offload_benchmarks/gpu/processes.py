"""Processes of the phases: children that end with this one, servers with a key per robot, emulated links."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence

from edge_offload.device import visible
from edge_offload.parent import with_parent
from edge_offload_benchmarks.gpu.settings import Settings

if TYPE_CHECKING:
    from edge_offload.link.security.keys import KeyStore

#: A client does not see the GPU: what it computes on "cuda" is the virtual device's.
BLIND = {visible.VARIABLE: "", visible.LOCAL_GPU: visible.HIDDEN, "OMP_NUM_THREADS": "1"}
#: Robots that a server knows: each program has a key of its own, since programs per robot are limited.
ROBOTS = 40


def cli_command(*arguments: str) -> List[str]:
    """The command of a subcommand of edge-offload."""
    return [sys.executable, "-m", "edge_offload.cli", *arguments]


def module_command(name: str, *arguments: str) -> List[str]:
    """The command of a module of this package."""
    return [sys.executable, "-m", f"edge_offload_benchmarks.gpu.{name}", *arguments]


class Process:
    """A child whose standard output is read line by line, and whose standard error goes to a file.

    Args:
        settings: of the run.
        name: of the log.
        command: arguments.
        cores: that it may use, as ``taskset -c`` takes them; empty: any.
        more: variables on top of this process's.
    """

    def __init__(self, settings: Settings, name: str, command: Sequence[str], cores: str = "", **more: str) -> None:
        self.log = settings.folder / "logs" / f"{name}.{os.getpid()}.{time.monotonic_ns()}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self.log.open("w", encoding="utf-8")
        self.lines: List[str] = []
        self._line_times: List[float] = []
        self._started_at = time.monotonic()
        self._changed = threading.Condition()
        prefix = ["taskset", "-c", cores] if cores else []
        self.process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stream,
            text=True,
            env={**os.environ, **more},
            preexec_fn=with_parent(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._line_times.append(time.monotonic() - self._started_at)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_line(self, start: str, timeout_s: float) -> str:
        """The first line that begins so.

        Raises:
            RuntimeError: it did not come.
        """

        def find_line() -> Optional[str]:
            return next((line for line in self.lines if line.startswith(start)), None)

        with self._changed:
            self._changed.wait_for(lambda: find_line() is not None or not self._reader.is_alive(), timeout_s)
        line = find_line()
        if line is None:
            raise RuntimeError(f"no line {start!r}: {self.read_tail()}")
        return line

    def stamp_lines(self) -> List[str]:
        """Return its lines, each with the seconds since the start of the process."""
        return [f"{seconds:.1f} s: {line}" for seconds, line in zip(self._line_times, self.lines)]

    def write(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def end(self, timeout_s: float) -> int:
        """Wait for its end, and kill it after ``timeout_s``; its exit code, -1 if it was killed."""
        try:
            code = self.process.wait(max(0.1, timeout_s))
        except subprocess.TimeoutExpired:
            self.stop()
            return -1
        self._reader.join(5)
        return code

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not within 6 s."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(6)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._stream.close()

    def read_tail(self, count: int = 1500) -> str:
        """The last characters of its standard error."""
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")[-count:]
        return ""

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def end_all(processes: Iterable[Process], timeout_s: float) -> None:
    """Wait for the end of all; those that have not ended after ``timeout_s`` are asked to at once."""
    ends = time.monotonic() + timeout_s
    running = [one.process for one in processes]
    while any(one.poll() is None for one in running) and time.monotonic() < ends:
        time.sleep(0.05)
    for one in running:
        if one.poll() is None:
            one.terminate()


def thread_count(settings: Settings) -> str:
    """Threads of a server's computations, for ``--threads``: a part of its fingerprint."""
    return "4" if settings.cuda else "1"


class Server(Process):
    """``edge-offload serve`` on the device, which knows :data:`ROBOTS` robots.

    Args:
        settings: of the run.
        options: further ones of ``serve``.
        keys: folder of the server's keys, where the caller made them.
        more: variables on top of this process's.
    """

    def __init__(
        self, settings: Settings, *options: str, keys: Optional[pathlib.Path] = None, **more: str
    ) -> None:  # fmt: skip
        self._robots: List[KeyStore] = []
        self._public = ""
        self.keys = keys or self._introduce_robot(settings)
        started_at = time.monotonic()
        command = cli_command(
            "serve",
            "--bind",
            "tcp://127.0.0.1:0",
            "--device",
            settings.device,
            "--threads",
            thread_count(settings),
            "--keys",
            str(self.keys),
            "--weights-cache",
            str(settings.folder / "blobs"),
            "--max-devices",
            "80",
            "--max-models",
            "64",
            "--device-memory-mb",
            "8192",
            *options,
        )
        super().__init__(settings, "serve", command, settings.server_cores, **more)
        try:
            self.address = self.wait_line("listening on ", 180).split()[2]
        except RuntimeError:
            self.stop()
            raise
        self.start_s = time.monotonic() - started_at

    def graph_lines(self) -> List[str]:
        """Return the lines of the server's executors on steps that are not CUDA graphs."""
        return [line for line in self.read_tail(1 << 20).splitlines() if "CUDA graph" in line]

    def __enter__(self) -> Server:
        return self

    def _introduce_robot(self, settings: Settings) -> pathlib.Path:
        from edge_offload_benchmarks.processes import introduce_robots

        folder = settings.folder / f"keys.{os.getpid()}.{time.monotonic_ns()}"
        self._public, robots = introduce_robots(folder, [f"robot{number}" for number in range(ROBOTS)])
        self._robots = list(robots.values())
        return folder / "server"

    def make_robot(self, address: str = "") -> str:
        """The key folder of another robot, which trusts the server at ``address`` (default: its own)."""
        robot = self._robots.pop()
        robot.trust_server(address or self.address, self._public)
        return str(robot.directory)

    def exec_command(self, *options: str, address: str = "", keys: str = "") -> List[str]:
        """The command of ``exec`` up to the program."""
        end = ["--server", address or self.address, "--keys", keys or self.make_robot(address)]
        return cli_command("exec", *end, "--wait", "60", "--threads", "1", *options, "--")


class EmulatedLink(Process):
    """A link in front of a server.

    Args:
        settings: of the run.
        server: address.
        mbps: rate.
        rtt_ms: round-trip time.

    Attributes:
        address: for robots.
        control_address: where the link is changed (:class:`edge_offload_research.emulate.control.Control`).
    """

    def __init__(self, settings: Settings, server: str, mbps: float, rtt_ms: float = 2.6) -> None:
        ends = ["--listen", "127.0.0.1:0", "--to", server.replace("tcp://", "")]
        command = cli_command("link", "emulate", *ends, "--rate-mbps", str(mbps), "--rtt-ms", str(rtt_ms))
        super().__init__(settings, "link", command, settings.client_cores)
        try:
            about = json.loads(self.wait_line("{", 60))
        except RuntimeError:
            self.stop()
            raise
        self.address = "tcp://" + about["listen"].replace("tcp://", "")
        self.control_address = about["control"]

    def control(self, command: str, **arguments: float) -> Dict[str, Any]:
        """Steer the link as ``edge-offload link control`` does; what it has carried."""
        from edge_offload_research.emulate.control import Control

        with Control(self.control_address) as control:
            return control.do(command, **arguments)

    def __enter__(self) -> EmulatedLink:
        return self
