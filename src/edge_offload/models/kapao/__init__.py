"""KAPAO: poses and keypoints as objects of one YOLOv5-P6 detector."""

from __future__ import annotations

import functools
from typing import Any, Dict, Tuple

from edge_offload.models.kapao.estimator import DEFAULTS, KapaoEstimator
from edge_offload.models.registry import Entry

_SUMMARIES = {
    "n": "KAPAO nano: 3.2 M parameters, 4.6 GFLOP at 640×640",
    "s": "KAPAO small: 12.6 M parameters, 17.1 GFLOP at 640×640",
    "m": "KAPAO medium: 35.8 M parameters, 51.9 GFLOP at 640×640",
    "l": "KAPAO large: 77.0 M parameters, 117 GFLOP at 640×640",
}


def entries() -> Tuple[Entry, ...]:
    """What the registry lists."""

    def build(scale: str, options: Dict[str, Any]) -> KapaoEstimator:
        return KapaoEstimator(scale, **options)

    return tuple(
        Entry(
            name=f"kapao_{scale}",
            kind="people",
            summary=summary,
            source="your checkpoint (option checkpoint=FILE); without one, random weights that find nobody",
            licence="that of the checkpoint",
            build=functools.partial(build, scale),
            options=DEFAULTS,
            path_options=("checkpoint",),
        )
        for scale, summary in _SUMMARIES.items()
    )
