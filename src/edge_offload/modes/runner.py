"""What an execution mode is to the runtime: something that runs one inference, or says at once why it cannot."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.engines.base import EAGER
from edge_offload.manager.lateness import Budget
from edge_offload.mode import Mode
from edge_offload.split.model.objective import Objective
from edge_offload.timing import Expected


@dataclass(frozen=True)
class Attempt:
    """One inference in one mode: outputs, seconds by stage, and what went over the link (see InferenceReport).

    Attributes:
        behind_s: seconds of each stage that were spent behind the robot's own earlier requests.
        part_s: what took longest of the way, for which the next request has to wait; 0 where that is all of it.
        lead_s: seconds of the way that may pass while the inference before it is computed.
        ahead_s: seconds of ``lead_s`` that did.
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
    lead_s: float = 0.0
    ahead_s: float = 0.0
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


class Plans(Protocol):
    """Plans that are in force, one per bandwidth."""

    def expected(self, bandwidth: float) -> Expected:
        """Return what the plan for a bandwidth (bytes per second) is expected to take there."""


class Runner(abc.ABC):
    """One mode. Implementations are thread-safe.

    Attributes:
        mode: the mode.
        has_plans: whether it runs by plans, one per bandwidth; others are not asked for them.
    """

    mode: Mode
    has_plans: ClassVar[bool] = False

    @abc.abstractmethod
    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Return why the mode cannot run now; None when it can. Never blocks; may start to prepare it."""

    @abc.abstractmethod
    def attempt_inference(self, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any], budget: Budget) -> Attempt:
        """One inference; waits for its result until ``budget`` gives it up.

        Args:
            inputs: contiguous tensors on the CPU.
            meta: facts on the frame for those who watch on the server; plain values.
            budget: how much time it has.

        Raises:
            FailedAttempt: it asked and got no result; the caller computes locally.
            EdgeOffloadError: it could not even ask; the same.
        """

    def send_ahead(self, inputs: Sequence[torch.Tensor]) -> None:
        """Send the inputs of the next inference while the one before it is computed, where that shortens its way."""
        return None

    @abc.abstractmethod
    def state(self) -> str:
        """Describe the mode's state."""

    def planned(self, inputs: Sequence[torch.Tensor]) -> Optional[Plans]:
        """Return the plans in force for such inputs; None: there are none (yet)."""
        return None

    def stays_local(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Tell whether the plan for the present bandwidth leaves everything to the robot."""
        return False

    def aim(self, objective: Objective) -> None:
        """Have plans made for ``objective`` from now on, where there are plans; returns at once."""
        return None

    def close(self) -> None:
        """Give up what the mode holds on the server, and what it still prepares."""
        return None
