"""SCONet against the baselines on scenes that it was not trained on, with the spread over several sets of scenes."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import LABELS
from edge_offload.models.sconet.baselines import BASELINES, retain_hits
from edge_offload.models.sconet.network import SCONet
from edge_offload_training.sconet.metrics import Confusion
from edge_offload_training.sconet.samples import Pair, make_pair

Method = Callable[[Array], Array]
FIRST_SEED = 10_000_000
"""Scenes for evaluation have numbers from here on; training starts at 0."""


def method_of(network: SCONet) -> Method:
    """A network as a function from occupancy to labels, both uint8 [x, y, 32]; what was hit stays full, as in use."""

    def complete(occupancy: Array) -> Array:
        device = next(network.parameters()).device
        with torch.inference_mode():
            labels: Array = network(torch.from_numpy(occupancy).to(device))[0].cpu().numpy()
        return retain_hits(labels, occupancy)

    return complete


def evaluate(
    network: Optional[SCONet],
    scenes: int,
    runs: int,
    validation: bool = True,
    skip: int = 0,
    report: Optional[Callable[[str], None]] = None,
) -> Dict[str, Any]:
    """Score the baselines, and the network if there is one, on ``runs`` disjoint sets of ``scenes`` scenes.

    The first ``skip`` scenes are left out: those that somebody has looked at while choosing what to train.

    Returns:
        By method: mean and standard deviation over the runs of every figure of :class:`Confusion`, the figures of
        each run, the IoU by class over all scenes; and how far the network's completion IoU is above the best
        baseline in each run.
    """
    methods: Dict[str, Method] = dict(BASELINES)
    if network is not None:
        methods["sconet"] = method_of(network)
    figures: Dict[str, List[Mapping[str, float]]] = {name: [] for name in methods}
    pooled = {name: Confusion() for name in methods}
    first = FIRST_SEED + skip
    for run in range(runs):
        numbers = range(first + run * scenes, first + (run + 1) * scenes)
        single = {name: Confusion() for name in methods}
        for number in numbers:
            _score_scene(make_pair(number, validation), methods, [single, pooled])
            if report is not None:
                report(f"scene {number - first + 1} of {runs * scenes}")
        for name, confusion in single.items():
            figures[name].append(confusion.summary())
    record: Dict[str, Any] = {
        "held_out": validation,
        "scenes": scenes,
        "runs": runs,
        "skipped": skip,
        "methods": {name: _spread_of(rows, pooled[name]) for name, rows in figures.items()},
    }
    if network is not None:
        record["margin"] = _margins_of(figures)
    return record


def _score_scene(scene: Pair, methods: Mapping[str, Method], books: Sequence[Mapping[str, Confusion]]) -> None:
    for name, method in methods.items():
        labels = method(scene.occupancy)
        for book in books:
            book[name].add(labels, scene.labels)


def _spread_of(rows: Sequence[Mapping[str, float]], pooled: Confusion) -> Dict[str, Any]:
    by_class = {LABELS[value]: pooled.class_iou(value) for value in range(1, len(LABELS))}
    return {
        "mean": {key: float(np.mean([row[key] for row in rows])) for key in rows[0]},
        "deviation": {
            key: float(np.std([row[key] for row in rows], ddof=1)) if len(rows) > 1 else 0.0 for key in rows[0]
        },
        "runs": [dict(row) for row in rows],
        "class_iou": {name: value for name, value in by_class.items() if value is not None},
    }


def _margins_of(figures: Mapping[str, Sequence[Mapping[str, float]]]) -> Dict[str, List[float]]:
    margins = {}
    for key in ("completion_iou", "mean_iou"):
        best = [max(row[key] for row in rows) for rows in zip(*(figures[name] for name in BASELINES))]
        margins[key] = [row[key] - other for row, other in zip(figures["sconet"], best)]
    return margins
