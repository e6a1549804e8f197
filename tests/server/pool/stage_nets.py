"""A small network in which stages can be tried fast."""

from __future__ import annotations

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
