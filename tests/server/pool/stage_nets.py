"""A small network in which stages can be tried fast."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import nn


def chain(width: int = 8, seed: int = 0) -> nn.Module:
    """Convolutions in a row on float [n, 3, 32, 32], and a head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(5):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.SiLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5)).eval()


class Parted(nn.Module):
    """A dense part with batches, and a read-out with a buffer of its own, on float [1, 3, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
            self.readout = _Scaled()

    def dense_part(self) -> Tuple[nn.Module, nn.Module]:
        return self.network, self.readout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.readout(self.network(x))
        return scaled


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale
