"""SCONet: the scene around a robot, completed and labelled from one LiDAR sweep."""

from __future__ import annotations

from typing import Any, Dict, Tuple

from edge_offload.models.entry import Entry
from edge_offload.models.sconet.completer import DEFAULTS, SHIPPED, SceneCompleter


def entries() -> Tuple[Entry, ...]:
    """Return the registry's entries."""

    def build(options: Dict[str, Any]) -> Any:
        return SceneCompleter(**options).module

    source = (
        "shipped; trained by 'edge-offload train sconet' on procedural scenes only (docs/reference/models/sconet.md)"
        if SHIPPED.exists()
        else "your own (option weights=FILE, from 'edge-offload train sconet'); else random, and nothing is completed"
    )
    return (
        Entry(
            name="sconet",
            kind="scene",
            summary="SCONet: completes and labels 256×256×32 voxels around a LiDAR, 0.5 M parameters, 70 GFLOP",
            source=source,
            licence="Apache-2.0 (part of edge_offload)",
            build=build,
            options=DEFAULTS,
            path_options=("weights",),
            shipped=SHIPPED if SHIPPED.exists() else None,
        ),
    )
