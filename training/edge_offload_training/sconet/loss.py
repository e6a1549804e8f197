"""The loss: classes by weighted cross-entropy, completion by soft Dice of what is not empty, at the U-Net's end too."""

from __future__ import annotations

from typing import Dict, Tuple

import torch
from torch.nn import functional as F

from edge_offload.models.scenes.labels import IGNORED

WEIGHTS = torch.tensor(
    [0.6, 2.2, 4.0, 4.0, 3.0, 4.0, 5.0, 5.0, 3.0, 1.3, 1.6, 1.5, 1.3, 1.3, 3.0, 2.2, 4.0, 1.3, 4.5, 5.0]
)
"""By label value. Rarer kinds weigh more, less so than in inverse proportion: that would fill the air with poles."""


def loss(logits: torch.Tensor, labels: torch.Tensor) -> Tuple[torch.Tensor, Dict[str, float]]:
    """Loss of float [b, c, x, y, z] logits against int64 [b, x, y, z] labels, and its parts as floats."""
    weights = WEIGHTS.to(logits.device)[: logits.shape[1]]
    labelled = (labels != IGNORED).reshape(-1)
    if not bool(labelled.any()):
        return logits.sum() * 0.0, {"classes": 0.0, "completion": 0.0}
    shares = F.log_softmax(logits.permute(0, 2, 3, 4, 1).reshape(-1, logits.shape[1]), dim=1)
    expected = labels.reshape(-1)
    classes = F.nll_loss(shares, expected, weights, ignore_index=IGNORED)
    dice = _dice_loss(1.0 - shares[:, 0].exp(), expected > 0, labelled)
    return classes + dice, {"classes": float(classes.detach()), "completion": float(dice.detach())}


def coarse_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of float [b, x, y, z] logits for "full" against uint8 labels of the same shape.

    The first of the numbers that the U-Net hands to the head is taken for such a logit: the head is dear and sees a
    window only, the U-Net learns from the whole crop.
    """
    labelled = labels != IGNORED
    if not bool(labelled.any()):
        return logits.sum() * 0.0
    truth = (labels > 0).float()
    bits = F.binary_cross_entropy_with_logits(logits, truth, labelled.float(), reduction="sum") / labelled.sum()
    return bits + _dice_loss(torch.sigmoid(logits), truth, labelled)


def _dice_loss(full: torch.Tensor, truth: torch.Tensor, labelled: torch.Tensor) -> torch.Tensor:
    full, truth = full * labelled, truth * labelled
    return 1.0 - (2.0 * (full * truth).sum() + 1.0) / (full.sum() + truth.sum() + 1.0)
