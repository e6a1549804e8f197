"""How well people are followed: the tracker on a network's finds, scored on frames whose people have identities."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, List, Sequence

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.models.people import People
from edge_offload.perception.tracking import Tracker
from edge_offload_benchmarks.tracking_metrics import TrackingScore
from edge_offload_training.evaluation import Truth


def read_identities(path: pathlib.Path) -> Dict[int, List[int]]:
    """Read the identities of the labelled people of each frame, in the file's order; empty if there are none.

    Raises:
        BadInput: somebody is there twice in a frame, or only some of the people have an identity.
    """
    frames = json.loads(path.read_text(encoding="utf-8"))["frames"]
    named = [person.get("id") for frame in frames for person in frame["people"]]
    if all(identity is None for identity in named):
        return {}
    identities = {}
    for frame in frames:
        ids = [person.get("id") for person in frame["people"]]
        if not all(isinstance(identity, int) for identity in ids) or len(set(ids)) < len(ids):
            raise BadInput(
                f"labels {path}, frame {frame['frame']}: the identities are {ids}",
                remedy="give every person a number, each once in a frame",
            )
        identities[int(frame["frame"])] = ids
    return identities


def tracking_figures(
    people_by_frame: Sequence[People],
    numbers: Sequence[int],
    truths: Dict[int, Truth],
    identities: Dict[int, List[int]],
    score: float,
    frames_per_s: float,
) -> Dict[str, Any]:
    """CLEAR MOT figures of the tracker with its defaults: it sees every frame and is scored on the labelled ones.

    Args:
        people_by_frame: finds of a network, one per frame of ``numbers``. Those below ``score`` are left out, as by the
            network's own threshold.
        numbers: of the frames.
        truths: labelled people, by frame number; those labelled as partly hidden count neither way.
        identities: who the labelled people are, by frame number.
        score: of the weakest find that counts.
        frames_per_s: of the video.
    """
    tracker, quality = Tracker(), TrackingScore()
    for number, people in zip(numbers, people_by_frame):
        seen = people.select(np.flatnonzero(people.scores >= score))
        tracks = tracker.update(seen, number / frames_per_s)
        if number not in identities:
            continue
        truth = truths[number]
        quality.add(
            {who: box for who, box, partial in zip(identities[number], truth.boxes, truth.partial) if not partial},
            {track.id: track.box for track in tracks if not track.coasting},
            list(truth.boxes[truth.partial]),
        )
    result = quality.result()
    shares = ("mota", "motp", "idf1")
    return {
        **{name: round(float(value), 4) if name in shares else int(value) for name, value in result.items()},
        "identities": len({who for ids in identities.values() for who in ids}),
    }
