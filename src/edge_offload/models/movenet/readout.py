"""MoveNet-MultiPose's read-out on the device: centre peaks, boxes, and keypoints near their regressed places.

All shapes are static: those of the outputs depend on the number of people only. Source: the published TensorFlow.js
graph, with two differences: the Gaussian weight is the product of its two axes (equal up to rounding, and a tenth of
the work), and the number of people is free.
"""

from __future__ import annotations

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import nn

from edge_offload.models.people import COCO_KEYPOINTS

KEYPOINTS = len(COCO_KEYPOINTS)

ROW = 5 + 3 * KEYPOINTS
"""Numbers per person: x1 y1 x2 y2 score, then x y score per keypoint; pixels of the network's input."""


class MoveNetReadout(nn.Module):
    """Decoder of the six maps to float32 [people, ROW], best centre first; empty rows have a score near 0."""

    def __init__(self, people: int) -> None:
        super().__init__()
        self.people = people

    def forward(
        self,
        center: torch.Tensor,
        box_scale: torch.Tensor,
        box_offset: torch.Tensor,
        heatmap: torch.Tensor,
        regress: torch.Tensor,
        offset: torch.Tensor,
    ) -> Tuple[torch.Tensor]:
        """Decode float maps [1, c, h, w] with c = 1, 2, 2, 17, 34, 34; y comes before x in every pair."""
        height, width = center.shape[-2], center.shape[-1]
        probability = center[0, 0].float().sigmoid()
        pooled = F.max_pool2d(probability[None, None], 5, stride=1, padding=2)[0, 0]
        peaks = probability * ((probability - pooled).abs() < 1e-6)
        scores, cells = peaks.flatten().topk(self.people)
        row = torch.div(cells, width, rounding_mode="floor")
        column = cells - row * width

        at_peak = torch.cat([box_scale[0], box_offset[0], regress[0]]).float().flatten(1)[:, cells]  # [38, people]
        size = at_peak[0:2].clamp(min=0)
        middle = torch.stack([row, column]) + at_peak[2:4]
        limit = torch.tensor([[height], [width]], dtype=torch.float32, device=center.device)
        low = torch.minimum((middle - size / 2).clamp(min=0), limit)
        high = torch.minimum((middle + size / 2).clamp(min=0), limit)
        regressed = at_peak[4:].reshape(KEYPOINTS, 2, self.people)

        sigma = 0.300048828125 * min(height, width)  # the graph's half-precision 0.3
        weight_y = self._axis_weights(height, regressed[:, 0] + row, low[0], high[0], sigma)  # [people, 17, h]
        weight_x = self._axis_weights(width, regressed[:, 1] + column, low[1], high[1], sigma)
        evidence = heatmap[0].float().sigmoid() * weight_y[..., :, None] * weight_x[..., None, :]
        confidence, best = evidence.flatten(2).max(dim=2)  # [people, 17]
        best_row = torch.div(best, width, rounding_mode="floor")
        best_column = best - best_row * width
        shifts = offset[0].float().reshape(KEYPOINTS, 2, height * width)
        shift = shifts.gather(2, best.t()[:, None, :].expand(KEYPOINTS, 2, self.people))  # [17, 2, people]
        cell = 4  # input pixels per cell of the maps
        x = (best_column + shift[:, 1].t()) * cell
        y = (best_row + shift[:, 0].t()) * cell

        confident = (confidence > 0.126953125).float()  # these keypoints count towards the person's score
        person = scores * (confidence * confident).sum(1) / confident.sum(1).clamp(min=1)
        box = torch.stack([low[1], low[0], high[1], high[0]], dim=1) * cell
        points = torch.stack([x, y, confidence], dim=2).flatten(1)
        return (torch.cat([box, person[:, None], points], dim=1),)

    @staticmethod
    def _axis_weights(
        length: int, regressed: torch.Tensor, low: torch.Tensor, high: torch.Tensor, sigma: float
    ) -> torch.Tensor:
        """Weights [people, 17, length] along one axis: a Gaussian around the regressed keypoint, 0 outside the box."""
        cells = torch.arange(length, dtype=torch.float32, device=regressed.device)
        gaussian = torch.exp(-((cells - regressed.t()[..., None]) ** 2) / sigma)
        inside = (cells >= low[:, None]) & (cells < high[:, None])
        return gaussian * inside[:, None, :]
