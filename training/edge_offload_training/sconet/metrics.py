"""Scores of completed grids, as the SemanticKITTI scene-completion benchmark defines them."""

from __future__ import annotations

from typing import Dict, Optional

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.scenes.labels import IGNORED, LABELS


class Confusion:
    """Counts of voxels by true and by found label, summed over scenes."""

    def __init__(self, classes: int = len(LABELS)) -> None:
        self.counts = np.zeros((classes, classes), dtype=np.int64)

    def add(self, predicted: Array, truth: Array) -> None:
        """Count one scene: uint8 grids of the same shape. Where ``truth`` is ``IGNORED`` nothing counts.

        Raises:
            BadInput: shapes that differ, or a label that does not exist.
        """
        if predicted.shape != truth.shape:
            raise BadInput(f"found grid {predicted.shape}, true grid {truth.shape}")
        labelled = truth != IGNORED
        rows, columns = truth[labelled].astype(np.int64), predicted[labelled].astype(np.int64)
        size = len(self.counts)
        if max(rows.max(initial=0), columns.max(initial=0)) >= size:
            raise BadInput(f"a label above {size - 1}")
        self.counts += np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)

    @property
    def completion_iou(self) -> float:
        """Intersection over union of the full voxels, whatever their labels; NaN if there are none."""
        both = self.counts[1:, 1:].sum()
        union = self.counts.sum() - self.counts[0, 0]
        return float(both / union) if union else float("nan")

    @property
    def precision(self) -> float:
        """Share of the voxels found full that are; NaN if none is found."""
        predicted = self.counts[:, 1:].sum()
        return float(self.counts[1:, 1:].sum() / predicted) if predicted else float("nan")

    @property
    def recall(self) -> float:
        """Share of the full voxels that are found full; NaN if none is."""
        full = self.counts[1:, :].sum()
        return float(self.counts[1:, 1:].sum() / full) if full else float("nan")

    def class_iou(self, label: int) -> Optional[float]:
        """Intersection over union of one label; None if no true voxel has it."""
        if not self.counts[label].sum():
            return None
        both = self.counts[label, label]
        return float(both / (self.counts[label].sum() + self.counts[:, label].sum() - both))

    @property
    def mean_iou(self) -> float:
        """Mean of :meth:`class_iou` over the labels other than empty that occur in truth; NaN if none does."""
        ious = [self.class_iou(label) for label in range(1, len(self.counts))]
        present = [value for value in ious if value is not None]
        return float(np.mean(present)) if present else float("nan")

    def summary(self) -> Dict[str, float]:
        """The figures by name."""
        return {
            "completion_iou": self.completion_iou,
            "precision": self.precision,
            "recall": self.recall,
            "mean_iou": self.mean_iou,
        }
