"""How well people are found: COCO's average precision, recall and precision against labels, with bootstrap intervals.

Matching and average precision are pycocotools': a find matches the labelled person whom it resembles most and who is
not taken yet, best score first. Resemblance is the overlap of the boxes ("bbox"), or the object keypoint similarity
("keypoints"). A person labelled as partly hidden is a don't-care: neither missed when not found, nor a false alarm
when found.
"""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from pycocotools.cocoeval import COCOeval

from edge_offload.arrays import Array
from edge_offload.models.people import People

BODY_SHARE = 0.53
"""Area of a person as a share of their box, where no outline is labelled (the value that COCO's tools use)."""


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


class _Evaluation(COCOeval):  # type: ignore[misc]
    """pycocotools' evaluation of frames that are given as arrays, with don't-cares of its own."""

    def __init__(self, kind: str, people: Sequence[People], truths: Sequence[Truth], threshold: float) -> None:
        super().__init__(iouType=kind)
        params = self.params
        params.imgIds, params.catIds = list(range(len(people))), [0]
        params.iouThrs, params.maxDets, params.areaRng = np.array([threshold]), [1 << 30], [[0.0, np.inf]]
        self._frames = list(zip(people, truths))

    def _prepare(self) -> None:
        """Fill what ``evaluate`` reads. For keypoints, people without labelled ones are don't-cares, too."""
        self._gts, self._dts = defaultdict(list), defaultdict(list)
        for number, (people, truth) in enumerate(self._frames):
            unlabelled = (truth.keypoints[..., 2] <= 0).all(axis=1) & (self.params.iouType == "keypoints")
            self._gts[number, 0] = _coco_objects(truth.boxes, truth.keypoints, "ignore", truth.partial | unlabelled)
            self._dts[number, 0] = _coco_objects(people.boxes, people.keypoints, "score", people.scores)

    def match_frames(self) -> List[Matched]:
        """Match every frame."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.evaluate()
        return [_match_image(image) for image in self.evalImgs]

    def average_precision(self, frames: Sequence[Matched]) -> float:
        """Area under precision over recall of frames that are matched; -1 where nobody had to be found."""
        self.params.imgIds = list(range(len(frames)))
        self._paramsEval = self.params
        self.evalImgs = [
            {
                "dtScores": frame.scores,
                "dtMatches": frame.right[None],
                "dtIgnore": np.zeros((1, len(frame.right)), dtype=bool),
                "gtIgnore": np.zeros(frame.labelled),
            }
            for frame in frames
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            self.accumulate()
        return float(self.eval["precision"].mean())


def _coco_objects(boxes: Array, keypoints: Array, kind: str, values: Array) -> List[Dict[str, Any]]:
    """Boxes x1 y1 x2 y2 and keypoints as COCO's objects, each with its value under the name ``kind``.

    They are numbered from 1: 0 means nobody.
    """
    corners = np.asarray(boxes, dtype=float).reshape(-1, 4)
    sides = (corners[:, 2:] - corners[:, :2]).clip(0)
    return [
        {
            "id": index + 1,
            "bbox": [*corners[index, :2], *sides[index]],
            "area": BODY_SHARE * sides[index].prod(),
            "keypoints": np.asarray(keypoints[index], dtype=float).ravel(),
            "iscrowd": 0,
            kind: value,
        }
        for index, value in enumerate(values.tolist())
    ]


def _match_image(image: Any) -> Matched:
    if image is None:  # nobody there, nobody found
        return Matched(np.zeros(0), np.zeros(0, dtype=bool), 0)
    counts = ~image["dtIgnore"][0].astype(bool)
    labelled = int((image["gtIgnore"] == 0).sum())
    return Matched(np.array(image["dtScores"])[counts], image["dtMatches"][0][counts] > 0, labelled)


def match(
    people: Sequence[People], truths: Sequence[Truth], threshold: float = 0.5, kind: str = "bbox"
) -> List[Matched]:
    """Match every frame's finds with its labels, by resemblance of a kind and of at least ``threshold``."""
    return _Evaluation(kind, people, truths, threshold).match_frames()


def average_precision(frames: Sequence[Matched]) -> float:
    """Area under precision over recall, precision made monotonic and read at COCO's 101 recalls; 0 to 1."""
    return max(0.0, _Evaluation("bbox", [], [], 0.5).average_precision(frames))


def at_threshold(frames: Sequence[Matched], score: float) -> Tuple[float, float, float]:
    """Recall, precision and F1 of the finds whose score reaches ``score`` (dropping weaker ones changes no match)."""
    return _rates_of(_count_finds(frames, score).sum(0))


def _count_finds(frames: Sequence[Matched], score: float) -> Array:
    """Per frame: right finds, finds, labelled people; int [frames, 3]."""
    rows = [
        (int(frame.right[frame.scores >= score].sum()), int((frame.scores >= score).sum()), frame.labelled)
        for frame in frames
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _rates_of(totals: Array) -> Tuple[float, float, float]:
    right, reported, labelled = (int(value) for value in totals)
    return right / max(1, labelled), right / max(1, reported), 2 * right / max(1, labelled + reported)


def best_threshold(frames: Sequence[Matched]) -> float:
    """The score, in steps of 0.01, at which F1 is highest (the middle one where several are)."""
    steps = np.arange(0.01, 1.0, 0.01).round(2)
    values = np.array([at_threshold(frames, step)[2] for step in steps])
    best = steps[values >= values.max() - 1e-12]
    return float(best[len(best) // 2])


def bootstrap_intervals(
    frames: Sequence[Matched], score: float, blocks: int, draws: int = 1000
) -> List[Tuple[float, float]]:
    """95 % intervals of recall, precision and F1 by bootstrap over ``blocks`` runs of consecutive frames.

    Neighbouring frames show the same people in nearly the same places; drawing whole runs keeps that in the interval.
    """
    runs = np.array([part.sum(0) for part in np.array_split(_count_finds(frames, score), blocks) if len(part)])
    values = np.array([_rates_of(runs[chosen].sum(0)) for chosen in _draw_runs(len(runs), draws)])
    return [(float(low), float(high)) for low, high in np.percentile(values, [2.5, 97.5], axis=0).T]


def precision_interval(frames: Sequence[Matched], blocks: int, draws: int = 200) -> Tuple[float, float]:
    """The same for :func:`average_precision`."""
    runs = [part for part in np.array_split(np.arange(len(frames)), blocks) if len(part)]
    values = [
        average_precision([frames[index] for run in chosen for index in runs[run]])
        for chosen in _draw_runs(len(runs), draws)
    ]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _draw_runs(runs: int, draws: int) -> Array:
    return np.random.default_rng(0).integers(0, runs, (draws, runs))


def figures(
    people: Sequence[People], truths: Sequence[Truth], score: float, blocks: int, with_keypoints: bool
) -> Dict[str, object]:
    """Return all figures of one finder on one set of labels, with 95 % intervals as ``[low, high]``.

    Args:
        people: per frame, in the order of the video.
        truths: per frame, in the order of the video.
        score: threshold for recall and precision.
        blocks: see :func:`bootstrap_intervals`.
        with_keypoints: whether the labels have keypoints.
    """
    matched = match(people, truths)
    recall, precision, f1 = at_threshold(matched, score)
    spreads = bootstrap_intervals(matched, score, blocks)
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
        "box_ap": _mean_precision(people, truths, "bbox"),
    }
    if with_keypoints:
        result["keypoint_ap"] = _mean_precision(people, truths, "keypoints")
        result["keypoint_ap50"] = average_precision(match(people, truths, kind="keypoints"))
    return {key: _round_floats(value) for key, value in result.items()}


def _mean_precision(people: Sequence[People], truths: Sequence[Truth], kind: str) -> float:
    """Mean of the average precision over COCO's ten thresholds, 0.5 to 0.95."""
    thresholds = np.linspace(0.5, 0.95, 10)
    return float(np.mean([average_precision(match(people, truths, threshold, kind)) for threshold in thresholds]))


def _round_floats(value: object) -> object:
    if isinstance(value, tuple):
        return [round(part, 4) for part in value]
    return round(value, 4) if isinstance(value, float) else value
