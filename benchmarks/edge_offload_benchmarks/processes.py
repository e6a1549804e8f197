"""Servers, robots and emulators of experiments, as processes of this machine that leave nothing running."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from edge_offload.errors import LinkLost, RemoteError
from edge_offload.parent import with_parent

if TYPE_CHECKING:
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.mode import Mode

START_S = 120.0
#: What a robot or server of one thread is told.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def robot_arguments(description: Optional[str]) -> argparse.ArgumentParser:
    """Make the parser of a robot's process: its server, keys, model and slowdown."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--server", required=True)
    parser.add_argument("--keys", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--slowdown", type=float, required=True)
    return parser


#: Program that uses a processor for so many seconds, and those that it may outlive its purpose if nobody ends it.
_BUSY, SPARE_S = (
    "import sys, time\nends = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < ends: pass",
    120.0,
)


@contextlib.contextmanager
def burn_cores(count: int, seconds: float) -> Iterator[None]:
    """Run busy processes meanwhile, which also end by themselves."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY, str(seconds + SPARE_S)]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def two_cores() -> Tuple[int, int]:
    """A core for the robot and one for the server; the same where there is one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[min(1, len(cores) - 1)]


def describe_machine() -> str:
    """This machine in a few words."""
    import platform

    model = ""
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as stream:
        model = next(line.split(":", 1)[1].strip() for line in stream if line.startswith("model name"))
    return f"{model or platform.machine()}, {os.cpu_count()} cores"


def edge_offload(*arguments: str) -> List[str]:
    """The command of a subcommand, under this Python."""
    return [sys.executable, "-m", "edge_offload.cli", *arguments]


def modes_robot(server: str, keys: str, model: str) -> List[str]:
    """The command of a robot in every mode (:mod:`edge_offload_benchmarks.modes_robot`)."""
    end = ["--server", server, "--keys", keys]
    program = [sys.executable, "-m", "edge_offload_benchmarks.modes_robot", *end, "--model", model, "--slowdown", "1"]
    return [*edge_offload("exec", "--absent", "later", *end, "--"), *program]


class Process:
    """A child whose standard output is read line by line; as a context manager it is ended at the end.

    It ends with this process, too, even if that is killed, where this process's main thread began it.

    Args:
        environment: on top of this process's.
        cores: that it may use; empty: all.
    """

    def __init__(
        self, command: Sequence[str], environment: Optional[Mapping[str, str]] = None, cores: Iterable[int] = ()
    ) -> None:
        self.lines: List[str] = []
        self._answered = 0
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
            preexec_fn=with_parent(),
        )
        core_set = set(cores)
        if core_set:
            os.sched_setaffinity(self.process.pid, core_set)  # before it has any thread but its first
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
            LinkLost: it did not come; the message holds the end of what the process said.
        """

        def matching_line() -> Optional[str]:
            return next((line for line in self.lines if line.startswith(start)), None)

        with self._changed:
            self._changed.wait_for(lambda: matching_line() is not None or not self._reader.is_alive(), timeout_s)
        line = matching_line()
        if line is None:
            raise LinkLost(f"the process did not start: {self.read_stderr()[-500:]}")
        return line

    def request_answer(self, request: Mapping[str, Any], timeout_s: Optional[float] = None) -> Dict[str, Any]:
        """Send a line of JSON and wait for its answer, the next line.

        Raises:
            RemoteError: the process ended instead, or did not answer in time.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        with self._changed:
            self._changed.wait_for(lambda: len(self.lines) > self._answered or not self._reader.is_alive(), timeout_s)
        if len(self.lines) <= self._answered:
            if self._reader.is_alive():
                raise RemoteError(f"the process hangs: no answer for {timeout_s} s")
            raise RemoteError(f"the process ended with code {self.process.wait()}: {self.read_stderr()[-500:]}")
        self._answered += 1
        answer: Dict[str, Any] = json.loads(self.lines[self._answered - 1])
        return answer

    def read_stderr(self) -> str:
        """Return the standard error of the process."""
        self._log.seek(0)
        return self._log.read()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.process.poll() is None

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.alive:
            self.process.send_signal(number)

    def end(self, timeout_s: Optional[float] = 60.0) -> Optional[int]:
        """Close its standard input and wait (None: however long); its exit code, None if it had to be killed."""
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

    def stop(self, timeout_s: float = 20.0) -> None:
        """Ask it to end, and kill it if it does not."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End it without a chance to say anything."""
        if self.alive:
            self.process.kill()
        self.process.wait()


class Server(Process):
    """``edge-offload serve`` with one thread on loopback.

    Args:
        options: further arguments.
        bind: address; port 0: a free one.
        prefix: command words before the server's.
        environment, cores: see :class:`Process`.
    """

    def __init__(
        self,
        *options: str,
        bind: str = "tcp://127.0.0.1:0",
        prefix: Sequence[str] = (),
        environment: Optional[Mapping[str, str]] = None,
        cores: Iterable[int] = (),
    ) -> None:
        command = [*prefix, *edge_offload("serve", "--bind", bind, "--threads", "1", *options)]
        super().__init__(command, environment, cores)

    def __enter__(self) -> Server:
        return self

    @property
    def address(self) -> str:
        """Address of the server, once it listens."""
        return self.wait_line("listening on ").split()[2]


class LinkEmulator(Process):
    """``edge-offload link emulate`` in front of a server.

    Args:
        server: address of the server.
        mbps: rate each way (Mbit/s).
        rtt_ms: round trip.
        cores: see :class:`Process`.
    """

    def __init__(self, server: str, mbps: float, rtt_ms: float, cores: Iterable[int] = ()) -> None:
        ends = ["--listen", "127.0.0.1:0", "--to", server.replace("tcp://", "")]
        rate = ["--rate-mbps", f"{mbps:g}", "--rtt-ms", f"{rtt_ms:g}"]
        super().__init__(edge_offload("link", "emulate", *ends, *rate), cores=cores)

    def __enter__(self) -> LinkEmulator:
        return self

    @property
    def state(self) -> Dict[str, Any]:
        """What it states once it listens."""
        state: Dict[str, Any] = json.loads(self.wait_line("{"))
        return state

    @property
    def address(self) -> str:
        """Address of its end for robots, once it listens."""
        listening: str = self.state["listen"]
        return f"tcp://{listening.replace('tcp://', '')}"


def introduce_robots(root: pathlib.Path, names: Iterable[str]) -> Tuple[str, Dict[str, KeyStore]]:
    """The public key of a server, whose store is ``root/server``, and the stores of robots that it trusts, by name."""
    from edge_offload.link.security.keys import KeyStore

    server = KeyStore(root / "server")
    public = server.new_pair("server").public
    robots = {name: KeyStore(root / name) for name in names}
    for name, store in robots.items():
        server.trust_client(name, store.new_pair("client").public)
    return public, robots


def patient_client(address: str, keys: str) -> Client:
    """A client for ends that share a machine with whoever else uses it: a silence is not a fault."""
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.link.transport.connection import Timings

    timings = Timings(connect_s=5.0, handshake_s=20.0, silence_s=20.0)
    return Client(address, keys=KeyStore(keys), timings=timings)


def wait_open(module: Any, mode: Mode, inputs: Sequence[Any], timeout_s: float) -> None:
    """Wait until an ``OffloadedModule`` can run in a mode.

    Raises:
        RemoteError: it still cannot.
    """
    ends = time.monotonic() + timeout_s
    while (why := module.unavailable_reason(mode, inputs)) is not None:
        if time.monotonic() > ends:
            raise RemoteError(f"mode {mode} could not run after {timeout_s:g} s: {why}")
        time.sleep(0.02)
