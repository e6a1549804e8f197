"""An emulated device: it answers after the time of a table, with outputs that were computed once for such shapes.

It shows how many robots an absent device could serve. Results are not those of the frames, and the
engine's name says so (:attr:`~edge_offload.execute.module.Execution.engine`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

import torch
from torch import nn

from edge_offload.execute.engines.base import ENGINE
from edge_offload.execute.module import Execution, ModuleExecutor
from edge_offload.execute.tensors import specs_of

#: What the device is called by: ``emulated:TABLE.csv``.
EMULATED = "emulated"
#: Shapes whose outputs are cached.
MAX_CACHED = 64


@dataclass(frozen=True)
class Emulation:
    """A device to emulate.

    Attributes:
        name: what it is called wherever results are told of: ``emulated:TABLE.csv``.
        latencies_s: of a batch of 1, 2, …; seconds.
    """

    name: str
    latencies_s: Tuple[float, ...]


class EmulatedExecutor(ModuleExecutor):
    """Computes on the CPU the first time that it sees shapes; from then on it only takes the table's time.

    Args:
        module: what is emulated.
        device: that is emulated.
    """

    def __init__(self, module: nn.Module, device: Emulation) -> None:
        super().__init__(module)
        self.where = device.name
        self.latencies_s = device.latencies_s
        self._cached: Dict[Tuple[object, ...], Tuple[torch.Tensor, ...]] = {}

    @property
    def engine(self) -> str:
        return self.where

    def engine_facts(self) -> Dict[str, str]:
        return {ENGINE: self.where}

    def engine_state(self) -> Tuple[str, bool]:
        return f"{self.where}: outputs are not those of the frames", True

    def run(self, inputs: Sequence[torch.Tensor]) -> Execution:
        return self.run_batch([inputs])[0]

    def run_batch(self, frames: Sequence[Sequence[torch.Tensor]]) -> List[Execution]:
        """Runs up to as many frames as the table has sizes; each execution has the time of the batch."""
        outputs = [self._outputs_for(inputs) for inputs in frames]
        size = len(frames)
        taken_s, end_s = self.latencies_s[size - 1], time.monotonic() + self.latencies_s[size - 1]
        while time.monotonic() < end_s:
            time.sleep(max(0.0, end_s - time.monotonic()))
        label = self.where if size == 1 else f"{self.where} batch {size}"
        return [Execution(one, taken_s, label) for one in outputs]

    def _outputs_for(self, inputs: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
        specs = tuple(specs_of(inputs))
        outputs = self._cached.get(specs)
        if outputs is None:
            outputs = super().run(inputs).outputs
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[specs] = outputs
        return outputs
