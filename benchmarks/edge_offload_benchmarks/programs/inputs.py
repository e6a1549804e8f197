"""Fresh inputs of an inference, drawn on the host, and modules made ready."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def draw_noise(number: int, *shape: int) -> torch.Tensor:
    """Uniform numbers in [0, 1), float32, for inference ``number``."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1000 + number))


def draw_tokens(number: int, length: int, vocabulary: int, rows: int = 1) -> torch.Tensor:
    """Token ids [rows, length], int64."""
    return torch.randint(3, vocabulary, (rows, length), generator=torch.Generator().manual_seed(2000 + number))


def length_of(number: int, lengths: Any = (7, 12, 9, 17)) -> int:
    """A length that comes again every few inferences."""
    return int(lengths[number % len(lengths)])


def prepare_module(module: nn.Module, device: str) -> Any:
    """Return the module in evaluation mode on the device."""
    return module.eval().to(device)
