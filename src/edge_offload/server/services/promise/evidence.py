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
RESULTS, ENOUGH = 64, 12
#: What is said may be so many times what results differ by, or this share of it.
MOST, LEAST = 10.0, 0.01
#: Differences below this are rounding.
NOISE = 2e-4
#: Results further apart than this are not compared (frames).
FAR = 60
#: Numbers of an output that are looked at, evenly spread.
LOOKED_AT = 16384


class Evidence:
    """Evidence of one robot. One thread at a time."""

    def __init__(self) -> None:
        self._last: Optional[Tuple[int, List[Array]]] = None
        self._seen: Deque[Tuple[int, float]] = deque(maxlen=RESULTS)
        self._note = ""

    @property
    def note(self) -> str:
        """Explanation of a declaration that was limited; empty: none."""
        return self._note

    def result(self, frame: int, outputs: Sequence[torch.Tensor]) -> None:
        """Record the network's outputs for a frame."""
        now = frame, [_looked_at(output) for output in outputs]
        before, self._last = self._last, now
        if before is not None and 0 < frame - before[0] <= FAR:
            self._seen.append((frame - before[0], difference(before[1], now[1])))

    def believed(self, wish: Wish) -> Wish:
        """What a robot says, as far as its results bear it out."""
        self._note = ""
        if len(self._seen) < ENOUGH:
            return wish
        seen = sum(differs for _, differs in self._seen) / len(self._seen)
        said = sum(_lost(wish, frames) for frames, _ in self._seen) / len(self._seen)
        most, least = MOST * max(seen, NOISE), LEAST * (seen - NOISE)
        frames = sum(frames for frames, _ in self._seen) / len(self._seen)
        wish = replace(wish, noise=min(wish.noise, most))
        words = f"says it loses {said:.2g} in {frames:.1f} frames, while its results differ by {seen:.2g}"
        if said > most:
            self._note = f"{words}: {most:.2g} is believed"
            return replace(wish, slope=wish.slope * most / said, flicker=wish.flicker * most / said)
        if said < least:
            self._note = f"{words}: {least:.2g} is believed"
            return replace(wish, slope=wish.slope + (least - said) / frames)
        return wish


def difference(before: Sequence[Array], after: Sequence[Array]) -> float:
    """Between two results: 0 (the same) to 1 (nothing in common), on average over the outputs.

    Of labels the share that differs of those that are not 0 in both, of other numbers how much they differ, over what
    they are; rows that only one has differ wholly.
    """
    if len(before) != len(after):
        return 1.0
    found = [_difference(one, other) for one, other in zip(before, after)]
    known = [one for one in found if not math.isnan(one)]
    return sum(known) / len(known) if known else 0.0


def _difference(before: Array, after: Array) -> float:
    if before.shape[1:] != after.shape[1:] or before.dtype != after.dtype:
        return 1.0
    rows = min(len(before), len(after))
    one, other, rest = before[:rows], after[:rows], [before[rows:], after[rows:]]
    if before.dtype.kind == "f":
        apart = float(np.abs(one - other).sum()) + sum(float(np.abs(more).sum()) for more in rest)
        both = float(np.abs(before).sum() + np.abs(after).sum())
    else:
        apart = float(np.count_nonzero(one != other)) + sum(float(np.count_nonzero(more)) for more in rest)
        both = float(np.count_nonzero((one != 0) | (other != 0))) + sum(float(np.count_nonzero(more)) for more in rest)
    if not both:
        return math.nan  # nothing there in either
    share = apart / both
    return min(1.0, share) if math.isfinite(share) else 1.0


def _looked_at(output: torch.Tensor) -> Array:
    """Copy an output to the host, sampled if it is large; float64 or int64 [n, ...]."""
    found = output.detach()
    if found.numel() > LOOKED_AT:
        found = found.reshape(-1)[:: math.ceil(found.numel() / LOOKED_AT)]
    if found.is_complex():
        found = torch.view_as_real(found.resolve_conj())
    if found.is_quantized:
        found = found.dequantize()
    kind = torch.float64 if found.is_floating_point() else torch.int64
    array: Array = found.cpu().to(kind, copy=True).numpy()
    return array.reshape(1) if array.ndim == 0 else array


def _lost(wish: Wish, frames: int) -> float:
    """Return the loss that a robot declares for a result of this age (frames)."""
    kept = math.exp(-frames / wish.settle) if wish.settle else 0.0
    return wish.slope * frames + wish.flicker * (1 - kept)
