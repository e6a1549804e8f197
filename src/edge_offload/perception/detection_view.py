"""Drawing of detections, and of the run's state, on an image."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.detections import Detections
from edge_offload.perception.overlay import (
    DARK,
    Status,
    bar_height,
    colour_of,
    draw_bar,
    draw_box,
    draw_label,
    make_canvas,
)


def draw_detections(
    bgr: Array, detections: Detections, labels: Sequence[str], status: Optional[Status] = None
) -> Array:  # fmt: skip
    """Copy ``bgr`` and draw the mask, boxes, labels and scores, and a status bar.

    Args:
        bgr: uint8 [h, w, 3].
        detections: in this image.
        labels: of the detections, one each.
        status: the bar's text; None: no bar.

    Raises:
        BadInput: not a uint8 colour image.
    """
    image, scale = make_canvas(bgr)
    if detections.mask is not None:
        for number in np.unique(detections.mask[detections.mask > 0]):
            where = detections.mask == number
            colour = np.array(colour_of(int(number) - 1))
            image[where] = (0.55 * image[where] + 0.45 * colour).astype(np.uint8)
    for box, number in zip(detections.boxes, detections.classes):
        draw_box(image, box, colour_of(int(number)), scale)
    taken: List[Tuple[int, int, int, int]] = []
    top = 0 if status is None else bar_height(status, scale)
    for box, number, score, label in zip(detections.boxes, detections.classes, detections.scores, labels):
        colours = colour_of(int(number)), DARK
        draw_label(image, f"{label} {score * 100:.0f}%", box, colours, scale, taken, top)
    if status is not None:
        draw_bar(image, status, [(str(len(detections)), "object" if len(detections) == 1 else "objects")], scale)
    return image
