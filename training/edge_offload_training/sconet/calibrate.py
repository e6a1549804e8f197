"""Calibration of "empty" against "full": the offset at which completed training scenes overlap best with the truth.

The loss weighs rare kinds more and settles between recall and precision by itself; completion IoU has its best balance
elsewhere. One number added to the bias of the label ``empty`` moves it there, and the network stays what it is.
"""

from __future__ import annotations

from typing import Iterable, Sequence, Tuple

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import IGNORED
from edge_offload.models.sconet.network import SCONet

OFFSETS = tuple(np.arange(-3.0, 3.01, 0.1).round(1).tolist())


def completion_offset(
    network: SCONet, scenes: Iterable[Tuple[Array, Array]], offsets: Sequence[float] = OFFSETS
) -> Tuple[float, float, float]:
    """The offset to the logit of ``empty`` with the best completion IoU, pooled over ``scenes``.

    Args:
        network: in eval mode.
        scenes: uint8 [x, y, 32] occupancy and labels; voxels that were hit count as full whatever the network says.
        offsets: that are tried.

    Returns:
        The offset, the IoU with it, the IoU without.
    """
    steps = np.array(sorted(offsets))
    both, union = np.zeros(len(steps)), np.zeros(len(steps))
    at_zero = [0.0, 0.0]
    for occupancy, labels in scenes:
        labelled = labels != IGNORED
        with torch.inference_mode():
            logits = network.logits(torch.from_numpy(occupancy)[None].float())[0]
        # full as long as the offset is below this
        lead = (logits[1:].amax(dim=0) - logits[0]).numpy()
        lead = np.where(occupancy > 0, np.inf, lead)[labelled]
        full = labels[labelled] > 0
        for index, step in enumerate(steps):
            predicted = lead > step
            both[index] += (predicted & full).sum()
            union[index] += (predicted | full).sum()
        at_zero[0] += ((lead > 0) & full).sum()
        at_zero[1] += ((lead > 0) | full).sum()
    scores = both / np.maximum(union, 1)
    best = int(scores.argmax())
    return float(steps[best]), float(scores[best]), float(at_zero[0] / max(at_zero[1], 1))


def apply_offset(network: SCONet, offset: float) -> None:
    """Add ``offset`` to the bias of ``empty``."""
    assert network.head.classify.bias is not None
    with torch.no_grad():
        network.head.classify.bias[0] += offset
