"""KAPAO's read-out on the device: decode the raw maps, keep what is confident, suppress duplicates."""

from __future__ import annotations

from typing import List, Tuple

import torch
from torch import nn

from edge_offload.models.kapao.network import ANCHORS_PER_LEVEL, CLASSES, COORDINATES, OUTPUTS, STRIDES
from edge_offload.models.kapao.nms import nms
from edge_offload.models.kapao.thresholds import Thresholds

MAX_DET = 300
PERSON_ROW = 5 + COORDINATES
"""x1 y1 x2 y2 score, then x y per keypoint; pixels of the network's input."""

KEYPOINT_ROW = 4
"""x y of the keypoint object's centre, score, keypoint index 0 to 16."""


class Readout(nn.Module):
    """Raw maps to persons float32 [n, PERSON_ROW] and keypoint objects float32 [m, KEYPOINT_ROW], n, m ≤ 300.

    Args:
        anchors: float [4, 3, 2], width and height per level, pixels of the network's input.
        thresholds: what to keep.
    """

    anchors: torch.Tensor

    def __init__(self, anchors: torch.Tensor, thresholds: Thresholds) -> None:
        super().__init__()
        shape = (len(STRIDES), ANCHORS_PER_LEVEL, 2)
        # the network's own anchors: part of its state already
        self.register_buffer("anchors", anchors.detach().clone().float().reshape(shape), persistent=False)
        self.thresholds = thresholds

    def decode(self, maps: Tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Decode raw maps [1, 171, h, w] to float32 [sum of 3 h w, 57].

        A row is centre x y, width, height, objectness, class scores, keypoint x y.
        With σ the raw score after the sigmoid, ``g`` the cell, ``s`` the stride and ``a`` the anchor:
        centre = (2σ − 0.5 + g) s, size = (2σ)² a, keypoint = (4σ − 2) a + g s.
        """
        rows: List[torch.Tensor] = []
        for level, (raw, stride) in enumerate(zip(maps, STRIDES)):
            height, width = raw.shape[-2], raw.shape[-1]
            y = raw.float().view(ANCHORS_PER_LEVEL, OUTPUTS, height, width).permute(0, 2, 3, 1).sigmoid()
            grid_y = torch.arange(height, dtype=torch.float32, device=raw.device)[:, None].expand(height, width)
            grid_x = torch.arange(width, dtype=torch.float32, device=raw.device)[None, :].expand(height, width)
            grid = torch.stack((grid_x, grid_y), 2)
            anchor = self.anchors[level].view(ANCHORS_PER_LEVEL, 1, 1, 2)
            centre = (y[..., 0:2] * 2 - 0.5 + grid) * stride
            size = (y[..., 2:4] * 2) ** 2 * anchor
            scores = y[..., 4 : 5 + CLASSES]
            points = y[..., 5 + CLASSES :].unflatten(-1, (-1, 2))
            points = (points * 4 - 2) * anchor.unsqueeze(-2) + (grid * stride).unsqueeze(-2)
            rows.append(torch.cat((centre, size, scores, points.flatten(-2)), -1).view(-1, OUTPUTS))
        return torch.cat(rows)

    def forward(self, *maps: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Persons and keypoint objects, each best first, from the raw maps."""
        limits = self.thresholds
        rows = self.decode(maps)
        rows = rows[rows[:, 4] > min(limits.conf, limits.conf_kp)]
        score, kind = (rows[:, 5 : 5 + CLASSES] * rows[:, 4:5]).max(1)
        half = rows[:, 2:4] / 2
        boxes = torch.cat((rows[:, :2] - half, rows[:, :2] + half), 1)

        person = ((kind == 0) & (score > limits.conf)).nonzero()[:, 0]
        person = person[nms(boxes[person], score[person], kind[person], limits.iou, MAX_DET)]
        persons = torch.cat((boxes[person], score[person, None], rows[person, 5 + CLASSES :]), 1)

        point = ((kind > 0) & (score > limits.conf_kp)).nonzero()[:, 0]
        point = point[nms(boxes[point], score[point], kind[point], limits.iou_kp, MAX_DET)]
        index = (kind[point] - 1).to(rows.dtype)
        keypoints = torch.cat((rows[point, :2], score[point, None], index[:, None]), 1)
        return persons, keypoints
