"""The undo log of a speculative step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Tuple

import torch

from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.calls import StorageBuffer
from edge_offload.ir.trace.keys import DTYPE_NUMBERS


@dataclass
class Undo:
    """How to roll one speculative step back: storages as they were, what was made, states of generators."""

    overwritten: List[Tuple[StorageBuffer, torch.Tensor]] = field(default_factory=list)
    created: List[int] = field(default_factory=list)
    generators: Dict[int, torch.Tensor] = field(default_factory=dict)

    def save(self, slot: StorageBuffer) -> None:
        """Keep the bytes of a storage that is about to be written."""
        self.overwritten.append((slot, slot.view(_bytes(slot.storage.nbytes())).clone()))

    def restore(self) -> None:
        """Put back what was overwritten, and the size that it had."""
        for slot, saved in self.overwritten:
            nbytes = saved.numel()
            if slot.storage.nbytes() != nbytes:
                slot.resize(nbytes)
            with torch.inference_mode():
                slot.view(_bytes(nbytes)).copy_(saved)


def _bytes(count: int) -> Layout:
    """All of a storage."""
    return Layout(DTYPE_NUMBERS[torch.uint8], 0, (count,), (1,), 0)
