"""A real server process on loopback, and robots that talk to it."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, List, Sequence

import torch

from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client, LinkState, Timings
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.runtime.module import OffloadedModule
from tests.on_device import DEVICE, LAUNCHER
from tests.server import small_nets

FACTORIES = ("net", "slow", "moody", "counting", "drifting", "many", "gated")


_numbers = itertools.count()


class Gate:
    """What ``small_nets:gated`` waits for in a server process: the test says when, not a clock."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._waits = path.with_suffix(".waits")

    def shut(self) -> None:
        self._waits.unlink() if self._waits.exists() else None
        self.path.touch()

    def open(self) -> None:
        self.path.unlink()

    def wait_until_reached(self) -> None:
        """Until a network stands before it."""
        until(self._waits.exists, 60)


class ServerProcess:
    """``edge-offload serve`` in a process of its own."""

    def __init__(self, keys: pathlib.Path, bind: str = "tcp://127.0.0.1:0", extra: Sequence[str] = ()) -> None:
        path = os.pathsep.join([str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        command = [
            *LAUNCHER,
            sys.executable,
            "-m",
            "edge_offload.cli",
            "serve",
            "--bind",
            bind,
            "--threads",
            "1",
            "--keys",
            str(keys),
            "--device",
            DEVICE,
        ]
        for name in FACTORIES:
            command += ["--allow", f"tests.server.small_nets:{name}"]
        self.gate = Gate(keys / f"gate{next(_numbers)}")
        environment = {**os.environ, "PYTHONPATH": path, small_nets.GATE: str(self.gate.path)}
        self.process = subprocess.Popen([*command, *extra], stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), f"the server said {line!r}"
        self.address = line.split()[2]

    def freeze(self) -> None:
        """SIGSTOP; returns when every thread stands still, which takes a while on a busy machine."""
        self.process.send_signal(signal.SIGSTOP)
        stats = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        for stat in list(stats):
            until(lambda stat=stat: stat.read_text().rpartition(")")[2].split()[0] == "T", 60)

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(how)
        return self.process.wait(120)


UNHURRIED = TimeoutLimits(floor_s=30.0, cap_s=60.0, first_s=60.0)
"""For tests of anything but patience: a machine that stalls for a second must not turn a frame local, ..."""
TIMINGS = Timings(connect_s=10.0, handshake_s=30.0, silence_s=30.0)
"""... nor break the connection."""


class Robot:
    """A client and a module by name."""

    def __init__(self, address: str, keys: pathlib.Path, factory: str, example: Any = None, **options: Any) -> None:
        of_runtime = ("robot_slowdown", "patience", "report_results", "codec", "exact")
        runtime = {key: options.pop(key) for key in of_runtime if key in options}
        runtime.setdefault("patience", UNHURRIED)
        self.client = Client(address, keys=KeyStore(keys), on_state=self._changed, timings=TIMINGS)
        self.module = small_module = getattr(small_nets, factory)(**options)
        self.offloaded = OffloadedModule(
            f"tests.server.small_nets:{factory}",
            small_module,
            self.client,
            options=options,
            example=example,
            hedging=False,
            device=DEVICE,
            **runtime,
        )
        self.client.start()

    def _changed(self, state: LinkState, cause: str) -> None:
        self.offloaded.link_changed(state, cause)

    def wait_open(self, inputs: Sequence[torch.Tensor], timeout_s: float = 60.0) -> None:
        until(
            lambda: self.offloaded.unavailable_reason(Mode.SERVER, inputs) is None,
            timeout_s,
            lambda: str(self.offloaded.state()),
        )

    def run(self, inputs: Sequence[torch.Tensor], mode: Mode = Mode.SERVER, **more: Any):
        return self.offloaded.run_inference(inputs, mode, **more)


def until(condition, timeout_s: float, what=lambda: "") -> None:
    """Wait for ``condition``; the time limit is only there to end a hanging test."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"still not so after {timeout_s} s: {what()}"
        time.sleep(0.01)


def bit_equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    def bits(tensor: torch.Tensor) -> bytes:
        return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""

    return len(one) == len(other) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b) for a, b in zip(one, other)
    )


def image(seed: int = 0, height: int = 40, width: int = 48) -> List[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)]
