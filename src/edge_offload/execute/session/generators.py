"""Random generators of one session: number 0 is the device's default generator."""

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
            found = self._found[number] = (
                default_generator(self._device) if number == 0 else torch.Generator(device=self._device)
            )
        return found

    def states(self) -> Dict[int, torch.Tensor]:
        """Of all of them, number 0 included."""
        self.get(0)
        return {number: found.get_state() for number, found in self._found.items()}

    def restore(self, states: Mapping[int, torch.Tensor]) -> None:
        """Put states back."""
        for number, state in states.items():
            self.get(number).set_state(state)


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that kernels on ``device`` draw from if they are given none."""
    if device.type == "cpu":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
