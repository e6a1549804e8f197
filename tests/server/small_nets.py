"""Small networks that a test's server is allowed to build by name."""

from __future__ import annotations

import os
import pathlib
import sys
import time

import torch
from torch import nn

GATE = "EDGE_OFFLOAD_TEST_GATE"


def net(seed: int = 0) -> nn.Module:
    """A random small network on uint8 [3, H, W]: its layers are drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    torch.manual_seed(seed)
    layers: list = []
    channels = 3
    for _ in range(draw(1, 4)):
        out = 4 * draw(1, 6)
        kernel = draw(0, 2) * 2 + 1
        layers.append(nn.Conv2d(channels, out, kernel, stride=draw(1, 2), padding=kernel // 2))
        layers.append([nn.ReLU(), nn.SiLU(), nn.BatchNorm2d(out), nn.Sigmoid()][draw(0, 3)])
        channels = out
    return Net(nn.Sequential(*layers), nn.Linear(channels, draw(2, 40)))


class Net(nn.Module):
    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, image: torch.Tensor):
        maps = self.body(image[None].float() / 255)
        pooled = self.head(maps.mean(dim=(2, 3)))
        return maps, pooled, pooled.topk(2).indices, maps[maps > maps.mean()][:50]


def dense(seed: int = 0) -> nn.Module:
    """A random small network on float [n, 3, H, W] whose sizes do not depend on data."""
    torch.manual_seed(seed)
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2)
    return nn.Sequential(first, nn.SiLU(), second, nn.ReLU(), nn.Conv2d(16, 4, 1))


class Slow(nn.Module):
    """Doubles its input after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x * 2


def slow(seconds: float = 0.3) -> nn.Module:
    return Slow(seconds)


class Gated(nn.Module):
    """Doubles its input, in a server once the test opens the gate of that server (see ``server_rig.Gate``)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = pathlib.Path(os.environ.get(GATE, ""))
        while GATE in os.environ and gate.exists():
            gate.with_suffix(".waits").touch()
            time.sleep(0.005)
        return x * 2


def gated() -> nn.Module:
    return Gated()


class Moody(nn.Module):
    """Fails on negative input, tries to end the process on input above 100."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("negative input")
        if bool((x > 100).any()):
            sys.exit(3)
        return x + 1


def moody() -> nn.Module:
    return Moody()


class Counting(nn.Module):
    """Writes to its own buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


def counting() -> nn.Module:
    return Counting()


def drifting(seed: float = 0.0) -> nn.Module:
    """Other weights every time: robot and server can never agree."""
    torch.seed()
    return nn.Linear(2, 2)


class Many(nn.Module):
    """Every dtype that travels, an empty tensor and a scalar."""

    def forward(self, x: torch.Tensor):
        kinds = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
        special = torch.tensor([float("nan"), -0.0, float("inf"), 1e-40])
        return (*[x.to(kind) for kind in kinds], x[:0], x.sum(), special, x.t())


def many() -> nn.Module:
    return Many()
