"""What an execution mode is to the runtime: something that runs one inference, or says at once why it cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.engines.base import EAGER
from edge_offload.mode import Mode


@dataclass(frozen=True)
class Attempt:
    """One inference in one mode: outputs, seconds by stage, and what went over the link (see InferenceReport).

    Attributes:
        behind_s: seconds of each stage that were spent behind the robot's own earlier requests.
        part_s: what took longest of the way, for which the next request has to wait; 0 where that is all of it.
        overlap_s: seconds in which robot and server both computed; NaN: not in mode ``split``, or not known.
        note: why another device of the robot computed than was asked for; empty: none did.
    """

    outputs: Tuple[torch.Tensor, ...]
    stages_s: Dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    round_trips: int = 0
    clock_error_s: float = 0.0
    engine: str = EAGER
    behind_s: Mapping[str, float] = field(default_factory=dict)
    part_s: float = 0.0
    overlap_s: float = math.nan
    note: str = ""


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
