"""The random generators of one session: number 0 is torch's own where the device is the CPU."""

from __future__ import annotations

from typing import Dict, Mapping

import torch

from edge_offload.errors import BadInput

MOST = 1024


class Generators:
    """Made when they are first asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._found: Dict[int, torch.Generator] = {}

    def get(self, number: int) -> torch.Generator:
        """Generator ``number``.

        Raises:
            BadInput: the session has too many.
        """
        found = self._found.get(number)
        if found is None:
            if len(self._found) >= MOST:
                raise BadInput("the session uses too many random generators")
            own = number == 0 and self._device.type == "cpu"
            found = self._found[number] = torch.default_generator if own else torch.Generator(device=self._device)
        return found

    def states(self) -> Dict[int, torch.Tensor]:
        """Of all of them, number 0 included."""
        self.get(0)
        return {number: found.get_state() for number, found in self._found.items()}

    def restore(self, states: Mapping[int, torch.Tensor]) -> None:
        """Put states back."""
        for number, state in states.items():
            self.get(number).set_state(state)
