"""Tracking on real detections: people who cross in front of each other keep their ids.

``crossing.npz`` holds what MoveNet found in frames 185 to 325 of the sample video. Who is who was checked by
looking at the frames: in 288 to 300 the man in blue jeans turns round and passes before the man in black, who then
passes behind a third one in 300 to 309; for some frames of each crossing only one of the two is detected.
"""

from __future__ import annotations

import pathlib
from typing import Dict, List, Tuple

import numpy as np

from edge_offload.models.people import People
from edge_offload.perception.tracking import TrackedPerson, Tracker

WHERE: Dict[str, Dict[int, Tuple[int, int]]] = {
    "blue jeans": {185: (543, 274), 219: (616, 353), 253: (373, 272), 287: (272, 212), 310: (374, 187)},
    "black coat": {236: (646, 243), 253: (538, 221), 287: (331, 194), 321: (220, 207)},
    "bald": {185: (578, 170), 219: (385, 199), 253: (196, 184), 287: (148, 187), 321: (323, 209)},
    "white gloves": {236: (701, 328), 253: (595, 303), 287: (389, 266), 321: (272, 237)},
    "stays left": {185: (338, 248), 219: (116, 218), 253: (49, 209), 270: (43, 208)},
    "one of a pair": {202: (687, 124), 253: (646, 154), 321: (611, 225)},
    "the other": {270: (644, 169), 287: (632, 184), 321: (645, 227)},
}
"""Person → frame → centre of the box, px."""


def tracked() -> Dict[int, List[TrackedPerson]]:
    with np.load(pathlib.Path(__file__).parent / "crossing.npz") as data:
        stored = {name: data[name] for name in data.files}
    keypoints = np.concatenate([stored["places"] / 2, stored["sure"][..., None] / 100], axis=2)
    tracker, frames, end = Tracker(), {}, 0
    for number, count in enumerate(stored["count"]):
        part = slice(end, end + int(count))
        end += int(count)
        detections = People(stored["boxes"][part] / 4, stored["scores"][part] / 200, keypoints[part])
        frame = int(stored["first"]) + number
        frames[frame] = tracker.update(detections, frame / 10, (768, 576))
    return frames


def test_people_who_cross_preserve_their_ids() -> None:
    frames = tracked()
    ids: Dict[str, set] = {name: set() for name in WHERE}
    for name, places in WHERE.items():
        for frame, place in places.items():
            seen = [person for person in frames[frame] if not person.coasting]
            nearest = min(seen, key=lambda person: np.hypot(*((person.box[:2] + person.box[2:]) / 2 - place)))
            assert np.hypot(*((nearest.box[:2] + nearest.box[2:]) / 2 - place)) < 12, (name, frame)
            ids[name].add(nearest.id)
    assert all(len(ids_of_person) == 1 for ids_of_person in ids.values()), ids
    assert len(set.union(*ids.values())) == len(WHERE), ids


def test_few_ids_for_few_people() -> None:
    ids = {person.id for people in tracked().values() for person in people}
    assert len(ids) <= 10  # nine people walk through these frames
