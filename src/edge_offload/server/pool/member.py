"""What runs on a GPU of the pool: one stage of a network, real or emulated. An actor of Ray, one for each GPU or share.

An emulated member takes the time of its table, dilated, and passes as many bytes as the network would; its outputs are
nobody's results, and its answers say that they are emulated.
"""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from edge_offload.errors import BadInput

#: Environment of a member: the folder of its table, and by how much its times are dilated.
TABLE, TIMES = "EDGE_OFFLOAD_POOL_TABLE", "EDGE_OFFLOAD_POOL_TIMES"


class Member:
    """One stage.

    Args:
        model: name, options, state_hash and cuts of the network, as in the profile's folder.
        gpu: class of this GPU.
        parts: into which it is divided.
        first, end: blocks of the stage.
        threads: torch's.
        batches: sizes that are run once before the first request.

    Raises:
        BadInput: other weights or another network than the plan is for, or the table lacks it.
    """

    def __init__(
        self, model: Dict[str, Any], gpu: str, parts: int, first: int, end: int, threads: int, batches: int
    ) -> None:
        self._emulated = os.environ.get(TABLE, "")
        if self._emulated:
            self._emulate(model["name"], gpu, parts, first, end)
            return
        import torch

        from edge_offload.models import registry
        from edge_offload.server.pool import stages

        torch.set_num_threads(threads)
        module = registry.build_module(model["name"], **model["options"])
        if registry.state_hash(module) != model["state_hash"]:
            raise BadInput(
                f"the plan is for other weights of {model['name']}",
                remedy="install the same weights everywhere, and measure with 'edge-offload pool profile'",
            )
        cuts = stages.Cuts.parse(model["cuts"])
        self._stage = stages.Stage(stages.BatchedNetwork(module, cuts.inputs), cuts, first, end)
        for batch in range(1, batches + 1):
            self._stage.warm_up(batch)

    def ready(self) -> int:
        """Answers once the stage can run; its process."""
        return os.getpid()

    def run(self, batch: int, arrays: Sequence[Any]) -> Tuple[float, List[Any]]:
        """Seconds, and what is alive behind the stage."""
        began = time.perf_counter()
        if self._emulated:
            end = began + self._seconds[batch - 1]
            while time.perf_counter() < end:
                time.sleep(max(0.0, end - time.perf_counter()))
            passed = [("uint8", (len(self._passes) * batch,), (0,), np.tile(self._passes, batch))]
            return time.perf_counter() - began, passed
        found = self._stage.run(batch, arrays)
        return time.perf_counter() - began, found

    def _emulate(self, name: str, gpu: str, parts: int, first: int, end: int) -> None:
        from edge_offload.server.pool import profile

        table = profile.load(pathlib.Path(self._emulated))
        if name not in table or parts not in table[name].latency_s.get(gpu, {}):
            raise BadInput(f"{self._emulated} has no times of {name} on 1/{parts} of {gpu}")
        network = table[name]
        self._seconds = network.stage_s(gpu, parts, first, end) * float(os.environ.get(TIMES, "1"))
        size = int(network.cut_bytes[end - 1]) if end < network.blocks else 1
        self._passes = np.zeros(size, np.uint8)
