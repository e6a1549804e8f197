"""Starting the executor process and asking it; when there is one at all.

Without the virtual device a program owns its GPU itself. With it torch's CUDA is not there in the program's process:
one process beside it owns the GPU, and whatever engines are to compute.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from edge_offload.companion.memory import Lane, Region
from edge_offload.errors import LinkLost
from edge_offload.execute import devices, heap
from edge_offload.execute.engines.base import EAGER
from edge_offload.native import torch_facts
from edge_offload.protocol.channel import Channel

START_S = 240.0
#: What is asked beside each other, in a thread each of the process.
LANES = ("module", "take", "advance", "fetch")


class ExecutorProcess:
    """A process beside this one that computes networks and halves of plans. Thread-safe.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:n``.
        threads: torch's threads there; 0 leaves them.

    Attributes:
        device: what it computes on.
        fingerprint: of that.

    Raises:
        LinkLost: it did not start.
        BadInput, Unsupported: no such device.
    """

    def __init__(self, device: str, threads: int = 0) -> None:
        self._asked = ["--device", device, "--threads", str(threads)]
        self.start()

    def start(self) -> None:
        """Start it, the first time or again; blocks for seconds.

        Raises:
            LinkLost, BadInput, Unsupported: as above.
        """
        lanes: Dict[str, Lane] = {}
        sockets, theirs = [], []
        for name in LANES:
            ours, other = socket.socketpair()
            out, back = Region(), Region()
            lanes[name] = Lane(Channel(ours), out, back)
            ours.settimeout(START_S)
            sockets.append((ours, other))
            theirs += [other.fileno(), out.fd, back.fd]
        command = [*heap.LAUNCHER, sys.executable, "-m", "edge_offload.companion.worker", *map(str, theirs)]
        self._process = subprocess.Popen(
            [*command, *self._asked],
            pass_fds=theirs,
            env=heap.executor_environment(os.environ),
            stdin=subprocess.DEVNULL,
        )
        for _, other in sockets:
            other.close()
        self._lanes = lanes
        try:
            facts, _ = self.ask("module", "device")
        except BaseException:
            self.close()
            raise
        for ours, _ in sockets:
            ours.settimeout(None)
        self.device = torch.device(facts["device"])
        self.fingerprint: Dict[str, Any] = facts["fingerprint"]

    def ask(
        self, lane: str, what: str, tensors: Sequence[torch.Tensor] = (), **facts: Any
    ) -> Tuple[Dict[str, Any], List[torch.Tensor]]:
        """See :meth:`Lane.ask`.

        Raises:
            LinkLost: it has ended.
            EdgeOffloadError: what it raised.
        """
        try:
            return self._lanes[lane].ask(what, tensors, **facts)
        except LinkLost:
            code = self._process.poll()
            ended = "" if code is None else f", exit code {code}"
            raise LinkLost(f"the executor process beside this one is gone{ended}") from None

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def close(self) -> None:
        """End it."""
        for lane in self._lanes.values():
            lane.channel.close()
            lane.out.close()
            lane.back.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def choose(device: str, engine: str = EAGER, threads: int = 0) -> Tuple[torch.device, Optional[ExecutorProcess]]:
    """Where a program computes by itself, and the process that does it, if it is not the program's own.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:n``. Under the virtual device ``auto`` asks such a process.
        engine: what computes; under the virtual device another than torch computes there, too.
        threads: of the process.

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
