"""Exact greedy non-maximum suppression in plain PyTorch: any device, no extension, no loop over boxes.

Candidates are processed in blocks, best first. Boxes selected earlier first suppress those of a block. Inside the
block the greedy rule "selected if no selected better box overlaps" is iterated as a matrix product to its fixed point.
Each box depends on better ones only, so the fixed point is unique and equals the greedy solution.
"""

from __future__ import annotations

from typing import List

import torch

BLOCK = 512
"""Candidates compared at once, which bounds the overlap matrix at BLOCK² numbers."""

SWEEPS = 8
"""Iterations between two tests for the fixed point. A test is a host read, which costs a round trip on a remote
device; longer chains of boxes that suppress the next one are rare."""

MAX_DET = 300
"""Default number of boxes that survive."""


def box_overlaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of x1 y1 x2 y2 boxes, [n, 4] and [m, 4] to [n, m]; 0 for a pair without area."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    area_a = (a[:, 2:] - a[:, :2]).prod(1)
    area_b = (b[:, 2:] - b[:, :2]).prod(1)
    union = area_a[:, None] + area_b[None, :] - shared
    return torch.where(union > 0, shared / union, torch.zeros_like(union))


def nms(
    boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor, iou: float, max_det: int = MAX_DET
) -> torch.Tensor:
    """Return the indices of the surviving boxes, best first (ties: lower index first), at most ``max_det``.

    Args:
        boxes: float [n, 4], x1 y1 x2 y2.
        scores: float [n].
        classes: [n]; only boxes of one class suppress each other.
        iou: overlap above which a selected better box suppresses another.
        max_det: most surviving boxes.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    selected: List[torch.Tensor] = []
    count = 0
    for block in order.split(BLOCK):
        alive = torch.ones(block.numel(), dtype=torch.bool, device=boxes.device)
        if selected:
            before = torch.cat(selected)
            alive = ~_suppression_matrix(boxes, classes, before, block, iou).any(0)
        inside = _suppression_matrix(boxes, classes, block, block, iou).triu(1).to(torch.float32)
        survivors = block[_fixed_point(inside, alive)]
        selected.append(survivors)
        count += survivors.numel()
        if count >= max_det:
            break
    return torch.cat(selected)[:max_det] if selected else order


def _suppression_matrix(
    boxes: torch.Tensor, classes: torch.Tensor, a: torch.Tensor, b: torch.Tensor, iou: float
) -> torch.Tensor:
    """Return bool [a, b]: whether a box of ``a`` would suppress one of ``b``."""
    return (box_overlaps(boxes[a], boxes[b]) > iou) & (classes[a][:, None] == classes[b][None, :])


def _fixed_point(suppresses: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
    """Solve for bool [n]: selected[j] = alive[j] and no better i with selected[i] and suppresses[i, j]."""
    selected = alive
    while True:
        for _ in range(SWEEPS):
            previous = selected
            selected = alive & ((selected.to(suppresses.dtype) @ suppresses) == 0)
        if torch.equal(previous, selected):
            return selected
