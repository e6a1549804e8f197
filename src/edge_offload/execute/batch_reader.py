"""Reads the frames of a batch out: one by one, or together where that has the same bits and takes less time.

A read-out is many small calls. A GPU takes about as long for those of one frame as for those of all frames together;
a CPU may take longer for all together.
"""

from __future__ import annotations

import logging
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch

from edge_offload.execute.module import fetch_outputs

#: Batches of a size that are read out in both ways: the first loads kernels, the last is timed.
TRIALS = 2

Tensors = Tuple[torch.Tensor, ...]
_log = logging.getLogger(__name__)


class BatchReader:
    """Reads out the dense part's outputs of several frames.

    Args:
        read_out: from one frame's outputs of the dense part to those of the module. Its method ``batch``, if there is
            one, takes the stacked outputs of all frames, and returns a list of what it would return for each.
        device: of the outputs.
        clock: monotonic seconds.
    """

    def __init__(
        self, read_out: Callable[..., object], device: torch.device, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read_out = read_out
        self._batch: Optional[Callable[..., Sequence[Tensors]]] = getattr(read_out, "batch", None)
        self._device, self._clock = device, clock
        self._trials: Dict[int, int] = {}
        #: By number of frames, whether they are read out together.
        self._together: Dict[int, bool] = {}

    def read_frames(self, stacked: Sequence[torch.Tensor], frames: Sequence[Tensors]) -> List[Tensors]:
        """Return each frame's outputs on the CPU; ``frames``: parts of ``stacked``, in the shapes of single frames."""
        size = len(frames)
        if self._batch is None or not self._together.get(size, True):
            return self._read_alone(frames)
        if size in self._together:
            return [fetch_outputs(one) for one in self._batch(*stacked)]
        self._await_device()
        started_s = self._clock()
        alone = self._read_alone(frames)
        between_s = self._clock()
        together = [fetch_outputs(one) for one in self._batch(*stacked)]
        quicker = self._clock() - between_s < between_s - started_s
        same = len(alone) == len(together) and all(map(_are_equal, alone, together))
        self._trials[size] = self._trials.get(size, 0) + 1
        if self._trials[size] == TRIALS or not same:
            self._together[size] = same and quicker
            how = "together" if same and quicker else "one by one" if same else "one by one: together has other bits"
            _log.info("%d frames of a batch are read out %s", size, how)
        return alone

    def _read_alone(self, frames: Sequence[Tensors]) -> List[Tensors]:
        return [fetch_outputs(self._read_out(*one)) for one in frames]

    def _await_device(self) -> None:
        """Wait for what was launched before, which is not to be timed."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _are_equal(one: Tensors, other: Tensors) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
