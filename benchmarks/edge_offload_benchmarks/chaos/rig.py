"""Robot and server as processes, an emulated link between them, and the means to do them harm from outside."""

from __future__ import annotations

import json
import math
import pathlib
import signal
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from edge_offload_benchmarks.chaos.robot import MODEL
from edge_offload_benchmarks.chaos.usage import read_usage
from edge_offload_benchmarks.chaos.verdict import went_remote
from edge_offload_benchmarks.chaos.wall_clock import WallClock
from edge_offload_benchmarks.ports import lasting_port
from edge_offload_benchmarks.processes import Process, Server
from edge_offload_research.emulate.emulator import Emulator
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace
from edge_offload_research.testbed.packets.emulator import PacketEmulator

#: The link between the faults, and its address at the packet level.
MBPS, RTT_S, FAR = 93.0, 2.6e-3, "127.77.67.2:0"


class Rig:
    """One server, one robot, one link. A context manager that leaves nothing running.

    Args:
        robot_options: further arguments of the robot.
        server_prefix: command words before the server's, for a scenario that needs another environment for it.
        separate_clocks: give robot and server wall clocks of their own: :attr:`clocks`, by name of the side.
        level: of the link between them, tcp or packet.

    Raises:
        Unsupported: there is no libfaketime for that.
    """

    def __init__(
        self, robot_options: Sequence[str] = (), server_prefix: Sequence[str] = (), separate_clocks: bool = False,
        level: str = "tcp",
    ) -> None:  # fmt: skip
        self._level = level
        self.clocks = {side: WallClock() for side in ("robot", "server")} if separate_clocks else {}
        self._directory = tempfile.TemporaryDirectory()
        self._keys = str(pathlib.Path(self._directory.name) / "keys")
        self._robot_options = list(robot_options)
        self._prefix = [*self._clock_prefix("server"), *server_prefix]
        # what a server keeps on its disk outlives it, but not the run; a prefix has a disk of its own
        weights_cache = str(pathlib.Path(self._directory.name) / "kept")
        self._server_options = [] if server_prefix else ["--weights-cache", weights_cache]
        self._server_options += ["--promises"] * ("--accuracy" in self._robot_options)
        self.marks: Dict[str, float] = {}
        self.server_starts = 0

    def __enter__(self) -> Rig:
        try:
            self.server = self.start_server(f"tcp://127.0.0.1:{lasting_port()}")
            address = self.server_address = self.server.address
            self.emulator = self._make_emulator(address[len("tcp://") :]).start()
            servers = ",".join(self.list_servers())
            command = [sys.executable, "-m", "edge_offload_benchmarks.chaos.robot", "--server", servers]
            if "replay" in self._robot_options:
                # an ordinary program on the virtual device, which connects by itself
                device = ["exec", "--absent", "later", "--keys", self._keys, "--server", servers, "--"]
                command = [sys.executable, "-m", "edge_offload.cli", *device, *command]
            command = [*self._clock_prefix("robot"), *command]
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
                process.send_signal(signal.SIGCONT)
                process.kill()
        if hasattr(self, "emulator"):
            self.emulator.close()
        for clock in self.clocks.values():
            clock.close()
        self._directory.cleanup()

    def _make_emulator(self, to: str) -> Any:
        link = Link.of("chaos", Trace.constant_trace(MBPS * BYTES_PER_MBIT), RTT_S)
        return PacketEmulator(FAR, to, link) if self._level == "packet" else Emulator("127.0.0.1:0", to, link)

    def _clock_prefix(self, side: str) -> List[str]:
        return self.clocks[side].command_prefix() if side in self.clocks else []

    def start_server(self, bind: str) -> Server:
        """A server process; it does not wait until it listens."""
        self.server_starts += 1
        options = ["--keys", self._keys, "--allow", MODEL, *self._server_options]
        return Server(*options, bind=bind, prefix=self._prefix)

    def list_servers(self) -> List[str]:
        """Addresses that the robot knows."""
        return [self.emulator.address]

    def restart_server(self) -> None:
        """Kill the server if it runs, start another one at its address, and wait until it listens."""
        self.server.kill()
        self.server = self.start_server(self.server_address)
        self.server.wait_line("listening on ")

    def mark_time(self, name: str) -> None:
        """Remember this moment: ``fault`` begins, ``restored``, ..."""
        self.marks[name] = time.monotonic()

    def list_sides(self) -> List[Tuple[str, Process]]:
        """Both processes, by name."""
        return [("robot", self.robot), ("server", self.server)]

    def measure_usage(self) -> Dict[str, Dict[str, int]]:
        """Return what each side holds now, and which process that is."""
        return {side: {"pid": process.pid, **read_usage(process.pid)} for side, process in self.list_sides()}

    @property
    def tasks(self) -> List[str]:
        """Names of the robot's networks; an empty one where there is only one."""
        return list(self.ready["tasks"])

    def read_frames(self) -> List[Dict[str, Any]]:
        """Results so far, of all networks."""
        return [json.loads(line) for line in list(self.robot.lines) if line.startswith('{"frame"')]

    def wait_remote(self, since: float, timeout_s: float) -> Optional[float]:
        """Wait for a frame of each network that started after ``since`` and ran on the server; None if one had none."""
        ends = time.monotonic() + timeout_s
        seen, done = 0, dict.fromkeys(self.tasks, math.inf)
        while time.monotonic() < ends and self.robot.alive:
            lines = self.robot.lines
            for line in lines[seen:]:
                if line.startswith('{"frame"'):
                    frame = json.loads(line)
                    if frame["t"] >= since and went_remote(frame):
                        done[frame["task"]] = min(done[frame["task"]], frame["t"] + frame["total_s"])
            if math.isfinite(max(done.values())):
                return max(done.values())
            seen = len(lines)
            time.sleep(0.02)
        return None

    def read_carried(self) -> Dict[str, Dict[str, Any]]:
        """Return the carried results by task that the robot reported at its end."""
        lines = [json.loads(line) for line in self.robot.lines if line.startswith('{"carried"')]
        return {line["task"]: line for line in lines}

    def end_robot(self) -> Dict[str, Any]:
        """End the robot; its last line, with its exit code."""
        code = self.robot.end()
        line = next((line for line in self.robot.lines if line.startswith('{"summary"')), "{}")
        return {**json.loads(line), "exit_code": code}
