"""A people estimator of no weight for tests: finds the brightest spot of the image, and takes as long as it is told."""

from __future__ import annotations

import time
from typing import Sequence, Tuple

import numpy as np
import torch
from torch import nn

from edge_offload.models.base import PeopleModule, PersonEstimator
from edge_offload.models.letterbox import Letterbox
from edge_offload.models.people import People

SIDE = 40.0
"""Pixels of the network's input: width and height of every person found."""


class Blur(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.kernel = nn.Parameter(torch.full((1, 3, 5, 5), 1 / 75))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return nn.functional.conv2d(image[None].float(), self.kernel, padding=2)


class Brightest(nn.Module):
    def forward(self, blurred: torch.Tensor) -> Tuple[torch.Tensor]:
        row, column = divmod(int(blurred.argmax()), blurred.shape[-1])
        return (torch.tensor([float(column), float(row), float(blurred.max()) / 255]),)


class TinyPeople(PersonEstimator):
    """One person around the brightest spot; nobody in an image that is dark everywhere."""

    def decode(self, outputs: Sequence[torch.Tensor], placement: Letterbox) -> People:
        x, y, score = outputs[0].tolist()
        if score < 0.5:
            return People.empty()
        box = np.array([[x - SIDE / 2, y - SIDE / 2, x + SIDE / 2, y + SIDE / 2]], dtype=np.float32)
        # head to foot, left and right of the spot
        body = np.stack([8.0 * (1 - 2 * (np.arange(17) % 2)), np.linspace(-15, 15, 17)], axis=1)
        points = (np.array([x, y]) + body).astype(np.float32)[None]
        keypoints = np.concatenate([placement.to_image(points), np.full((1, 17, 1), score)], axis=2)
        return People(placement.boxes_to_image(box), np.array([score]), keypoints)


def make(seconds: float = 0.0) -> PersonEstimator:
    """The factory: ``tiny_people:make``."""
    module = PeopleModule(Blur(seconds), Brightest())
    return TinyPeople("tiny", module, size=128, stride=32, trained=True)
