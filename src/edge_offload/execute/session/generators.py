"""Random generators of one session: number 0 is the device's default generator."""

from __future__ import annotations

from typing import Dict, Mapping

import torch

from edge_offload.errors import BadInput


class Generators:
    """Random generators of a session, each made on first use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generators: Dict[int, torch.Generator] = {}

    def get_generator(self, number: int) -> torch.Generator:
        """Generator ``number``.

        Raises:
            BadInput: the session has too many.
        """
        generator = self._generators.get(number)
        if generator is None:
            if len(self._generators) >= 1024:
                raise BadInput("the session uses too many random generators")
            generator = self._generators[number] = (
                default_generator(self._device) if number == 0 else torch.Generator(device=self._device)
            )
        return generator

    def read_states(self) -> Dict[int, torch.Tensor]:
        """States of all generators, number 0 included."""
        self.get_generator(0)
        return {number: generator.get_state() for number, generator in self._generators.items()}

    def restore_states(self, states: Mapping[int, torch.Tensor]) -> None:
        """Put states back."""
        for number, state in states.items():
            self.get_generator(number).set_state(state)


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that kernels on ``device`` draw from if they are given none."""
    if device.type == "cpu":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
