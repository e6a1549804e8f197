"""The undo log of a speculative step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Tuple

import torch

from edge_offload.ir.operators import Layout
from edge_offload.ir.trace.keys import DTYPE_NUMBERS
from edge_offload.ir.trace.storage import StorageBuffer


@dataclass
class Undo:
    """Undo log of one speculative step: storages as they were, new storages, states of generators."""

    overwritten: List[Tuple[StorageBuffer, torch.Tensor]] = field(default_factory=list)
    created: List[int] = field(default_factory=list)
    generators: Dict[int, torch.Tensor] = field(default_factory=dict)

    def save_bytes(self, buffer: StorageBuffer) -> None:
        """Keep the bytes of a storage that is about to be written."""
        self.overwritten.append((buffer, bytes_of(buffer).clone()))

    def restore_bytes(self) -> None:
        """Put back what was overwritten, and the size that it had."""
        for buffer, saved in self.overwritten:
            nbytes = saved.numel()
            if buffer.storage.nbytes() != nbytes:
                buffer.resize(nbytes)
            with torch.inference_mode():
                bytes_of(buffer).copy_(saved)


def bytes_of(buffer: StorageBuffer) -> torch.Tensor:
    """All bytes of a storage, as a tensor of its own memory."""
    return buffer.view(Layout(DTYPE_NUMBERS[torch.uint8], 0, (buffer.storage.nbytes(),), (1,), 0))
