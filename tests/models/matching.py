"""Compare found boxes with boxes labelled by hand: greedy one-to-one matching at an intersection over union of 0.5."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, Tuple

import cv2
import numpy as np

from edge_offload.errors import BadInput
from edge_offload.models.people import People
from edge_offload.models.video import sample_video

LABELS = pathlib.Path(__file__).parent / "vtest_labels.json"


def labels() -> Dict[int, List[Dict[str, Any]]]:
    """Labelled people by frame number."""
    document = json.loads(LABELS.read_text(encoding="utf-8"))
    return {frame["frame"]: frame["people"] for frame in document["frames"]}


def frames(numbers: List[int]) -> Dict[int, np.ndarray]:
    """BGR frames of the sample video, read in order (seeking in compressed video is not exact everywhere)."""
    capture = cv2.VideoCapture(str(sample_video()))
    pictures = {}
    for number in range(max(numbers) + 1):
        if not capture.grab():
            raise BadInput(f"the sample video ends at frame {number}")
        if number in numbers:
            pictures[number] = capture.retrieve()[1]
    return pictures


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union of two x1 y1 x2 y2 boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    return float(shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared))


def count(people: People, labelled: List[Dict[str, Any]]) -> Tuple[int, int, int]:
    """(found, missed, false): partly visible people are neither required nor counted against the finder."""
    free = list(range(len(labelled)))
    matches = false = 0
    for index in np.argsort(-people.scores, kind="stable"):
        ranked = [(overlap(people.boxes[index], np.asarray(labelled[k]["box"], float)), k) for k in free]
        best, k = max(ranked, default=(0.0, -1))
        if best < 0.5:
            false += 1
            continue
        free.remove(k)
        matches += not labelled[k]["partial"]
    missed = sum(not labelled[k]["partial"] for k in free)
    return matches, missed, false
