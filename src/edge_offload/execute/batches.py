"""Several frames of one shape through a module at once, read out one by one; and how far that is from single frames.

A batch has other bits than single frames in most networks (other kernels, other order of sums), so each size is judged
on this machine before it is used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.module import (
    Divided,
    Execution,
    ModuleExecutor,
    as_tensors,
    canonical_input,
    fetched,
    ordinary,
)

#: How far a batch may be from single frames, as a share of an output's largest value, and still be computed.
CLOSE = 1e-5

Tensors = Tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Verdict:
    """How a batch of some size compares with single frames.

    Attributes:
        size: of the batch.
        equal: every output has the bits of single frames.
        error: the largest difference, as a share of the output's largest value; NaN if a batch cannot be computed.
        reason: why it is not used; empty if it may be.
    """

    size: int
    equal: bool
    error: float
    reason: str = ""


class BatchExecutor:
    """Runs an executor's module on several frames: its dense part together, its read-out frame by frame.

    A dense part's method ``batch`` gets inputs with one more dimension in front, and gives outputs whose first is that;
    where there is none, ``torch.vmap`` makes the batched network, if it can.

    Args:
        executor: whose module it is; its engine computes single frames alone.
    """

    def __init__(self, executor: ModuleExecutor) -> None:
        self._executor = executor
        module = executor.placed
        self._network: nn.Module = module
        self._read_out: Callable[..., object] = lambda *outputs: outputs
        if isinstance(module, Divided):
            self._network, self._read_out = module.dense_part()
        self._batch: Optional[Callable[..., object]] = getattr(self._network, "batch", None)

    def run(self, frames: Sequence[Sequence[torch.Tensor]]) -> List[Execution]:
        """One inference for each frame; all have the time of the batch.

        Args:
            frames: inputs of the module, frame by frame, all of the same shapes and dtypes.

        Raises:
            Exception: whatever the module raises, or ``torch.vmap`` for a module that it cannot take.
        """
        if len(frames) == 1:
            return [self._executor.run(frames[0])]
        device = self._executor.device
        with torch.inference_mode():
            canonical = [[canonical_input(tensor) for tensor in frame] for frame in frames]
            started = time.monotonic()
            moved = [[tensor.to(device) for tensor in frame] for frame in canonical]
            outputs = [fetched(self._read_out(*dense)) for dense in self._dense(moved)]
            elapsed = time.monotonic() - started
        return [Execution(ordinary(one), elapsed, f"{EAGER} batch {len(frames)}") for one in outputs]

    def judge(self, frames: Sequence[Sequence[torch.Tensor]]) -> Verdict:
        """Compare a batch of these frames with each of them alone, by the dense part's outputs."""
        size = len(frames)
        device = self._executor.device
        try:
            with torch.inference_mode():
                moved = [[canonical_input(tensor).to(device) for tensor in frame] for frame in frames]
                alone = [as_tensors(self._network(*frame)) for frame in moved]
                together = self._dense(moved)
        except Exception as error:
            return Verdict(size, False, float("nan"), f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        equal, worst = True, 0.0
        for one, other in zip(alone, together):
            if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
                return Verdict(size, False, float("nan"), "a batch gives other shapes than single frames")
            for want, found in zip(one, other):
                if torch.equal(want, found):
                    continue
                equal = False
                largest = float(want.abs().max().clamp_min(1e-30))
                difference = float((want.double() - found.double()).abs().max()) / largest
                worst = max(worst, difference) if difference == difference else float("inf")
        far = worst > CLOSE
        reason = f"a batch is {worst:.1e} of the largest value from single frames, more than {CLOSE:.0e}" if far else ""
        return Verdict(size, equal, worst, reason)

    def _dense(self, frames: Sequence[Sequence[torch.Tensor]]) -> List[Tensors]:
        stacked = [torch.stack(list(column)) for column in zip(*frames)]
        if self._batch is not None:
            outputs = as_tensors(self._batch(*stacked))
            if any(len(tensor) != len(frames) for tensor in outputs):
                raise Unsupported(f"the network does not keep its {len(frames)} frames apart")
            return [tuple(tensor[at : at + 1] for tensor in outputs) for at in range(len(frames))]
        outputs = as_tensors(torch.vmap(self._network)(*stacked))
        return [tuple(tensor[at] for tensor in outputs) for at in range(len(frames))]
