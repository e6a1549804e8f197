"""Batches: frames of one shape computed together, read out one by one, and compared with single frames.

In most networks a batch gives other bits than single frames: other kernels, another order of sums. So each batch size
is compared on this machine before it is used.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.execute.batch_reader import BatchReader
from edge_offload.execute.engines.base import EAGER, TOLERANCE, Engine, engine_facts, find_mismatch
from edge_offload.execute.module import (
    Divided,
    Execution,
    ModuleExecutor,
    as_ordinary,
    as_tensors,
    canonical_input,
)
from edge_offload.execute.tensors import Specs, specs_of

#: Largest difference from single frames at which a batch is used, as a share of the output's largest value.
MAX_RELATIVE_ERROR = 1e-5

Tensors = Tuple[torch.Tensor, ...]
Frames = Sequence[Sequence[torch.Tensor]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Comparison of a batch of some size with single frames.

    Attributes:
        size: frames of the batch.
        equal: every output has the bits of single frames.
        error: the largest difference, as a share of the output's largest value; NaN if a batch cannot be computed.
        reason: why the size is not used; empty if it may be.
    """

    size: int
    equal: bool
    error: float
    reason: str = ""


class BatchExecutor:
    """Runs an executor's module on several frames: its dense part together, its read-out frame by frame or together.

    A dense part may have a method ``batch``. Its inputs are stacked: frames are a new first dimension. In its outputs
    frames take the place of the first dimension, which has length 1 for a single frame. Without that method
    ``torch.vmap`` batches the network, if it can. The read-out may have such a method, too
    (:class:`~edge_offload.execute.batch_reader.BatchReader`).

    Args:
        executor: owner of the module; its engine computes batches of one frame.
    """

    def __init__(self, executor: ModuleExecutor) -> None:
        self._executor = executor
        module = executor.placed
        self._network: nn.Module = module
        self._read_out: Callable[..., object] = lambda *outputs: outputs
        if isinstance(module, Divided):
            self._network, self._read_out = module.dense_part()
        self._batch: Optional[Callable[..., object]] = getattr(self._network, "batch", None)
        self._reader = BatchReader(self._read_out, executor.device)
        self._graphs: Dict[Specs, Tuple[Engine, str]] = {}

    def prepare_batch(self, frames: Frames) -> None:
        """Prepare for batches of this size and these shapes: capture them, if the engine captures.

        Blocks for some runs and a capture; for one frame, up to 60 s for its engine.
        """
        if len(frames) == 1:
            self._executor.run_module(frames[0])
            self._executor.engine_ready(60.0)
            for _ in range(2):  # frames on which the engine is compared with torch
                self._executor.run_module(frames[0])
            return
        self.run(frames)
        backend = self._executor.graphs
        device = self._executor.device
        stacked = self._stack_inputs([[canonical_input(one).to(device) for one in frame] for frame in frames])
        specs = specs_of(stacked)
        if backend is None or specs in self._graphs or len(self._graphs) >= 16:  # graphs of all sizes and shapes
            return
        with torch.inference_mode():
            expected = self._run_batch(stacked)
            try:
                engine = backend.capture(self._run_batch, stacked)
                mismatch = find_mismatch(expected, engine.run(stacked), TOLERANCE[backend.accuracy])
            except Exception as error:
                mismatch = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        if mismatch:
            _log.info("batches of %d are not captured: %s", len(frames), mismatch)
        else:
            self._graphs[specs] = engine, str(engine_facts(backend))

    def run(self, frames: Frames) -> List[Execution]:
        """Run one inference per frame; ``compute_s`` of each is the time of the whole batch.

        Args:
            frames: inputs of the module, frame by frame, all of the same shapes and dtypes.

        Raises:
            Exception: whatever the module raises, or ``torch.vmap`` for a module that it cannot batch.
        """
        if len(frames) == 1:
            return [self._executor.run_module(frames[0])]
        device = self._executor.device
        with torch.inference_mode():
            canonical = [[canonical_input(tensor) for tensor in frame] for frame in frames]
            started = time.monotonic()
            moved = [[tensor.to(device) for tensor in frame] for frame in canonical]
            stacked = self._stack_inputs(moved)
            graph, engine = self._graphs.get(specs_of(stacked), (None, EAGER)) if self._graphs else (None, EAGER)
            together = self._run_batch(stacked) if graph is None else graph.run(stacked)
            outputs = self._reader.read_frames(together, self._split_frames(together, len(frames)))
            elapsed = time.monotonic() - started
        return [Execution(as_ordinary(one), elapsed, f"{engine} batch {len(frames)}") for one in outputs]

    def compare_batch(self, frames: Frames) -> Verdict:
        """Compare the dense part's outputs for a batch of these frames with those for each frame alone."""
        size = len(frames)
        device = self._executor.device
        try:
            with torch.inference_mode():
                moved = [[canonical_input(tensor).to(device) for tensor in frame] for frame in frames]
                single = [as_tensors(self._network(*frame)) for frame in moved]
                together = self._split_frames(self._run_batch(self._stack_inputs(moved)), size)
        except Exception as error:
            return Verdict(size, False, float("nan"), f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        equal, worst = True, 0.0
        for alone, batched in zip(single, together):
            if [tensor.shape for tensor in alone] != [tensor.shape for tensor in batched]:
                return Verdict(size, False, float("nan"), "a batch gives other shapes than single frames")
            for expected, result in zip(alone, batched):
                if torch.equal(expected, result):
                    continue
                equal = False
                largest = float(expected.abs().max().clamp_min(1e-30))
                difference = float((expected.double() - result.double()).abs().max()) / largest
                worst = max(worst, difference) if difference == difference else float("inf")  # NaN
        reason = f"a batch is {worst:.1e} of the largest value from single frames, more than {MAX_RELATIVE_ERROR:.0e}"
        return Verdict(size, equal, worst, reason if worst > MAX_RELATIVE_ERROR else "")

    @staticmethod
    def _stack_inputs(frames: Frames) -> List[torch.Tensor]:
        """Stack each input over all frames: [frames, *shape of the input]."""
        return [torch.stack(list(column)) for column in zip(*frames)]

    def _run_batch(self, stacked: Sequence[torch.Tensor]) -> Tensors:
        """Return the dense part's outputs for stacked inputs."""
        if self._batch is not None:
            return as_tensors(self._batch(*stacked))
        return as_tensors(torch.vmap(self._network)(*stacked))

    def _split_frames(self, outputs: Sequence[torch.Tensor], size: int) -> List[Tensors]:
        """Return the dense part's outputs frame by frame, in the shapes of single frames."""
        if self._batch is None:
            return [tuple(tensor[at] for tensor in outputs) for at in range(size)]
        if any(len(tensor) != size for tensor in outputs):
            raise Unsupported(f"the network does not keep its {size} frames apart")
        return [tuple(tensor[at : at + 1] for tensor in outputs) for at in range(size)]
