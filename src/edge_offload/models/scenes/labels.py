"""Label values of a completed grid: names, colours, and those that a planner may drive on."""

from __future__ import annotations

from typing import Dict, Tuple

import numpy as np

from edge_offload.arrays import Array

LABELS: Tuple[str, ...] = (
    "empty",
    "car",
    "bicycle",
    "motorcycle",
    "truck",
    "other-vehicle",
    "person",
    "bicyclist",
    "other-object",
    "road",
    "parking",
    "sidewalk",
    "other-ground",
    "building",
    "fence",
    "vegetation",
    "trunk",
    "terrain",
    "pole",
    "traffic-sign",
)
"""Names by value. SemanticKITTI's order; value 8 (there: motorcyclist) is ``other-object`` here: furniture, boxes."""

VALUE: Dict[str, int] = {name: value for value, name in enumerate(LABELS)}

IGNORED = 255
"""Value of voxels in a true grid whose content cannot be known, such as the inside of a building."""

GROUND: Tuple[int, ...] = tuple(VALUE[name] for name in ("road", "parking", "sidewalk", "other-ground", "terrain"))
"""Labels that a robot may drive on."""

COLOURS: Array = np.array(
    [
        (0, 0, 0),
        (100, 150, 245),
        (100, 230, 245),
        (30, 60, 150),
        (80, 30, 180),
        (0, 0, 255),
        (255, 30, 30),
        (255, 40, 200),
        (230, 160, 60),
        (200, 80, 200),
        (255, 150, 255),
        (110, 40, 110),
        (150, 110, 130),
        (255, 200, 0),
        (255, 120, 50),
        (0, 175, 0),
        (135, 60, 0),
        (150, 240, 80),
        (255, 240, 150),
        (255, 0, 0),
    ],
    dtype=np.uint8,
)
"""RGB by value, uint8 [20, 3]."""
