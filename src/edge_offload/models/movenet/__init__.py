"""MoveNet-MultiPose: people and keypoints with published weights, small enough for a robot."""

from __future__ import annotations

from typing import Tuple

from edge_offload.models.entry import Entry
from edge_offload.models.movenet import weights
from edge_offload.models.movenet.estimator import DEFAULTS, MoveNetEstimator


def entries() -> Tuple[Entry, ...]:
    """Return the registry's entries."""
    return (
        Entry(
            name="movenet",
            kind="people",
            summary="MoveNet-MultiPose Lightning: 17 keypoints, box and score per person, 4.7 M parameters",
            source=f"npm package {weights.PACKAGE}, converted from TensorFlow.js",
            licence="MIT (package), Apache-2.0 (original model)",
            build=lambda options: MoveNetEstimator(**options),
            options=DEFAULTS,
            fetch=weights.fetch_weights,
            cached=weights.cached_path,
            weights_bytes=weights.CONVERTED_BYTES,
            download_bytes=weights.DOWNLOAD_BYTES,
            sha256=weights.CONVERTED_SHA256,
        ),
    )
