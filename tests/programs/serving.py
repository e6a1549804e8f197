"""A server for devices as a process of its own, and programs started by ``edge-offload exec`` against it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, List, Sequence

FOLDER = pathlib.Path(__file__).parent
CLI = [sys.executable, "-m", "edge_offload.cli"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Serving:
    """``edge-offload serve`` on loopback, with keys and weights in ``folder``.

    Args:
        device: where it computes.
        launcher: what stands in front of its executors' commands.
        before: what stands in front of its own.
    """

    def __init__(
        self, folder: pathlib.Path, *options: str, port: int = 0, device: str = "cpu", launcher: Sequence[str] = (),
        before: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.folder = folder
        self.keys = folder / "keys"
        self.blobs = folder / "blobs"
        cli = [sys.executable, str(FOLDER / "launched_serve.py"), json.dumps(list(launcher))] if launcher else CLI
        command = [*before, *cli, "serve", "--bind", f"tcp://127.0.0.1:{port}", "--device", device, "--threads", "1"]
        command += ["--keys", str(self.keys), "--weights-cache", str(self.blobs), *options]
        self._log = (folder / "serve.log").open("a+")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=dict(ENVIRONMENT)
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), self.log()
        self.address = line.split()[2]

    def log(self) -> str:
        return (self.folder / "serve.log").read_text()

    def exec(self, *options: str) -> List[str]:
        """The command line up to the program."""
        return [*CLI, "exec", "--server", self.address, "--keys", str(self.keys), "--wait", "60", *options, "--"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(120)
        self._log.close()


def run(command: List[str], timeout_s: float = 300.0, **variables: str) -> Any:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env={**ENVIRONMENT, **variables}
    )


def executors(pid: int) -> List[int]:
    """Executor processes of a server, forked or started by a launcher: their pids."""
    import psutil

    server = psutil.Process(pid)
    command_lines = {child.pid: " ".join(child.cmdline()) for child in server.children(recursive=True)}
    forking = {each for each, line in command_lines.items() if "services.device.forking" in line}
    return [
        child.pid for child in server.children(recursive=True)
        if child.ppid() in forking or "execute.session.worker" in command_lines.get(child.pid, "")
    ]  # fmt: skip
