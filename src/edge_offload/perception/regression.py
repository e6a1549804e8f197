"""Comparison of a run with a golden record of the same frames.

A golden file is a JSON record (schema definition ``golden``): the model and its weights, and for each frame of a bag
its stamp and people, or the number of voxels of each label. Stamps and counts must be equal; boxes, scores and voxels
agree within the tolerances in the golden file, so that a changed tolerance shows in a review.
"""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from typing import Any, Dict, List, Mapping, Sequence, Union

import numpy as np

from edge_offload import records
from edge_offload.errors import BadInput


def person_record(track_id: int, box_xyxy_px: Sequence[float], score: float, predicted: bool = False) -> Dict[str, Any]:
    """Make a person's entry in a golden file, with values rounded far below the tolerances.

    ``predicted``: from earlier frames, in a run with carried results.
    """
    box = [round(float(v), 2) for v in box_xyxy_px]
    return {
        "id": int(track_id),
        "box": box,
        "score": round(float(score), 4),
        **({"predicted": True} if predicted else {}),
    }


def make_golden(model: str, weights_sha256: str, mode: str, frames: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Make a golden record with the default tolerances.

    ``frames``: ``{stamp_ns, results, latencies}`` per frame with ``people`` or ``labels`` (number of voxels of each),
    and with ``origin`` for carried results.
    """
    scenes = any("labels" in frame for frame in frames)
    record = {
        "model": model,
        "weights_sha256": weights_sha256,
        "mode": mode,
        # voxels: share of the full ones, of which another processor's kernels change some
        "tolerance": {"voxels": 0.005} if scenes else {"box_px": 0.5, "score": 1e-3},
        "frames": [dict(frame) for frame in frames],
    }
    records.validate("golden", record)
    return record


def load_golden(path: Union[str, pathlib.Path]) -> Dict[str, Any]:
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


def find_differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> List[str]:
    """Describe each difference of ``actual`` from the golden ``expected`` in one sentence; empty: none.

    The mode is not compared, because it must not change results. Of carried results only stamps and counts are
    compared. People predicted in fresh results are not compared, because the prediction depends on carried ones.
    """
    messages: List[str] = []
    for key in ("model", "weights_sha256"):
        if expected[key] != actual[key]:
            messages.append(f"{key}: golden was made with {expected[key]}, this run used {actual[key]}")
    if messages:
        return messages  # results of another network say nothing about a regression
    kinds = ["labels" if any("labels" in frame for frame in one["frames"]) else "people" for one in (expected, actual)]
    if kinds[0] != kinds[1]:
        return [f"the golden holds {kinds[0]}, this run found {kinds[1]}"]

    by_stamp = {frame["stamp_ns"]: frame for frame in actual["frames"]}
    expected_stamps = {frame["stamp_ns"] for frame in expected["frames"]}
    for stamp in sorted(set(by_stamp) - expected_stamps):
        messages.append(f"frame {stamp}: a result with a stamp that no frame has")
    for index, frame in enumerate(expected["frames"]):
        name = f"frame {index} (stamp {frame['stamp_ns']} ns)"
        result = by_stamp.get(frame["stamp_ns"])
        if result is None:
            messages.append(f"{name}: no result with this stamp")
            continue
        for key in ("results", "latencies"):
            if result[key] != frame[key]:
                messages.append(f"{name}: {result[key]} {key}, expected {frame[key]}")
        # carried results differ from fresh ones, and the machine's speed decides which are carried
        if "origin" in frame or "origin" in result:
            continue
        if "labels" in frame:
            messages += _label_differences(name, frame["labels"], result["labels"], expected["tolerance"]["voxels"])
        else:
            messages += _people_differences(name, frame["people"], result["people"], expected["tolerance"])
    return messages


def describe_counts(record: Mapping[str, Any]) -> str:
    """Format the numbers of frames, of results by origin, and of inferences."""
    frames = record["frames"]
    results, inferences = (sum(frame[key] for frame in frames) for key in ("results", "latencies"))
    origins = Counter(frame["origin"] for frame in frames if "origin" in frame)
    if not origins:
        return f"{len(frames)} frames"
    origin_counts = ", ".join(f"{count} {origin}" for origin, count in origins.most_common())
    origin_counts += f": {'what' if 'labels' in frames[0] else 'who'} was found is not compared"
    return f"{len(frames)} frames, {results} results ({origin_counts}), {inferences} inferences"


def describe_content(record: Mapping[str, Any]) -> str:
    """Format the number of full voxels, or of people."""
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
    messages: List[str] = []
    actual_by_id = {person["id"]: person for person in actual}
    for person in expected:
        if actual_by_id.get(person["id"], {}).get("predicted"):
            continue
        other = actual_by_id.get(person["id"])
        if other is None:
            messages.append(f"{name}: person {person['id']} is missing (ids here: {sorted(actual_by_id)})")
            continue
        box_error = float(np.abs(np.subtract(person["box"], other["box"])).max())
        if not box_error <= tolerance["box_px"]:
            messages.append(f"{name}: person {person['id']}: box off by {box_error:.2f} px (of {tolerance['box_px']})")
        score_error = abs(person["score"] - other["score"])
        if not score_error <= tolerance["score"]:
            messages.append(f"{name}: person {person['id']}: score off by {score_error:.2g} (of {tolerance['score']})")
    return messages
