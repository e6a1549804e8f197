"""The network of the chaos runs: small, deterministic, and with an output that any wrong bit changes."""

from __future__ import annotations

from typing import List, Tuple

import torch
from torch import nn

SIZE = 96
INPUTS = 16


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=2), nn.SiLU(), nn.Conv2d(12, 16, 3, stride=2), nn.SiLU(), nn.Conv2d(16, 8, 3)
        )

    def forward(self, image: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.batch(image[None])

    def batch(self, images: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Several pictures, as a pool takes them."""
        maps = self.body(images.float() / 255)
        return maps.mean(dim=(2, 3)), maps.flatten(1)[:, :4096].clone()


def factory() -> nn.Module:
    """The module; both sides build the same weights."""
    return _Net().eval()


class _Nothing(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.flatten()[:16].clone()


def nothing() -> nn.Module:
    """A module that computes next to nothing: what is left is what a server does around it."""
    return _Nothing().eval()


def make_pictures(size: int = SIZE) -> List[torch.Tensor]:
    """The pictures that the frames show in turn: noise, so that no codec makes them small; ``size`` pixels a side."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (3, size, size), dtype=torch.uint8, generator=generator) for _ in range(INPUTS)]
