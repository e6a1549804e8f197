"""KAPAO: poses and keypoints as objects of one YOLOv5-P6 detector."""

from __future__ import annotations

import functools
import pathlib
from typing import Any, Callable, Dict, Tuple

from edge_offload.models.entry import Entry
from edge_offload.models.kapao.estimator import DEFAULTS, KapaoEstimator

_SUMMARIES = {
    "n": "KAPAO nano: 3.2 M parameters, 4.6 GFLOP at 640×640",
    "s": "KAPAO small: 12.6 M parameters, 17.1 GFLOP at 640×640",
    "m": "KAPAO medium: 35.8 M parameters, 51.9 GFLOP at 640×640",
    "l": "KAPAO large: 77.0 M parameters, 117 GFLOP at 640×640",
}

SHIPPED = pathlib.Path(__file__).parent / "weights" / "kapao_vtest.safetensors"
"""The moving average of ``edge-offload train kapao`` on the first 550 frames of the sample video, float16."""


def entries() -> Tuple[Entry, ...]:
    """Return the registry's entries."""

    def build(scale: str, options: Dict[str, Any]) -> KapaoEstimator:
        return KapaoEstimator(scale, **options)

    return (*_general_entries(build), *((_shipped_entry(),) if SHIPPED.exists() else ()))


def _shipped_entry() -> Entry:
    """Return the entry of the shipped weights, named apart because they are trained for one scene only."""
    options = {name: value for name, value in DEFAULTS.items() if name not in ("checkpoint", "seed")}

    def build(values: Dict[str, Any]) -> KapaoEstimator:
        estimator = KapaoEstimator("n", checkpoint=str(SHIPPED), seed=0, **values)
        estimator.name = "kapao_vtest"
        return estimator

    return Entry(
        name="kapao_vtest",
        kind="people",
        summary="KAPAO nano with weights, for the sample video's scene only: 3.2 M parameters, 2.2 GFLOP at 512×384",
        source="shipped; from 'edge-offload train kapao' on that video, MoveNet teaching (see its card in docs/)",
        licence="Apache-2.0 (part of edge_offload)",
        build=build,
        options={**options, "size": 512},  # the long side in training
        shipped=SHIPPED,
    )


def _general_entries(build: Callable[[str, Dict[str, Any]], KapaoEstimator]) -> Tuple[Entry, ...]:
    return tuple(
        Entry(
            name=f"kapao_{scale}",
            kind="people",
            summary=summary,
            source="your checkpoint (option checkpoint=FILE.safetensors); without one, random weights that find nobody",
            licence="that of the checkpoint",
            build=functools.partial(build, scale),
            options=DEFAULTS,
            path_options=("checkpoint",),
        )
        for scale, summary in _SUMMARIES.items()
    )
