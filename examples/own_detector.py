"""A detector of your own for detector_node, here of spots that stand out: ``model:=own_detector:make``."""

import torch
from torch import nn
from torch.nn import functional

from edge_offload.models.detector import Boxes


class Network(nn.Module):
    """What is worth offloading: uint8 [3, H, W] RGB in; boxes, scores and classes out, as many as there are."""

    def forward(self, image):
        grey = functional.avg_pool2d(image.float().mean(0, keepdim=True)[None] / 255, 4)
        contrast = (grey - functional.avg_pool2d(grey, 9, 1, 4)).abs()
        found = functional.avg_pool2d(contrast, 4)
        peaks = (found == functional.max_pool2d(found, 5, 1, 2)) & (found > 0.1)
        rows, columns = peaks[0, 0].nonzero().unbind(1)
        corners = torch.stack((columns, rows), 1) * 16.0
        scores = (found[0, 0, rows, columns] * 4).clamp(max=1)
        return torch.cat((corners, corners + 16), 1), scores, torch.zeros_like(rows)


class Spots(Boxes):
    """Prepares images (letterbox, inherited) and takes boxes back to the camera's pixels (inherited, too)."""

    labels = ("spot",)
    size = 512


def make():
    """The factory, called on robot and server alike; ``model_options:="{weights: mine.safetensors}"`` loads weights."""
    return Spots("spots", Network())
