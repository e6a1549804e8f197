"""How good tracking is: the CLEAR MOT measures (Bernardin and Stiefelhagen 2008) and IDF1 (Ristani et al. 2016)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from edge_offload.arrays import Array
from edge_offload.perception.assignment import assign, iou_matrix


@dataclass(frozen=True)
class TrackingQuality:
    """Counts over all frames.

    Attributes:
        objects: people labelled; ``matches`` of them were found.
        misses: labelled but not found. ``false_positives``: found but not labelled.
        switches: how often a labelled person's id changed.
        fragmentations: how often a labelled person was found, lost and found again.
        mota: 1 - (misses + false positives + switches) / objects; may be negative; NaN without labels.
        motp: mean overlap of matches; NaN without matches.
        idf1: F1 of the best one-to-one mapping of whole tracks to people; NaN when there is nothing at all.
    """

    frames: int
    objects: int
    matches: int
    misses: int
    false_positives: int
    switches: int
    fragmentations: int
    mota: float
    motp: float
    idf1: float

    @property
    def recall(self) -> float:
        """Share of labelled people that were found."""
        return self.matches / self.objects if self.objects else float("nan")

    @property
    def precision(self) -> float:
        """Share of found people that were labelled."""
        found = self.matches + self.false_positives
        return self.matches / found if found else float("nan")


class TrackingScore:
    """Accumulates frames of labelled and of found people (id → box [4]).

    A pair matched in the last frame stays matched while it overlaps by ``min_iou``; the rest are assigned anew.
    """

    def __init__(self, min_iou: float = 0.5) -> None:
        self._min_iou = min_iou
        self._last_id: Dict[int, int] = {}
        self._found_before: Dict[int, bool] = {}
        self._together: Counter[Any] = Counter()
        self._labelled: Counter[Any] = Counter()
        self._reported: Counter[Any] = Counter()
        self._frames = self._misses = self._false = self._switches = self._fragments = 0
        self._overlaps: List[float] = []

    def add(
        self,
        labelled: Mapping[int, Array],
        found: Mapping[int, Array],
        dont_care: Sequence[Array] = (),
    ) -> Dict[int, int]:
        """Take in one frame; labelled id → found id of the people that match.

        Args:
            dont_care: boxes [4] of people who need not be found; whoever is found there and matches nobody else does
                not count.
        """
        truth, ids = sorted(labelled), sorted(found)
        overlap = iou_matrix(_stack(labelled, truth), _stack(found, ids))
        matched = self._match(truth, ids, overlap)
        if len(dont_care) and ids:
            aside = (iou_matrix(_stack(found, ids), np.stack(dont_care)) >= self._min_iou).any(axis=1)
            kept = [j for j, track in enumerate(ids) if not aside[j] or track in matched.values()]
            ids, overlap = [ids[j] for j in kept], overlap[:, kept]
        for person, track in matched.items():
            last = self._last_id.get(person)
            self._switches += last is not None and last != track
            self._fragments += person in self._found_before and not self._found_before[person]
            self._last_id[person] = track
            self._overlaps.append(float(overlap[truth.index(person), ids.index(track)]))
        for person in truth:
            if person in matched or person in self._found_before:
                self._found_before[person] = person in matched
        for i, j in zip(*np.nonzero(overlap >= self._min_iou)):
            self._together[(truth[i], ids[j])] += 1
        self._labelled.update(truth)
        self._reported.update(ids)
        self._frames += 1
        self._misses += len(truth) - len(matched)
        self._false += len(ids) - len(matched)
        return matched

    def _match(self, truth: List[int], ids: List[int], overlap: Array) -> Dict[int, int]:
        matched: Dict[int, int] = {}
        for i, person in enumerate(truth):
            track = self._last_id.get(person)
            if track in ids and track not in matched.values() and overlap[i, ids.index(track)] >= self._min_iou:
                matched[person] = track
        rows = [i for i, person in enumerate(truth) if person not in matched]
        columns = [j for j, track in enumerate(ids) if track not in matched.values()]
        rest = overlap[np.ix_(rows, columns)]
        pairs, _, _ = assign(np.where(rest >= self._min_iou, 1 - rest, np.inf), limit=1.0)
        matched.update({truth[rows[i]]: ids[columns[j]] for i, j in pairs})
        return matched

    def result(self) -> TrackingQuality:
        """The measures over all frames so far."""
        objects = sum(self._labelled.values())
        errors = self._misses + self._false + self._switches
        return TrackingQuality(
            frames=self._frames,
            objects=objects,
            matches=len(self._overlaps),
            misses=self._misses,
            false_positives=self._false,
            switches=self._switches,
            fragmentations=self._fragments,
            mota=1 - errors / objects if objects else float("nan"),
            motp=float(np.mean(self._overlaps)) if self._overlaps else float("nan"),
            idf1=self._idf1(),
        )

    def _idf1(self) -> float:
        total = sum(self._labelled.values()) + sum(self._reported.values())
        if not total:
            return float("nan")
        people, tracks = sorted(self._labelled), sorted(self._reported)
        shared = np.zeros((len(people), len(tracks)))
        for (person, track), frames in self._together.items():
            shared[people.index(person), tracks.index(track)] = frames
        rows, columns = linear_sum_assignment(-shared)
        return float(2 * shared[rows, columns].sum() / total)


def _stack(boxes: Mapping[int, Array], order: List[int]) -> Array:
    return np.array([boxes[key] for key in order], dtype=np.float64).reshape(-1, 4)
