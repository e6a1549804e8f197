"""The executor process: starting it, sending it requests, and deciding whether a program needs one.

Without the virtual device a program owns its GPU itself. With it, torch's CUDA is unusable in the program's process.
The executor process then owns the GPU and runs the engines.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from edge_offload.companion.memory import SharedRegion, TensorChannel
from edge_offload.errors import LinkLost
from edge_offload.execute import devices, heap
from edge_offload.execute.engines.base import EAGER
from edge_offload.native import torch_facts
from edge_offload.protocol.channel import Channel

#: Channels whose requests run concurrently, each in a thread of the process.
CHANNELS = ("module", "take", "advance", "fetch")


class ExecutorProcess:
    """Process that computes networks and halves of plans for its parent. Thread-safe.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:n``.
        threads: torch's threads in the process; 0: torch's default.

    Attributes:
        device: the device that it computes on.
        fingerprint: of that device.

    Raises:
        LinkLost: it did not start.
        BadInput, Unsupported: no such device.
    """

    def __init__(self, device: str, threads: int = 0) -> None:
        self._arguments = ["--device", device, "--threads", str(threads)]
        self.start()

    def start(self) -> None:
        """Start the process, for the first time or again; blocks for seconds.

        Raises:
            LinkLost, BadInput, Unsupported: as of the class.
        """
        channels: Dict[str, TensorChannel] = {}
        sockets, child_fds = [], []
        for name in CHANNELS:
            end, child_end = socket.socketpair()
            out, back = SharedRegion(), SharedRegion()
            channels[name] = TensorChannel(Channel(end), out, back)
            end.settimeout(240.0)  # imports of torch and CUDA's start, on a busy board
            sockets.append((end, child_end))
            child_fds += [child_end.fileno(), out.fd, back.fd]
        command = [*heap.LAUNCHER, sys.executable, "-m", "edge_offload.companion.worker", *map(str, child_fds)]
        self._process = subprocess.Popen(
            [*command, *self._arguments],
            pass_fds=child_fds,
            env=heap.executor_environment(os.environ),
            stdin=subprocess.DEVNULL,
        )
        for _, child_end in sockets:
            child_end.close()
        self._channels = channels
        try:
            facts, _ = self.run_operation("module", "device")
        except BaseException:
            self.close()
            raise
        for end, _ in sockets:
            end.settimeout(None)
        self.device = torch.device(facts["device"])
        self.fingerprint: Dict[str, Any] = facts["fingerprint"]

    def run_operation(
        self, channel: str, operation: str, tensors: Sequence[torch.Tensor] = (), **facts: Any
    ) -> Tuple[Dict[str, Any], List[torch.Tensor]]:
        """Send a request on ``channel`` (see :meth:`TensorChannel.request`).

        Raises:
            LinkLost: the process has ended.
            EdgeOffloadError: the process raised it.
        """
        try:
            return self._channels[channel].request(operation, tensors, **facts)
        except LinkLost:
            code = self._process.poll()
            ended = "" if code is None else f", exit code {code}"
            raise LinkLost(f"the executor process beside this one is gone{ended}") from None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        for channel in self._channels.values():
            channel.headers.close()
            channel.out.close()
            channel.back.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def choose_device(device: str, engine: str = EAGER, threads: int = 0) -> Tuple[torch.device, Optional[ExecutorProcess]]:
    """Choose the device for a program's local compute, and start an executor process where one is needed.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:n``. Under the virtual device ``auto`` means the process's choice.
        engine: under the virtual device, every engine but torch runs in the process.
        threads: of the process.

    Returns:
        The device and the process; None: the program computes by itself.

    Raises:
        BadInput, Unsupported: no such device here.
        LinkLost: the process did not start.
    """
    if not devices.Virtual.owner or (devices.Virtual.tested and device != devices.AUTO):
        return devices.pick_device(device), None
    if engine == EAGER and (device == "cpu" or (device == devices.AUTO and not torch_facts.built_with_cuda())):
        return devices.pick_device("cpu"), None
    process = ExecutorProcess(device, threads)
    if process.device.type == "cpu" and engine == EAGER:
        process.close()
        return torch.device("cpu"), None
    return process.device, process
