"""Made-up pictures whose motion is known: textured people before a textured wall."""

from __future__ import annotations

from typing import Sequence, Tuple

import cv2
import numpy as np

from edge_offload.perception.tracking import TrackedPerson
from tests.perception.scenes import keypoints_in

SIZE = (320, 240)


def texture(seed: int, width: int, height: int) -> np.ndarray:
    """Smooth noise, uint8 [height, width, 3]."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 1.5)
    return cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)


def picture(
    boxes: Sequence[Sequence[float]], wall: Tuple[float, float] = (0.0, 0.0), size: Tuple[int, int] = SIZE
) -> np.ndarray:
    """A picture of ``size`` (width, height): every box with a texture of its own, the wall moved by ``wall`` px."""
    width, height = size
    image = cv2.warpAffine(
        texture(99, width, height), np.float32([[1, 0, wall[0]], [0, 1, wall[1]]]), size, borderMode=cv2.BORDER_REFLECT
    )
    for number, (x1, y1, x2, y2) in enumerate(boxes):
        person = texture(number, 60, 120)
        to = np.float32([[(x2 - x1) / 60, 0, x1], [0, (y2 - y1) / 120, y1]])
        mask = cv2.warpAffine(np.full((120, 60), 255, np.uint8), to, size)
        shown = cv2.warpAffine(person, to, size)
        image[mask > 127] = shown[mask > 127]
    return image


def person(
    box: Sequence[float], number: int = 1, velocity: Sequence[float] = (0.0, 0.0), coasting: bool = False
) -> TrackedPerson:
    """Somebody in ``box`` who moves at ``velocity`` px/s."""
    corners = np.array(box, dtype=np.float32)
    return TrackedPerson(
        number, corners, 0.9, keypoints_in(corners).astype(np.float32), np.array(velocity, dtype=np.float32), 1.0,
        0.2 if coasting else 0.0, coasting,
    )  # fmt: skip
