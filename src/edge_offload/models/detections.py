"""Objects in one image: boxes, scores and labels, as arrays with checked shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput

NOT_FINITE = "compute the network in float32: half precision overflows in many; or check its weights"
"""Remedy where a network computes NaN."""


@dataclass
class Detections:
    """Objects in one image, in the order of the detector.

    Attributes:
        boxes: float32 [n, 4], x1 y1 x2 y2 in pixels of the original image.
        scores: float32 [n], 0 to 1.
        classes: int64 [n], positions in the detector's ``labels``.
        mask: uint8 [h, w] of the original image's size, the class of each pixel plus one and 0 where there is none;
            None where the detector does not segment.

    Raises:
        BadInput: an array has another shape, or holds a value that is not finite or below 0.
    """

    boxes: Array
    scores: Array
    classes: Array
    mask: Optional[Array] = None

    def __post_init__(self) -> None:
        self.boxes = _to_array("boxes", self.boxes, np.float32)
        self.scores = _to_array("scores", self.scores, np.float32)
        self.classes = _to_array("classes", self.classes, np.int64)
        n = len(self.scores) if self.scores.ndim == 1 else -1
        for name, shape in (("boxes", (n, 4)), ("scores", (n,)), ("classes", (n,))):
            array = getattr(self, name)
            if array.shape != shape:
                raise BadInput(f"detections: {name} has shape {array.shape}, expected {shape}")
            if not np.isfinite(array).all():
                raise BadInput(f"detections: {name} holds NaN or infinity", remedy=NOT_FINITE)
        if n and self.classes.min() < 0:
            raise BadInput(f"detections: class {self.classes.min()} is no position in the labels")
        if self.mask is not None:
            self.mask = np.asarray(self.mask)
            if self.mask.dtype != np.uint8 or self.mask.ndim != 2:
                raise BadInput(f"detections: mask is {self.mask.dtype} {self.mask.shape}, expected uint8 [h, w]")

    @classmethod
    def empty(cls) -> Detections:
        """Make detections without objects."""
        return cls(np.zeros((0, 4)), np.zeros(0), np.zeros(0))

    def __len__(self) -> int:
        return len(self.scores)

    def check_fit(self, size: Tuple[int, int], labels: int) -> None:
        """Check them against an image's ``size`` (width, height) and the number of labels.

        Raises:
            BadInput: they do not fit.
        """
        if len(self) and labels and self.classes.max() >= labels:
            raise BadInput(f"detections: class {self.classes.max()} of {labels} labels")
        if self.mask is not None and self.mask.shape != size[::-1]:
            raise BadInput(f"detections: a mask of {self.mask.shape[1]}x{self.mask.shape[0]} pixels for an image of "
                           f"{size[0]}x{size[1]}")  # fmt: skip


def _to_array(name: str, value: Array, kind: type) -> Array:
    try:
        return np.ascontiguousarray(value, dtype=kind)
    except (TypeError, ValueError) as error:
        raise BadInput(f"detections: {name} cannot be made an array: {error}") from None
