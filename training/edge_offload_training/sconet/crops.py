"""Crops of scenes for training: any number of them, each a function of the seed and the step alone."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, List, Tuple

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import IGNORED

Source = Callable[[int], Tuple[Array, Array]]
"""Number -> uint8 [x, y, 32] occupancy and uint8 [x, y, 32] labels."""


@dataclass(frozen=True)
class CropConfig:
    """Configuration of the crops of a step.

    Attributes:
        batch: scenes per step.
        crop: cells, side of the square that the U-Net sees; a multiple of 16.
        window: cells, side of the square within it where the 3D head works and the loss is taken.
        ring: cells at the border of the window without loss: the head sees no neighbours there.
        reuse: steps that draw their crops from the same scenes. To make a scene takes as long as a step.
    """

    batch: int = 2
    crop: int = 128
    window: int = 48
    ring: int = 3
    reuse: int = 10


@dataclass(frozen=True, eq=False)
class Batch:
    """Crops for one step.

    Attributes:
        occupancy: float [b, crop, crop, 32].
        labels: int64 [b, window, window, 32]; ``IGNORED`` where there is no loss.
        around: uint8 [b, crop, crop, 32]; the same labels in the whole crop.
        corners: of the windows within their crops.
    """

    occupancy: torch.Tensor
    labels: torch.Tensor
    around: torch.Tensor
    corners: List[Tuple[int, int]]

    def cut_windows(self, volume: torch.Tensor) -> torch.Tensor:
        """The windows of a float [b, f, crop, crop, 32] volume, as float [b, f, window, window, 32]."""
        side = self.labels.shape[1]
        parts = [volume[i, :, x : x + side, y : y + side] for i, (x, y) in enumerate(self.corners)]
        return torch.stack(parts)


class Crops:
    """Batches by step number, from a source of scenes."""

    def __init__(self, source: Source, config: CropConfig, seed: int, count: int = 0) -> None:
        self.config = config
        self._seed = seed
        self._count = count
        self._scene = functools.lru_cache(maxsize=2 * config.batch)(source)

    def batch(self, step: int) -> Batch:
        """The batch of this step."""
        parts = [self._make_crop(step, index) for index in range(self.config.batch)]
        return Batch(
            torch.from_numpy(np.stack([part[0] for part in parts])).float(),
            torch.from_numpy(np.stack([part[1] for part in parts])).long(),
            torch.from_numpy(np.stack([part[2] for part in parts])),
            [part[3] for part in parts],
        )

    def _make_crop(self, step: int, index: int) -> Tuple[Array, Array, Array, Tuple[int, int]]:
        config = self.config
        number = step // config.reuse * config.batch + index
        if self._count:
            # a fixed set of scenes: in another order each time round
            turn, place = divmod(number, self._count)
            number = int(np.random.default_rng((self._seed, 7, turn)).permutation(self._count)[place])
        occupancy, labels = self._scene(number)
        random = np.random.default_rng((self._seed, 8, step, index))
        x, y = _draw_corner(occupancy.any(axis=2), config.crop, random)
        occupancy, labels = (grid[x : x + config.crop, y : y + config.crop] for grid in (occupancy, labels))
        if random.random() < 0.5:
            occupancy, labels = occupancy[::-1], labels[::-1]
        if random.random() < 0.5:
            occupancy, labels = occupancy[:, ::-1], labels[:, ::-1]
        if random.random() < 0.5:
            occupancy, labels = occupancy.transpose(1, 0, 2), labels.transpose(1, 0, 2)
        a, b = _draw_corner(((labels > 0) & (labels != IGNORED)).any(axis=2), config.window, random)
        inner = np.full((config.window, config.window, labels.shape[2]), IGNORED, dtype=np.uint8)
        ring = slice(config.ring, config.window - config.ring)
        inner[ring, ring] = labels[a : a + config.window, b : b + config.window][ring, ring]
        return np.ascontiguousarray(occupancy), inner, np.ascontiguousarray(labels), (a, b)


def _draw_corner(columns: Array, side: int, random: np.random.Generator) -> Tuple[int, int]:
    """A corner of a square that holds one of the marked ``columns`` (bool [x, y]), at any place in it."""
    occupied = np.flatnonzero(columns)
    place = int(occupied[random.integers(len(occupied))]) if len(occupied) else int(random.integers(columns.size))
    x, y = (
        int(random.integers(max(0, at - side + 1), min(at, cells - side) + 1))
        for at, cells in zip(divmod(place, columns.shape[1]), columns.shape)
    )
    return x, y
