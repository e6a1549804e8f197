"""torchvision, whose operators some programs call, also where its wheel lacks them."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import torch

from edge_offload.errors import Unsupported

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LIBRARY_ATTRIBUTE = "_edge_offload_library"


@lru_cache(maxsize=1)
def torchvision_package() -> Any:
    """The ``torchvision`` package, with its missing operators defined where its wheel lacks them.

    Raises:
        Unsupported: torchvision is not installed, or does not fit this torch.
    """
    try:
        import torchvision

        return torchvision
    except ImportError as error:
        raise Unsupported("torchvision is not installed", remedy="pip install --no-deps torchvision") from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise Unsupported(f"torchvision does not fit torch {torch.__version__}: {error}") from error
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("nms", _suppress_boxes, "CPU")
    import torchvision
    import torchvision.ops.boxes

    setattr(torchvision, _LIBRARY_ATTRIBUTE, library)  # the registrations live as long as this object
    torchvision.ops.boxes._assert_has_ops = lambda: None
    return torchvision


def _suppress_boxes(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Greedy non-maximum suppression; boxes [n, 4] as x1 y1 x2 y2, scores [n]; int64 indices by falling score."""
    order = scores.argsort(descending=True, stable=True)
    ranked = boxes[order]
    area = (ranked[:, 2] - ranked[:, 0]) * (ranked[:, 3] - ranked[:, 1])
    alive = torch.ones(len(ranked), dtype=torch.bool, device=boxes.device)
    selected = []
    for index in range(len(ranked)):
        if not alive[index]:
            continue
        selected.append(index)
        low = torch.maximum(ranked[index, :2], ranked[index + 1 :, :2])
        high = torch.minimum(ranked[index, 2:], ranked[index + 1 :, 2:])
        overlap = (high - low).clamp(min=0).prod(dim=1)
        alive[index + 1 :] &= ~(overlap / (area[index] + area[index + 1 :] - overlap) > iou_threshold)
    return order[torch.tensor(selected, dtype=torch.int64, device=boxes.device)]
