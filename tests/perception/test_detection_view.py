"""The picture of a detector's result: boxes, labels, and the pixels of each class."""

from __future__ import annotations

import numpy as np

from edge_offload.mode import Mode
from edge_offload.models.detections import Detections
from edge_offload.perception.detection_view import draw_detections
from edge_offload.perception.overlay import Status, colour_of

GREY = np.full((240, 320, 3), 100, dtype=np.uint8)


def test_boxes_and_labels_are_drawn_in_the_colour_of_the_class() -> None:
    detections = Detections(np.array([[100, 120, 160, 200]]), np.array([0.8]), np.array([2]))
    image = draw_detections(GREY, detections, ["dog"])
    assert np.allclose(image[160, 100], colour_of(2), atol=24)
    assert (image[160, 130] == 100).all(), "inside of the box nothing is drawn"
    assert (image[95:119, 100:180] != 100).any(), "the label"
    assert (GREY == 100).all(), "the frame itself is left alone"


def test_each_class_of_a_mask_has_its_colour_and_the_rest_is_unchanged() -> None:
    mask = np.zeros((240, 320), dtype=np.uint8)
    mask[50:60, 50:60], mask[100:110, 100:110] = 1, 2
    detections = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0), mask)
    image = draw_detections(GREY, detections, [])
    assert (image[55, 55] != 100).any()
    assert (image[55, 55] != image[105, 105]).any()
    assert (image[200, 200] == 100).all()


def test_the_bar_shows_the_number_of_detections() -> None:
    empty = Detections.empty()
    with_bar = draw_detections(GREY, empty, [], Status(Mode.SERVER, "spots", 0.05))
    assert (with_bar[:10] != 100).any()
    assert (draw_detections(GREY, empty, []) == 100).all()
