"""Several frames of one shape through a module at once, read out one by one; and how far that is from single frames.

A batch has other bits than single frames in most networks (other kernels, other order of sums), so each size is judged
on this machine before it is used.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.execute.engines.base import EAGER, TOLERANCE, Engine, engine_facts, find_mismatch
from edge_offload.execute.module import (
    Divided,
    Execution,
    ModuleExecutor,
    as_ordinary,
    as_tensors,
    canonical_input,
    fetch_outputs,
)
from edge_offload.execute.tensors import Specs, specs_of

#: How far a batch may be from single frames, as a share of an output's largest value, and still be computed.
MAX_RELATIVE_ERROR = 1e-5

#: Sizes and shapes of batches that are captured at once.
MOST_GRAPHS = 16
#: Seconds that the engine of single frames may take to be built, and frames on which it is then compared with torch.
READY_S, TRIALS = 60.0, 2

Tensors = Tuple[torch.Tensor, ...]
Frames = Sequence[Sequence[torch.Tensor]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Comparison of a batch of some size with single frames.

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
        self._graphs: Dict[Specs, Tuple[Engine, str]] = {}

    def prepare_batch(self, frames: Frames) -> None:
        """Prepares batches like this one as they will be computed from now on: captured, if the engine captures.

        It takes some runs, and the time of a capture.
        """
        if len(frames) == 1:
            self._executor.run(frames[0])
            self._executor.engine_ready(READY_S)
            for _ in range(TRIALS):
                self._executor.run(frames[0])
            return
        self.run(frames)
        backend = self._executor.graphs
        device = self._executor.device
        stacked = self._stack_inputs([[canonical_input(one).to(device) for one in frame] for frame in frames])
        specs = specs_of(stacked)
        if backend is None or specs in self._graphs or len(self._graphs) >= MOST_GRAPHS:
            return
        with torch.inference_mode():
            want = self._run_batch(stacked)
            try:
                engine = backend.capture(self._run_batch, stacked)
                wrong = find_mismatch(want, engine.run(stacked), TOLERANCE[backend.accuracy])
            except Exception as error:
                wrong = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
        if wrong:
            _log.info("batches of %d are not captured: %s", len(frames), wrong)
        else:
            self._graphs[specs] = engine, str(engine_facts(backend))

    def run(self, frames: Frames) -> List[Execution]:
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
            stacked = self._stack_inputs(moved)
            graph, engine = self._graphs.get(specs_of(stacked), (None, EAGER)) if self._graphs else (None, EAGER)
            together = self._run_batch(stacked) if graph is None else graph.run(stacked)
            outputs = [fetch_outputs(self._read_out(*dense)) for dense in self._split_frames(together, len(frames))]
            elapsed = time.monotonic() - started
        return [Execution(as_ordinary(one), elapsed, f"{engine} batch {len(frames)}") for one in outputs]

    def compare_batch(self, frames: Frames) -> Verdict:
        """Compare a batch of these frames with each of them alone, by the dense part's outputs."""
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
        for one, other in zip(single, together):
            if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
                return Verdict(size, False, float("nan"), "a batch gives other shapes than single frames")
            for want, result in zip(one, other):
                if torch.equal(want, result):
                    continue
                equal = False
                largest = float(want.abs().max().clamp_min(1e-30))
                difference = float((want.double() - result.double()).abs().max()) / largest
                worst = max(worst, difference) if difference == difference else float("inf")
        reason = f"a batch is {worst:.1e} of the largest value from single frames, more than {MAX_RELATIVE_ERROR:.0e}"
        return Verdict(size, equal, worst, reason if worst > MAX_RELATIVE_ERROR else "")

    @staticmethod
    def _stack_inputs(frames: Frames) -> List[torch.Tensor]:
        """Inputs of all frames, input by input, with one more dimension in front."""
        return [torch.stack(list(column)) for column in zip(*frames)]

    def _run_batch(self, stacked: Sequence[torch.Tensor]) -> Tensors:
        """Outputs of the dense part for stacked inputs."""
        if self._batch is not None:
            return as_tensors(self._batch(*stacked))
        return as_tensors(torch.vmap(self._network)(*stacked))

    def _split_frames(self, outputs: Sequence[torch.Tensor], size: int) -> List[Tensors]:
        """Outputs frame by frame."""
        if self._batch is None:
            return [tuple(tensor[at] for tensor in outputs) for at in range(size)]
        if any(len(tensor) != size for tensor in outputs):
            raise Unsupported(f"the network does not keep its {size} frames apart")
        return [tuple(tensor[at : at + 1] for tensor in outputs) for at in range(size)]
