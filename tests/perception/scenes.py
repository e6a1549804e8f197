"""Made-up people for tracking tests: boxes on given paths, with a stick figure's keypoints inside."""

from __future__ import annotations

from typing import Dict, Iterable, Sequence

import numpy as np

from edge_offload.models.people import People

_FIGURE = np.array([
    [0.50, 0.08], [0.54, 0.06], [0.46, 0.06], [0.58, 0.08], [0.42, 0.08], [0.68, 0.22], [0.32, 0.22], [0.74, 0.36],
    [0.26, 0.36], [0.76, 0.50], [0.24, 0.50], [0.62, 0.52], [0.38, 0.52], [0.62, 0.74], [0.38, 0.74], [0.62, 0.96],
    [0.38, 0.96],
])  # fmt: skip


def box_at(x: float, y: float = 200.0, width: float = 40.0, height: float = 100.0) -> np.ndarray:
    """Box with its centre at x, y."""
    return np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2], dtype=np.float32)


def keypoints_in(box: np.ndarray, score: float = 0.9) -> np.ndarray:
    """A standing figure's 17 keypoints in ``box``."""
    points = box[:2] + _FIGURE * (box[2:] - box[:2])
    return np.concatenate([points, np.full((17, 1), score)], axis=1)


def people(boxes: Iterable[Sequence[float]], scores: Sequence[float] = ()) -> People:
    """People with these boxes; scores 0.9 where none are given."""
    stacked = np.array(list(boxes), dtype=np.float32).reshape(-1, 4)
    values = np.array(scores if len(scores) else [0.9] * len(stacked), dtype=np.float32)
    points = np.array([keypoints_in(box) for box in stacked], dtype=np.float32).reshape(-1, 17, 3)
    return People(stacked, values, points)


def noisy(boxes: Dict[int, np.ndarray], random: np.random.Generator, pixels: float = 1.5) -> Dict[int, np.ndarray]:
    """The same boxes, each corner a little off."""
    return {key: (box + random.normal(0, pixels, 4)).astype(np.float32) for key, box in boxes.items()}
