"""Regression against a golden record: did a run over the same frames give the same people, or the same scenes?

A golden file is a JSON record (schema definition ``golden``): the model and its weights, and for every frame of a
bag its stamp and the people found, or how many voxels have each label. Stamps and counts must agree exactly, boxes,
scores and voxels within the tolerances written in the golden itself, so that a change of tolerance is a change that a
reviewer sees.
"""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from typing import Any, Dict, List, Mapping, Sequence, Union

import numpy as np

from edge_offload import records
from edge_offload.errors import BadInput

BOX_TOLERANCE_PX = 0.5
SCORE_TOLERANCE = 1e-3
VOXEL_TOLERANCE = 0.005
"""Of the voxels that are full: another processor's kernels change some."""


def person_record(track_id: int, box_xyxy_px: Sequence[float], score: float, predicted: bool = False) -> Dict[str, Any]:
    """One person as a golden file holds it: values rounded far below the tolerances, so that diffs stay short.

    ``predicted``: from earlier frames, in a run whose results are carried along.
    """
    box = [round(float(v), 2) for v in box_xyxy_px]
    return {
        "id": int(track_id),
        "box": box,
        "score": round(float(score), 4),
        **({"predicted": True} if predicted else {}),
    }


def golden(model: str, weights_sha256: str, mode: str, frames: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """A golden record with the default tolerances.

    ``frames``: ``{stamp_ns, results, latencies}`` per frame with ``people`` or ``labels`` (voxels that have each), and
    where results are carried along ``origin``.
    """
    scenes = any("labels" in frame for frame in frames)
    people = {"box_px": BOX_TOLERANCE_PX, "score": SCORE_TOLERANCE}
    record = {
        "model": model,
        "weights_sha256": weights_sha256,
        "mode": mode,
        "tolerance": {"voxels": VOXEL_TOLERANCE} if scenes else people,
        "frames": [dict(frame) for frame in frames],
    }
    records.validate("golden", record)
    return record


def load(path: Union[str, pathlib.Path]) -> Dict[str, Any]:
    """Read and validate a golden file.

    Raises:
        BadInput: the file is missing, is not JSON, or does not fit the schema.
    """
    try:
        record: Dict[str, Any] = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read golden file {path}: {error.strerror}", remedy="make it with --update") from error
    except ValueError as error:
        raise BadInput(f"golden file {path} is not JSON: {error}") from error
    records.validate("golden", record)
    return record


def differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> List[str]:
    """What in ``actual`` departs from the golden ``expected``, one sentence each; empty when the run is the same.

    The mode is not compared: where a network runs must not change its results, which is what the golden is for. Of
    results that were carried along, stamps and counts are compared alone; of fresh ones beside them not who was hidden:
    such people are predicted from what was carried before.
    """
    found: List[str] = []
    for key in ("model", "weights_sha256"):
        if expected[key] != actual[key]:
            found.append(f"{key}: golden was made with {expected[key]}, this run used {actual[key]}")
    if found:
        return found  # results of another network say nothing about a regression
    kinds = ["labels" if any("labels" in frame for frame in one["frames"]) else "people" for one in (expected, actual)]
    if kinds[0] != kinds[1]:
        return [f"the golden holds {kinds[0]}, this run found {kinds[1]}"]

    by_stamp = {frame["stamp_ns"]: frame for frame in actual["frames"]}
    wanted = {frame["stamp_ns"] for frame in expected["frames"]}
    for stamp in sorted(set(by_stamp) - wanted):
        found.append(f"frame {stamp}: a result with a stamp that no frame has")
    for index, frame in enumerate(expected["frames"]):
        name = f"frame {index} (stamp {frame['stamp_ns']} ns)"
        result = by_stamp.get(frame["stamp_ns"])
        if result is None:
            found.append(f"{name}: no result with this stamp")
            continue
        for key in ("results", "latencies"):
            if result[key] != frame[key]:
                found.append(f"{name}: {result[key]} {key}, expected {frame[key]}")
        # a result that was carried to a frame is another one, and which those are depends on the machine's speed
        if "origin" in frame or "origin" in result:
            continue
        if "labels" in frame:
            found += _label_differences(name, frame["labels"], result["labels"], expected["tolerance"]["voxels"])
        else:
            found += _people_differences(name, frame["people"], result["people"], expected["tolerance"])
    return found


def counts(record: Mapping[str, Any]) -> str:
    """How many frames, results by origin, and inferences there were, in words."""
    frames = record["frames"]
    results, inferences = (sum(frame[key] for frame in frames) for key in ("results", "latencies"))
    origins = Counter(frame["origin"] for frame in frames if "origin" in frame)
    if not origins:
        return f"{len(frames)} frames"
    words = ", ".join(f"{count} {origin}" for origin, count in origins.most_common())
    what = "what" if "labels" in frames[0] else "who"
    return (
        f"{len(frames)} frames, {results} results ({words}: {what} was found is not compared), {inferences} inferences"
    )


def found(record: Mapping[str, Any]) -> str:
    """How much there was to be seen, in words."""
    if "labels" in record["frames"][0]:
        return f"{sum(sum(frame['labels'][1:]) for frame in record['frames'])} full voxels"
    return f"{sum(len(frame['people']) for frame in record['frames'])} people"


def _label_differences(name: str, expected: Sequence[int], actual: Sequence[int], tolerance: float) -> List[str]:
    if len(expected) != len(actual):
        return [f"{name}: voxels of {len(actual)} labels, expected {len(expected)}"]
    changed, full = int(np.abs(np.subtract(expected, actual)).sum()), sum(expected[1:])
    if changed <= tolerance * full:
        return []
    return [f"{name}: {changed} voxels have other labels, of {full} that are full"]


def _people_differences(
    name: str,
    expected: Sequence[Mapping[str, Any]],
    actual: Sequence[Mapping[str, Any]],
    tolerance: Mapping[str, float],
) -> List[str]:
    if len(expected) != len(actual):
        return [f"{name}: {len(actual)} people, expected {len(expected)}"]
    found: List[str] = []
    actual_by_id = {person["id"]: person for person in actual}
    for person in expected:
        if actual_by_id.get(person["id"], {}).get("predicted"):
            continue
        other = actual_by_id.get(person["id"])
        if other is None:
            found.append(f"{name}: person {person['id']} is missing (ids here: {sorted(actual_by_id)})")
            continue
        box_error = float(np.abs(np.subtract(person["box"], other["box"])).max())
        if not box_error <= tolerance["box_px"]:
            found.append(f"{name}: person {person['id']}: box off by {box_error:.2f} px (of {tolerance['box_px']})")
        score_error = abs(person["score"] - other["score"])
        if not score_error <= tolerance["score"]:
            found.append(f"{name}: person {person['id']}: score off by {score_error:.2g} (of {tolerance['score']})")
    return found
