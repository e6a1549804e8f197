"""What a robot says it loses with age, held against how much the results of its own frames differ.

A result that hardly differs from the one before it cannot have been outdated by then, whatever the robot says; where
results differ much, nothing that is carried along stays right. How much of a difference costs accuracy depends on the
task, so that what is said is only kept within a wide band around what is seen. Outputs that are not those of the frames
(an emulated device) say nothing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Deque, List, Optional, Sequence, Tuple

import numpy as np
import torch

from edge_offload.arrays import Array
from edge_offload.server.promises.settings import Wish

#: Results in a row that a robot is judged by, and how many it takes to judge.
WINDOW_RESULTS, LEAST_RESULTS = 64, 12
#: What is said may be so many times what results differ by, or this share of it.
MOST_FACTOR, LEAST_FACTOR = 10.0, 0.01
#: Differences below this are rounding.
ROUNDING = 2e-4
#: Numbers of an output that are looked at, evenly spread.
SAMPLED_NUMBERS = 16384


class LossEvidence:
    """Evidence of one robot. One thread at a time."""

    def __init__(self) -> None:
        self._last: Optional[Tuple[int, List[Array]]] = None
        self._differences: Deque[Tuple[int, float]] = deque(maxlen=WINDOW_RESULTS)
        self._note = ""

    @property
    def note(self) -> str:
        """Explanation of a declaration that was limited; empty: none."""
        return self._note

    def add_result(self, frame: int, outputs: Sequence[torch.Tensor]) -> None:
        """Record the network's outputs for a frame."""
        now = frame, [_sample_output(output) for output in outputs]
        before, self._last = self._last, now
        # results further apart are not compared
        if before is not None and 0 < frame - before[0] <= 60:
            self._differences.append((frame - before[0], result_difference(before[1], now[1])))

    def limit_wish(self, wish: Wish) -> Wish:
        """Return a robot's wish, limited to the losses that its results show."""
        self._note = ""
        if len(self._differences) < LEAST_RESULTS:
            return wish
        observed = sum(share for _, share in self._differences) / len(self._differences)
        declared = sum(_declared_loss(wish, frames) for frames, _ in self._differences) / len(self._differences)
        most, least = MOST_FACTOR * max(observed, ROUNDING), LEAST_FACTOR * (observed - ROUNDING)
        frames = sum(frames for frames, _ in self._differences) / len(self._differences)
        wish = replace(wish, noise=min(wish.noise, most))
        message = f"says it loses {declared:.2g} in {frames:.1f} frames, while its results differ by {observed:.2g}"
        if declared > most:
            self._note = f"{message}: {most:.2g} is believed"
            return replace(wish, slope=wish.slope * most / declared, flicker=wish.flicker * most / declared)
        if declared < least:
            self._note = f"{message}: {least:.2g} is believed"
            return replace(wish, slope=wish.slope + (least - declared) / frames)
        return wish


def result_difference(before: Sequence[Array], after: Sequence[Array]) -> float:
    """Between two results: 0 (the same) to 1 (nothing in common), on average over the outputs.

    Of labels the share that differs of those that are not 0 in both, of other numbers how much they differ, over what
    they are; rows that only one has differ wholly.
    """
    if len(before) != len(after):
        return 1.0
    differences = [_array_difference(value, other) for value, other in zip(before, after)]
    defined = [value for value in differences if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else 0.0


def _array_difference(before: Array, after: Array) -> float:
    if before.shape[1:] != after.shape[1:] or before.dtype != after.dtype:
        return 1.0
    rows = min(len(before), len(after))
    one, other, rest = before[:rows], after[:rows], [before[rows:], after[rows:]]
    if before.dtype.kind == "f":
        difference = float(np.abs(one - other).sum()) + sum(float(np.abs(extra).sum()) for extra in rest)
        total = float(np.abs(before).sum() + np.abs(after).sum())
    else:
        unpaired = sum(float(np.count_nonzero(extra)) for extra in rest)
        difference = float(np.count_nonzero(one != other)) + unpaired
        total = float(np.count_nonzero((one != 0) | (other != 0))) + unpaired
    if not total:
        return math.nan  # nothing there in either
    share = difference / total
    return min(1.0, share) if math.isfinite(share) else 1.0


def _sample_output(output: torch.Tensor) -> Array:
    """Copy an output to the host, sampled if it is large; float64 or int64 [n, ...]."""
    tensor = output.detach()
    if tensor.numel() > SAMPLED_NUMBERS:
        tensor = tensor.reshape(-1)[:: math.ceil(tensor.numel() / SAMPLED_NUMBERS)]
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    kind = torch.float64 if tensor.is_floating_point() else torch.int64
    array: Array = tensor.cpu().to(kind, copy=True).numpy()
    return array.reshape(1) if array.ndim == 0 else array


def _declared_loss(wish: Wish, frames: int) -> float:
    """Return the loss that a robot declares for a result of this age (frames)."""
    decay = math.exp(-frames / wish.settle) if wish.settle else 0.0
    return wish.slope * frames + wish.flicker * (1 - decay)
