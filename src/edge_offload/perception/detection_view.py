"""Draw what a detector found, and the state of the run, on an image."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.detections import Detections
from edge_offload.perception.overlay import DARK, Status, bar_height, canvas, colour_of, draw_bar, draw_box, draw_label

#: Of the colour of a class in its pixels.
MASK_OPACITY = 0.45


def draw_detections(
    bgr: Array, found: Detections, labels: Sequence[str], status: Optional[Status] = None
) -> Array:  # fmt: skip
    """A copy of ``bgr`` with the mask, boxes, labels and scores, and a status bar.

    Args:
        bgr: uint8 [h, w, 3].
        found: in this image.
        labels: of the detections, one each.
        status: the bar's text; None: no bar.

    Raises:
        BadInput: not a uint8 colour image.
    """
    image, scale = canvas(bgr)
    if found.mask is not None:
        for number in np.unique(found.mask[found.mask > 0]):
            where = found.mask == number
            colour = np.array(colour_of(int(number) - 1))
            image[where] = ((1 - MASK_OPACITY) * image[where] + MASK_OPACITY * colour).astype(np.uint8)
    for box, number in zip(found.boxes, found.classes):
        draw_box(image, box, colour_of(int(number)), scale)
    taken: List[Tuple[int, int, int, int]] = []
    top = 0 if status is None else bar_height(status, scale)
    for box, number, score, label in zip(found.boxes, found.classes, found.scores, labels):
        colours = colour_of(int(number)), DARK
        draw_label(image, f"{label} {score * 100:.0f}%", box, colours, scale, taken, top)
    if status is not None:
        draw_bar(image, status, [(str(len(found)), "object" if len(found) == 1 else "objects")], scale)
    return image
