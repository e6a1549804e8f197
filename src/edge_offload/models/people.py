"""People in one image: boxes, scores and COCO keypoints, as arrays with checked shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.detections import NOT_FINITE

COCO_KEYPOINTS: Tuple[str, ...] = (
    "nose",
    "left_eye",
    "right_eye",
    "left_ear",
    "right_ear",
    "left_shoulder",
    "right_shoulder",
    "left_elbow",
    "right_elbow",
    "left_wrist",
    "right_wrist",
    "left_hip",
    "right_hip",
    "left_knee",
    "right_knee",
    "left_ankle",
    "right_ankle",
)
"""Names of the 17 keypoints in the order of the COCO keypoint data set."""

SKELETON: Tuple[Tuple[int, int], ...] = (
    (0, 1), (0, 2), (1, 3), (2, 4),
    (5, 6), (5, 7), (7, 9), (6, 8), (8, 10),
    (5, 11), (6, 12), (11, 12),
    (11, 13), (13, 15), (12, 14), (14, 16),
)  # fmt: skip
"""Pairs of keypoint indices that a drawing joins with a line."""


@dataclass
class People:
    """People in one image, best score first where the estimator ranks them.

    Attributes:
        boxes: float32 [n, 4], x1 y1 x2 y2 in pixels of the original image.
        scores: float32 [n], 0 to 1.
        keypoints: float32 [n, 17, 3], x and y in pixels of the original image, score 0 to 1.

    Raises:
        BadInput: an array has another shape or holds a value that is not finite.
    """

    boxes: Array
    scores: Array
    keypoints: Array

    def __post_init__(self) -> None:
        self.boxes = np.ascontiguousarray(self.boxes, dtype=np.float32)
        self.scores = np.ascontiguousarray(self.scores, dtype=np.float32)
        self.keypoints = np.ascontiguousarray(self.keypoints, dtype=np.float32)
        n = len(self.scores) if self.scores.ndim == 1 else -1
        expected = {"boxes": (n, 4), "scores": (n,), "keypoints": (n, len(COCO_KEYPOINTS), 3)}
        for name, shape in expected.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise BadInput(f"people: {name} has shape {array.shape}, expected {shape}")
            if not np.isfinite(array).all():
                raise BadInput(f"people: {name} holds NaN or infinity", remedy=NOT_FINITE)

    @classmethod
    def empty(cls) -> People:
        """Make an empty set of people."""
        return cls(np.zeros((0, 4)), np.zeros(0), np.zeros((0, len(COCO_KEYPOINTS), 3)))

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, index: Array) -> People:
        """Select the people at ``index`` (boolean mask or integer positions)."""
        return People(self.boxes[index], self.scores[index], self.keypoints[index])
