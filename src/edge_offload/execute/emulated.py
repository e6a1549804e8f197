"""An emulated device: it answers after the time of a table, with outputs that were computed once for such shapes.

For trying out how many robots a device could serve that is not at hand. Results are not those of the frames; whoever is
told what computed them is told so (:attr:`~edge_offload.execute.module.Execution.engine`).
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
#: Shapes that outputs are kept of.
MAX_KEPT = 64


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
        self._kept: Dict[Tuple[object, ...], Tuple[torch.Tensor, ...]] = {}

    @property
    def engine(self) -> str:
        """See :class:`~edge_offload.execute.module.ModuleExecutor`."""
        return self.where

    def engine_facts(self) -> Dict[str, str]:
        """See :class:`~edge_offload.execute.module.ModuleExecutor`."""
        return {ENGINE: self.where}

    def engine_state(self) -> Tuple[str, bool]:
        """See :class:`~edge_offload.execute.module.ModuleExecutor`."""
        return f"{self.where}: outputs are not those of the frames", True

    def run(self, inputs: Sequence[torch.Tensor]) -> Execution:
        """See :class:`~edge_offload.execute.module.ModuleExecutor`."""
        return self.run_batch([inputs])[0]

    def run_batch(self, frames: Sequence[Sequence[torch.Tensor]]) -> List[Execution]:
        """One inference for each of up to as many frames as the table knows; all have the time of the batch."""
        outputs = [self._outputs(inputs) for inputs in frames]
        size = len(frames)
        taken_s, end_s = self.latencies_s[size - 1], time.monotonic() + self.latencies_s[size - 1]
        while time.monotonic() < end_s:
            time.sleep(max(0.0, end_s - time.monotonic()))
        words = self.where if size == 1 else f"{self.where} batch {size}"
        return [Execution(one, taken_s, words) for one in outputs]

    def _outputs(self, inputs: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
        specs = tuple(specs_of(inputs))
        found = self._kept.get(specs)
        if found is None:
            found = super().run(inputs).outputs
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[specs] = found
        return found
