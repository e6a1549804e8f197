"""What a speculative step did, so that it can be taken back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Tuple

import torch

from edge_offload.capture.entries import Slot


@dataclass
class Undo:
    """How to take one speculative step back."""

    overwritten: List[Tuple[Slot, torch.UntypedStorage]] = field(default_factory=list)
    created: List[int] = field(default_factory=list)
    generators: Dict[int, torch.Tensor] = field(default_factory=dict)

    def restore(self) -> None:
        """Put back what was overwritten."""
        for slot, saved in self.overwritten:
            if slot.storage.nbytes() != saved.nbytes():
                slot.storage.resize_(saved.nbytes())
            slot.storage.copy_(saved)
