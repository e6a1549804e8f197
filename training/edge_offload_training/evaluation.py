"""How well people are found: average precision, recall and precision against labels, with bootstrap intervals.

A find matches the labelled person whom it resembles most and who is not taken yet, best score first, as COCO does.
Resemblance is the overlap of the boxes, or the object keypoint similarity (COCO keypoint evaluation). A person labelled
as partly hidden is a don't-care: neither missed when not found, nor a false alarm when found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.people import People

OKS_SIGMAS = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89], dtype=float) / 1000
"""COCO's standard deviations per keypoint, as a share of the person's size."""

BODY_SHARE = 0.53
"""Area of a person as a share of their box, where no outline is labelled (the value that COCO's tools use)."""

COCO_RANGE = tuple(np.arange(0.5, 0.96, 0.05).round(2).tolist())


@dataclass
class Truth:
    """Labelled people of one frame.

    Attributes:
        boxes: float [n, 4] x1 y1 x2 y2 pixels.
        partial: bool [n], don't-care.
        keypoints: float [n, 17, 3] with a third number above 0 where labelled; zeros where there are none.
    """

    boxes: Array
    partial: Array
    keypoints: Array


def truth_of(people: People, visible: float) -> Truth:
    """A teacher's finds as labels; keypoints that score below ``visible`` are not labelled."""
    keypoints = people.keypoints.astype(float)
    keypoints[..., 2] = keypoints[..., 2] >= visible
    return Truth(people.boxes.astype(float), np.zeros(len(people), dtype=bool), keypoints)


def box_overlap(people: People, truth: Truth) -> Array:
    """Intersection over union, float [finds, labels]."""
    low = np.maximum(people.boxes[:, None, :2], truth.boxes[None, :, :2])
    high = np.minimum(people.boxes[:, None, 2:], truth.boxes[None, :, 2:])
    shared = (high - low).clip(0).prod(2)
    found, labelled = ((boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1) for boxes in (people.boxes, truth.boxes))
    ratios: Array = shared / (found[:, None] + labelled[None] - shared).clip(1e-9)
    return ratios


def keypoint_similarity(people: People, truth: Truth) -> Array:
    """Object keypoint similarity, float [finds, labels]: mean over labelled keypoints of exp(−d² / 2 s² k²)."""
    area = BODY_SHARE * (truth.boxes[:, 2:] - truth.boxes[:, :2]).clip(0).prod(1)
    squared = np.square(people.keypoints[:, None, :, :2] - truth.keypoints[None, :, :, :2]).sum(3)
    closeness = np.exp(-squared / (2 * area[None, :, None].clip(1) * np.square(2 * OKS_SIGMAS)))
    labelled = truth.keypoints[..., 2] > 0
    similarities: Array = (closeness * labelled[None]).sum(2) / labelled.sum(1).clip(1)[None]
    return similarities


Resemblance = Callable[[People, Truth], Array]


@dataclass
class Matched:
    """One frame after matching.

    Attributes:
        scores: float [n] of the finds that count, best first.
        right: bool [n], whether each found a labelled person.
        labelled: people who had to be found.
    """

    scores: Array
    right: Array
    labelled: int


def match(people: People, truth: Truth, threshold: float = 0.5, resemblance: Resemblance = box_overlap) -> Matched:
    """Match one frame's finds with its labels; see the module's text for the rule."""
    values = resemblance(people, truth) if len(people) and len(truth.boxes) else np.zeros((len(people), 0))
    free = np.ones(values.shape[1], dtype=bool)
    scores: List[float] = []
    right: List[bool] = []
    for index in np.argsort(-people.scores, kind="stable"):
        # required people first: a don't-care never takes a find away from somebody who must be found
        chosen = -1
        for eligible in (free & ~truth.partial, free & truth.partial):
            candidates = np.where(eligible, values[index], -1.0)
            if len(candidates) and candidates.max() >= threshold:
                chosen = int(candidates.argmax())
                break
        if chosen >= 0:
            free[chosen] = False
            if truth.partial[chosen]:
                continue
        scores.append(float(people.scores[index]))
        right.append(chosen >= 0)
    return Matched(np.array(scores), np.array(right, dtype=bool), int((~truth.partial).sum()))


def average_precision(frames: Sequence[Matched]) -> float:
    """Area under precision over recall, precision made monotonic and read at COCO's 101 recalls; 0 to 1."""
    labelled = sum(frame.labelled for frame in frames)
    if not labelled:
        return 0.0
    scores = np.concatenate([frame.scores for frame in frames])
    right = np.concatenate([frame.right for frame in frames])[np.argsort(-scores, kind="stable")]
    hits = np.cumsum(right)
    recall = hits / labelled
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    places = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    return float(np.append(precision, 0.0)[places].mean())  # a recall that is never reached counts as precision 0


def at_threshold(frames: Sequence[Matched], score: float) -> Tuple[float, float, float]:
    """Recall, precision and F1 of the finds whose score reaches ``score`` (dropping weaker ones changes no match)."""
    return _rates(_counts(frames, score).sum(0))


def _counts(frames: Sequence[Matched], score: float) -> Array:
    """Per frame: right finds, finds, labelled people; int [frames, 3]."""
    rows = [
        (int(frame.right[frame.scores >= score].sum()), int((frame.scores >= score).sum()), frame.labelled)
        for frame in frames
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _rates(totals: Array) -> Tuple[float, float, float]:
    right, found, labelled = (int(value) for value in totals)
    return right / max(1, labelled), right / max(1, found), 2 * right / max(1, labelled + found)


def best_threshold(frames: Sequence[Matched]) -> float:
    """The score, in steps of 0.01, at which F1 is highest (the middle one where several are)."""
    steps = np.arange(0.01, 1.0, 0.01).round(2)
    values = np.array([at_threshold(frames, step)[2] for step in steps])
    best = steps[values >= values.max() - 1e-12]
    return float(best[len(best) // 2])


def intervals(frames: Sequence[Matched], score: float, blocks: int, draws: int = 1000) -> List[Tuple[float, float]]:
    """95 % intervals of recall, precision and F1 by bootstrap over ``blocks`` runs of consecutive frames.

    Neighbouring frames show the same people in nearly the same places; drawing whole runs keeps that in the interval.
    """
    runs = np.array([part.sum(0) for part in np.array_split(_counts(frames, score), blocks) if len(part)])
    values = np.array([_rates(runs[chosen].sum(0)) for chosen in _draws(len(runs), draws)])
    return [(float(low), float(high)) for low, high in np.percentile(values, [2.5, 97.5], axis=0).T]


def precision_interval(frames: Sequence[Matched], blocks: int, draws: int = 200) -> Tuple[float, float]:
    """The same for :func:`average_precision`."""
    runs = [part for part in np.array_split(np.arange(len(frames)), blocks) if len(part)]
    values = [
        average_precision([frames[index] for run in chosen for index in runs[run]])
        for chosen in _draws(len(runs), draws)
    ]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _draws(runs: int, draws: int) -> Array:
    return np.random.default_rng(0).integers(0, runs, (draws, runs))


def figures(
    found: Sequence[People], truths: Sequence[Truth], score: float, blocks: int, with_keypoints: bool
) -> Dict[str, object]:
    """Everything about one finder on one set of labels, with 95 % intervals as ``[low, high]``.

    Args:
        found, truths: per frame, in the order of the video.
        score: threshold for recall and precision.
        blocks: see :func:`intervals`.
        with_keypoints: whether the labels have keypoints.
    """
    matched = [match(people, truth) for people, truth in zip(found, truths)]
    recall, precision, f1 = at_threshold(matched, score)
    spreads = intervals(matched, score, blocks)
    result: Dict[str, object] = {
        "frames": len(matched),
        "people": sum(frame.labelled for frame in matched),
        "score": score,
        "recall": recall,
        "recall_interval": spreads[0],
        "precision": precision,
        "precision_interval": spreads[1],
        "f1": f1,
        "f1_interval": spreads[2],
        "box_ap50": average_precision(matched),
        "box_ap50_interval": precision_interval(matched, blocks),
        "box_ap": mean_average_precision(found, truths, box_overlap),
    }
    if with_keypoints:
        result["keypoint_ap"] = mean_average_precision(found, truths, keypoint_similarity)
        result["keypoint_ap50"] = average_precision(
            [match(people, truth, 0.5, keypoint_similarity) for people, truth in zip(found, truths)]
        )
    return {key: _rounded(value) for key, value in result.items()}


def mean_average_precision(found: Sequence[People], truths: Sequence[Truth], resemblance: Resemblance) -> float:
    """Mean of the average precision over COCO's ten thresholds, 0.5 to 0.95."""
    return float(
        np.mean(
            [
                average_precision([match(p, t, threshold, resemblance) for p, t in zip(found, truths)])
                for threshold in COCO_RANGE
            ]
        )
    )


def _rounded(value: object) -> object:
    if isinstance(value, tuple):
        return [round(part, 4) for part in value]
    return round(value, 4) if isinstance(value, float) else value
