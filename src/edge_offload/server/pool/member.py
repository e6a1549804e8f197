"""A member of the pool, as Ray's actors run it: one GPU, or a share of one.

It has the whole network and runs any of its blocks on request, so that another plan needs no other process. It outlives
the driver that started it, and waits for the next one for a while. An emulated member takes the time of its table,
dilated, and passes on as many bytes as the network would; its outputs are no results, and its answers say so.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from edge_offload.errors import BadInput, DeviceLost
from edge_offload.server.pool.accelerators import CPU_LABEL, DEVICES

#: Environment of a member: the folder of its table, and the dilation of its times.
TABLE, TIMES = "EDGE_OFFLOAD_POOL_TABLE", "EDGE_OFFLOAD_POOL_TIMES"

#: Blocks of a member: parts that its GPU is divided into, first block, end block (excluded).
Part = Tuple[int, int, int]


@contextlib.contextmanager
def _lost_with_its_gpu() -> Iterator[None]:
    """End this process if its GPU fails inside: it could not use it again, and another one is started."""
    try:
        yield
    except DeviceLost as error:
        print(f"this member ends: {error}", file=sys.stderr, flush=True)
        os._exit(1)


class Member:
    """Runs stages.

    Args:
        model: name, options, state_hash and cuts of the network, as in the profile's folder.
        gpu: class of this GPU.
        threads: torch's.
        batches: largest size that is recorded before the first request.
        number: of the GPU on its machine; the environment's :data:`~.accelerators.DEVICES` names its device.

    Raises:
        BadInput: other weights or another network than the plan is for, or the table lacks it.
        Unsupported: the device is not there.
    """

    def __init__(self, model: Dict[str, Any], gpu: str, threads: int, batches: int, number: int = 0) -> None:
        self._gpu = gpu
        self._emulated = os.environ.get(TABLE, "")
        self._stages: Dict[Part, Any] = {}
        self._idle_s = 0.0
        if self._emulated:
            self._load_table(model["name"])
        else:
            names = os.environ.get(DEVICES, CPU_LABEL).split(",")
            self._build_network(model, threads, batches, names[number % len(names)])
        threading.Thread(target=self._end_orphan, daemon=True).start()

    def ready(self) -> int:
        """Return its process id once the network is loaded and while its machine's object store answers.

        A member lives on for a second or two after its machine's raylet. It ends when it turns to the store.
        """
        self._idle_s = 0.0
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            ray.put(0)
        return os.getpid()

    def prepare(self, part: Part, batch: int) -> None:
        """Run these blocks once at each size up to ``batch``: first runs are slow."""
        self._idle_s = 0.0
        stage = self._stage_of(part)
        with _lost_with_its_gpu():
            for size in range(1, 1 if self._emulated else batch + 1):
                stage.warm_up(size)

    def run(self, part: Part, batch: int, arrays: Sequence[Any]) -> Tuple[float, List[Any]]:
        """Return seconds, and the values that are alive behind the stage."""
        self._idle_s = 0.0
        started = time.perf_counter()
        stage = self._stage_of(part)
        if self._emulated:
            seconds, passes = stage
            end = started + seconds[batch - 1]
            while time.perf_counter() < end:
                time.sleep(max(0.0, end - time.perf_counter()))
            outputs = [("uint8", (len(passes) * batch,), (0,), np.tile(passes, batch))]
            return time.perf_counter() - started, outputs
        with _lost_with_its_gpu():
            outputs = stage.run(batch, arrays)
        return time.perf_counter() - started, outputs

    def fingerprint(self) -> Dict[str, Any]:
        """Return the facts that decide the bits of its results, its device and visible GPUs; empty: emulated."""
        if self._emulated:
            return {}
        from edge_offload.execute.fingerprint import fingerprint_of

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        return {**fingerprint_of(self._network.device), "where": str(self._network.device), "visible": visible}

    def _build_network(self, model: Dict[str, Any], threads: int, batches: int, device: str) -> None:
        import torch

        from edge_offload.execute import devices
        from edge_offload.models import registry
        from edge_offload.server.pool import stages

        torch_device = devices.fix_kernel_choice(devices.pick_device(device))
        devices.select_device(torch_device)
        torch.set_num_threads(threads)
        module = registry.build_module(model["name"], **model["options"])
        if registry.state_hash(module) != model["state_hash"]:
            raise BadInput(
                f"the plan is for other weights of {model['name']}",
                remedy="install the same weights everywhere, and measure with 'edge-offload pool profile'",
            )
        self._cuts = stages.Cuts.parse(model["cuts"])
        self._network: Any = stages.BatchedNetwork(module, self._cuts.inputs, torch_device)
        for batch in range(1, batches + 1):
            self._network.runner_for(batch)

    def _load_table(self, name: str) -> None:
        from edge_offload.server.pool import profile

        table = profile.load_profiles(pathlib.Path(self._emulated))
        if name not in table or self._gpu not in table[name].latency_s:
            raise BadInput(f"{self._emulated} has no times of {name} on {self._gpu}")
        self._network = table[name]

    def _stage_of(self, part: Part) -> Any:
        """Return a stage; of an emulated member, seconds by batch - 1 and the bytes it passes on for one frame."""
        part = (part[0], part[1], part[2])
        if part not in self._stages:
            parts, first, end = part
            network = self._network
            if self._emulated:
                if parts not in network.latency_s[self._gpu]:
                    raise BadInput(f"{self._emulated} has no times of {network.name} on 1/{parts} of {self._gpu}")
                seconds = network.stage_seconds(self._gpu, parts, first, end) * float(os.environ.get(TIMES, "1"))
                size = int(network.cut_bytes[end - 1]) if end < network.blocks else 1
                self._stages[part] = seconds, np.zeros(size, np.uint8)
            else:
                from edge_offload.server.pool.stages import StageRunner

                self._stages[part] = StageRunner(network, self._cuts, first, end)
        return self._stages[part]

    def _end_orphan(self) -> None:
        """End the process if no driver calls any more, e.g. because it ended along with its front."""
        step_s = 5.0
        # seconds in which it ran
        while self._idle_s < 60.0:
            time.sleep(step_s)
            self._idle_s += step_s  # not by the clock: a stopped process has not been abandoned
        os._exit(0)
