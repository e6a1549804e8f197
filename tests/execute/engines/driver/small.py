"""A small network and pictures for it."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import nn


class Small(nn.Module):
    """Two convolutions of an image uint8 [3, h, w]; two outputs of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 3, stride=2))

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        maps = self.body(image.unsqueeze(0) / 255)
        return maps, maps.amax((2, 3))


def picture(seed: int) -> torch.Tensor:
    """Noise, uint8 [3, 24, 32]."""
    return torch.randint(0, 256, (3, 24, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
