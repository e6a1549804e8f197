"""What an execution mode is to the runtime: something that runs one inference, or says at once why it cannot."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import torch

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.execute.module import ModuleExecutor
from edge_offload.mode import Mode


@dataclass(frozen=True)
class Attempt:
    """One inference in one mode: outputs, seconds by stage, and what went over the link (see InferenceReport)."""

    outputs: Tuple[torch.Tensor, ...]
    stages_s: Dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    round_trips: int = 0
    clock_error_s: float = 0.0


class FailedAttempt(EdgeOffloadError):
    """A mode tried and failed; what it cost is part of the frame's cost.

    Attributes:
        waited_s: from the attempt's begin to its failure (seconds).
        bytes_up: payload that was given to the link.
    """

    def __init__(self, error: EdgeOffloadError, waited_s: float, bytes_up: int) -> None:
        super().__init__(error.cause, error.remedy)
        self.waited_s = waited_s
        self.bytes_up = bytes_up


class Runner(Protocol):
    """One mode. Implementations are thread-safe."""

    mode: Mode

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Why the mode cannot run now, in words; None when it can. Never blocks; may start to remove the obstacle."""

    def run(
        self, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], local_s: float, meta: Mapping[str, Any]
    ) -> Attempt:
        """One inference.

        Args:
            inputs: contiguous tensors on the CPU.
            deadline_s: seconds from now until the result is due; None if it never is.
            local_s: what the local computation takes, which must fit in after a failure (seconds).
            meta: facts on the frame for those who watch on the server; plain values.

        Raises:
            FailedAttempt: it asked and got no result; the caller computes locally.
            EdgeOffloadError: it could not even ask; the same.
        """

    def state(self) -> str:
        """How the mode stands, in words."""


class LocalRunner:
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

    def expected_s(self) -> float:
        """Median of the latest computations, slowdown included (seconds); 0 before the first."""
        recent = list(self._recent)
        return statistics.median(recent) if recent else 0.0

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Nothing ever keeps the robot from computing by itself."""
        return None

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        deadline_s: Optional[float] = None,
        local_s: float = 0.0,
        meta: Optional[Mapping[str, Any]] = None,
        enough: Optional[threading.Event] = None,
    ) -> Attempt:
        """One inference; what the model raises comes through as it is. ``enough``: nobody wants the result any more."""
        began = time.monotonic()
        execution = self.executor.run(inputs)
        if self.slowdown > 1.0:
            rest_s = (self.slowdown - 1.0) * execution.compute_s
            if enough is not None and enough.wait(rest_s):
                return Attempt(execution.outputs, {"compute_robot": time.monotonic() - began})
            if enough is None:
                time.sleep(rest_s)
        elapsed = time.monotonic() - began
        self._recent.append(elapsed)
        return Attempt(execution.outputs, {"compute_robot": elapsed})

    def state(self) -> str:
        """Where it computes."""
        slowed = f", slowed {self.slowdown:g} times on purpose" if self.slowdown > 1.0 else ""
        return f"ready on {self.executor.device}{slowed}"
