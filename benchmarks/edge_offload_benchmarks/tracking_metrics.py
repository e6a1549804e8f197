"""How good tracking is, by py-motmetrics: CLEAR MOT (Bernardin, Stiefelhagen 2008) and IDF1 (Ristani et al. 2016)."""

from __future__ import annotations

from typing import Dict, Iterable, Mapping, Sequence

import motmetrics
import numpy as np

from edge_offload.arrays import Array
from edge_offload.perception.assignment import iou_matrix

_NAMES = {
    "num_frames": "frames",
    "num_objects": "people",
    "num_misses": "misses",
    "num_false_positives": "false_positives",
    "num_switches": "switches",
    "num_fragmentations": "fragmentations",
    "mota": "mota",
    "motp": "motp",
    "idf1": "idf1",
}


class TrackingScore:
    """Accumulates frames of labelled and of found people (id → box [4]).

    A pair matched in the last frame stays matched while it overlaps by ``min_iou``; the rest are assigned anew.
    """

    def __init__(self, min_iou: float = 0.5) -> None:
        self._min_iou = min_iou
        self._accumulator = motmetrics.MOTAccumulator(auto_id=True)

    def add(self, labelled: Mapping[int, Array], tracks: Mapping[int, Array], dont_care: Sequence[Array] = ()) -> None:
        """Take in one frame.

        Args:
            labelled: boxes [4] by identity, x1 y1 x2 y2, px.
            tracks: boxes [4] by number of the track, x1 y1 x2 y2, px.
            dont_care: boxes [4] of people who need not be found; whoever is found there, and at nobody labelled, does
                not count.
        """
        ids = list(tracks)
        overlap = iou_matrix(_stack(labelled.values()), _stack(tracks.values()))
        aside = iou_matrix(_stack(dont_care), _stack(tracks.values()))
        counts = ~(aside >= self._min_iou).any(axis=0) | (overlap >= self._min_iou).any(axis=0)
        distances = np.where(overlap >= self._min_iou, 1 - overlap, np.nan)[:, counts]
        self._accumulator.update(list(labelled), [who for who, counted in zip(ids, counts) if counted], distances)

    def result(self) -> Dict[str, float]:
        """``frames``, ``people`` labelled, counts of errors, ``mota``, ``motp`` (mean overlap), ``idf1``.

        The last three are NaN where there is nothing to measure.
        """
        metrics = motmetrics.metrics.create()
        measured = metrics.compute(self._accumulator, metrics=list(_NAMES), return_dataframe=False)
        return {**{name: measured[key] for key, name in _NAMES.items()}, "motp": 1 - measured["motp"]}


def _stack(boxes: Iterable[Array]) -> Array:
    return np.array(list(boxes), dtype=np.float64).reshape(-1, 4)
