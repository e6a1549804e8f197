"""The loss: classes by weighted cross-entropy, completion by soft Dice of what is not empty."""

from __future__ import annotations

from typing import Dict, Tuple

import torch
from torch.nn import functional as F

from edge_offload.models.sconet.labels import IGNORED

WEIGHTS = torch.tensor(
    [0.6, 2.2, 4.0, 4.0, 3.0, 4.0, 5.0, 5.0, 3.0, 1.3, 2.0, 1.8, 2.0, 1.3, 3.0, 2.2, 4.0, 1.3, 4.5, 5.0]
)
"""By label value. Rarer kinds weigh more, less so than in inverse proportion: that would fill the air with poles."""


def loss(logits: torch.Tensor, labels: torch.Tensor) -> Tuple[torch.Tensor, Dict[str, float]]:
    """Loss of float [b, c, x, y, z] logits against int64 [b, x, y, z] labels, and its parts as floats."""
    weights = WEIGHTS.to(logits.device)[: logits.shape[1]]
    flat = logits.permute(0, 2, 3, 4, 1)[labels != IGNORED]
    wanted = labels[labels != IGNORED]
    if not len(wanted):
        return logits.sum() * 0.0, {"classes": 0.0, "completion": 0.0}
    classes = F.cross_entropy(flat, wanted, weights)
    full = 1.0 - torch.softmax(flat, dim=1)[:, 0]
    truth = (wanted > 0).float()
    dice = 1.0 - (2.0 * (full * truth).sum() + 1.0) / (full.sum() + truth.sum() + 1.0)
    return classes + dice, {"classes": float(classes.detach()), "completion": float(dice.detach())}
