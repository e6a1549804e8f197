"""KAPAO: poses and keypoints as objects of one YOLOv5-P6 detector."""

from __future__ import annotations

from typing import Tuple

from edge_offload.models.registry import Entry


def entries() -> Tuple[Entry, ...]:
    """What the registry lists."""
    return ()
