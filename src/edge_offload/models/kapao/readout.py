"""KAPAO's read-out on the device: decode the raw maps, select confident objects, suppress duplicates."""

from __future__ import annotations

from typing import List, Tuple, Union

import torch
from torch import nn

from edge_offload.models.kapao.network import ANCHORS_PER_LEVEL, CLASSES, COORDINATES, OUTPUTS, STRIDES
from edge_offload.models.kapao.nms import MAX_DET, nms
from edge_offload.models.kapao.thresholds import Thresholds

PERSON_ROW = 5 + COORDINATES
"""x1 y1 x2 y2 score, then x y per keypoint; pixels of the network's input."""

KEYPOINT_ROW = 4
"""x y of the keypoint object's centre, score, keypoint index 0 to 16."""

#: Of each level: its first row in a frame, its cells, cells in a line, and its stride.
Levels = List[Tuple[int, int, int, int]]


class KapaoReadout(nn.Module):
    """Raw maps to persons float32 [n, PERSON_ROW] and keypoint objects float32 [m, KEYPOINT_ROW], n, m ≤ 300.

    Args:
        anchors: float [4, 3, 2], width and height per level, pixels of the network's input.
        thresholds: confidences and overlaps.
    """

    anchors: torch.Tensor

    def __init__(self, anchors: torch.Tensor, thresholds: Thresholds) -> None:
        super().__init__()
        shape = (len(STRIDES), ANCHORS_PER_LEVEL, 2)
        # already part of the network's state
        self.register_buffer("anchors", anchors.detach().clone().float().reshape(shape), persistent=False)
        self.thresholds = thresholds

    def decode(self, maps: Tuple[torch.Tensor, ...], least: float = -1.0) -> torch.Tensor:
        """Decode raw maps [1, 171, h, w] to float32 [n, 57]: the rows whose objectness is above ``least``, in order.

        A row is centre x y, width, height, objectness, class scores, keypoint x y.
        With σ the raw score after the sigmoid, ``g`` the cell, ``s`` the stride and ``a`` the anchor:
        centre = (2σ − 0.5 + g) s, size = (2σ)² a, keypoint = (4σ − 2) a + g s.
        """
        scores, levels = self._score_maps(maps)
        # a few hundred rows of some ten thousand are confident: only these are decoded
        indices = (torch.cat([one[:, 4].flatten() for one in scores]) > least).nonzero()[:, 0]
        return self._decode_rows(torch.cat([one.flatten() for one in scores]), levels, indices, 0)

    @staticmethod
    def _score_maps(maps: Tuple[torch.Tensor, ...]) -> Tuple[List[torch.Tensor], Levels]:
        """Return σ of each level, [frames * anchors, outputs, cells], and the levels' places in a frame."""
        scores: List[torch.Tensor] = []
        levels: Levels = []
        rows = 0
        for raw, stride in zip(maps, STRIDES):
            height, width = raw.shape[-2], raw.shape[-1]
            scores.append(raw.float().view(-1, OUTPUTS, height * width).sigmoid())
            levels.append((rows, height * width, width, stride))
            rows += ANCHORS_PER_LEVEL * height * width
        return scores, levels

    def _decode_rows(
        self, scores: torch.Tensor, levels: Levels, indices: torch.Tensor, begin: Union[int, torch.Tensor]
    ) -> torch.Tensor:
        """Decode rows by their numbers in a frame; ``begin``: where their frames begin in ``scores``."""
        facts = torch.tensor(levels, device=indices.device)
        level = (indices[:, None] >= facts[1:, 0]).sum(1)
        first, cells, width_of, stride_of = facts[level].unbind(1)
        anchor_index = torch.div(indices - first, cells, rounding_mode="floor")
        cell = indices - first - anchor_index * cells
        cell_row = torch.div(cell, width_of, rounding_mode="floor")
        offsets = first * OUTPUTS + anchor_index * OUTPUTS * cells + cell + begin
        column = torch.arange(OUTPUTS, device=indices.device)
        y = scores[offsets[:, None] + column * cells[:, None]]

        grid = torch.stack((cell - cell_row * width_of, cell_row), 1).to(y.dtype)
        strides = stride_of[:, None].to(y.dtype)
        anchor = self.anchors[level, anchor_index]
        centre = (y[:, 0:2] * 2 - 0.5 + grid) * strides
        size = (y[:, 2:4] * 2) ** 2 * anchor
        points = y[:, 5 + CLASSES :].unflatten(-1, (-1, 2))
        points = (points * 4 - 2) * anchor.unsqueeze(1) + (grid * strides).unsqueeze(1)
        return torch.cat((centre, size, y[:, 4 : 5 + CLASSES], points.flatten(-2)), 1)

    def forward(self, *maps: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Decode the raw maps to persons and keypoint objects, each best first."""
        rows = self.decode(maps, min(self.thresholds.conf, self.thresholds.conf_kp))
        score, kind = (rows[:, 5 : 5 + CLASSES] * rows[:, 4:5]).max(1)
        (persons, _), (keypoints, _) = self._suppress(rows, score, kind, kind, MAX_DET)
        return persons, keypoints

    def batch(self, *maps: torch.Tensor) -> List[Tuple[torch.Tensor, ...]]:
        """Do :meth:`forward` for each frame of raw maps [frames, 171, h, w]; results are on the CPU.

        Rows of all frames are decoded together, and boxes of different frames do not suppress each other.
        """
        frames = len(maps[0])
        scores, levels = self._score_maps(maps)
        by_frame = torch.cat([one.view(frames, -1) for one in scores], 1)
        confident = torch.cat([one[:, 4].reshape(frames, -1) for one in scores], 1)
        least = min(self.thresholds.conf, self.thresholds.conf_kp)
        frame, indices = (confident > least).nonzero().unbind(1)
        rows = self._decode_rows(by_frame.flatten(), levels, indices, frame * by_frame.shape[1])
        score, kind = (rows[:, 5 : 5 + CLASSES] * rows[:, 4:5]).max(1)
        objects = self._suppress(rows, score, kind, frame * CLASSES + kind, len(rows))
        outputs = [(one.cpu(), frame[places].cpu()) for one, places in objects]
        return [tuple(one[of == number][:MAX_DET] for one, of in outputs) for number in range(frames)]

    def _suppress(
        self, rows: torch.Tensor, score: torch.Tensor, kind: torch.Tensor, group: torch.Tensor, most: int
    ) -> Tuple[Tuple[torch.Tensor, torch.Tensor], Tuple[torch.Tensor, torch.Tensor]]:
        """Return persons and keypoint objects, each with its places in ``rows``, best first.

        Boxes of one ``group`` suppress each other.
        """
        limits = self.thresholds
        half = rows[:, 2:4] / 2
        boxes = torch.cat((rows[:, :2] - half, rows[:, :2] + half), 1)

        person = ((kind == 0) & (score > limits.conf)).nonzero()[:, 0]
        person = person[nms(boxes[person], score[person], group[person], limits.iou, most)]
        persons = torch.cat((boxes[person], score[person, None], rows[person, 5 + CLASSES :]), 1)

        point = ((kind > 0) & (score > limits.conf_kp)).nonzero()[:, 0]
        point = point[nms(boxes[point], score[point], group[point], limits.iou_kp, most)]
        index = (kind[point] - 1).to(rows.dtype)
        keypoints = torch.cat((rows[point, :2], score[point, None], index[:, None]), 1)
        return (persons, person), (keypoints, point)
