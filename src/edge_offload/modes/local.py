"""Mode ``local``: the whole model on the robot."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from typing import Any, Deque, Mapping, Optional, Sequence

import torch

from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.module import Execution, ModuleExecutor
from edge_offload.manager.lateness import Budget
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt, Runner


class LocalRunner(Runner):
    """Mode ``local``: the whole model on the robot, slowed on purpose by ``slowdown`` where a slow robot is emulated.

    Args:
        slowdown: K ≥ 1; a computation of t seconds is followed by a sleep of (K−1)·t.

    Raises:
        BadInput: a factor below 1.
    """

    mode = Mode.LOCAL

    def __init__(self, executor: ModuleExecutor, slowdown: float = 1.0) -> None:
        if not 1.0 <= slowdown < 1e4:
            raise BadInput(f"robot_slowdown {slowdown:g}", remedy="use a factor of 1 (not slowed) or more")
        self.executor = executor
        self.slowdown = slowdown
        self._recent: Deque[float] = deque(maxlen=16)
        self._on_gpu = True

    def expected_s(self) -> float:
        """Median of the latest computations, slowdown included (seconds); 0 before the first."""
        recent = list(self._recent)
        return statistics.median(recent) if recent else 0.0

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Return None: the robot can always compute by itself."""
        return None

    def attempt_inference(
        self,
        inputs: Sequence[torch.Tensor],
        meta: Optional[Mapping[str, Any]] = None,
        budget: Optional[Budget] = None,
        cancelled: Optional[threading.Event] = None,
    ) -> Attempt:
        """Implement :class:`~edge_offload.modes.runner.Runner`; exceptions of the model are passed on.

        ``cancelled``: set when the result is not needed any more.
        """
        started_s = time.monotonic()
        execution = self.executor.run_module(inputs)
        if self.slowdown > 1.0:
            rest_s = (self.slowdown - 1.0) * execution.compute_s
            if cancelled is not None and cancelled.wait(rest_s):
                return _attempt(execution, time.monotonic() - started_s)
            if cancelled is None:
                time.sleep(rest_s)
        elapsed = time.monotonic() - started_s
        if self._on_gpu != (not execution.note):  # what another device took says nothing of this one
            self._on_gpu = not execution.note
            self._recent.clear()
        self._recent.append(elapsed)
        return _attempt(execution, elapsed)

    def state(self) -> str:
        """Describe where it computes."""
        slowed = f", slowed {self.slowdown:g} times on purpose" if self.slowdown > 1.0 else ""
        engine_state, _ = self.executor.engine_state()
        engine = "" if engine_state == EAGER else f", {engine_state}"
        return f"ready on {self.executor.where}{slowed}{engine}"


def _attempt(execution: Execution, elapsed_s: float) -> Attempt:
    return Attempt(execution.outputs, {"compute_robot": elapsed_s}, engine=execution.engine, note=execution.note)
