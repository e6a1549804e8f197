"""A detector of no weight for tests: a box around the brightest spot, and the pixels above half of it."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import torch
from torch import nn

from edge_offload.models.detections import Detections
from edge_offload.models.detector import Detector


class Brightest(nn.Module):
    """Column and row of the brightest spot, and how bright it is."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.full((1, 3, 5, 5), 1 / 75))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        blurred = nn.functional.conv2d(image[None].float(), self.kernel, padding=2)
        place, width = blurred.argmax(), blurred.shape[-1]
        return torch.stack((place % width, place // width, blurred.max()))


class Spot(Detector):
    """One spot; an odd answer where the image is dark everywhere."""

    labels = ("none", "spot")
    size = 128

    def interpret(self, outputs: Sequence[torch.Tensor], placement: Any) -> Any:
        column, row, bright = outputs[0].tolist()
        if bright < 100:
            return "nothing"
        box = placement.boxes_to_image(np.array([[column - 9, row - 9, column + 9, row + 9]]))
        mask = np.zeros((placement.image_height, placement.image_width), dtype=np.uint8)
        x0, top, right, bottom = box[0].astype(int)
        mask[top:bottom, x0:right] = 2
        return Detections(box, np.array([bright / 255]), np.array([1]), mask)


def make() -> nn.Module:
    """The factory: ``tiny_detector:make``."""
    return Brightest()
