"""A frame that the robot began by itself goes on at the server when that comes back and would be ready first."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.manager.explore import worth_joining
from edge_offload.manager.forecast import Forecast
from edge_offload.mode import Mode
from edge_offload.modes.local import LocalRunner
from edge_offload.modes.runner import Attempt
from edge_offload.runtime.hedge import Hedge, Outcome


def run_and_join(
    hedge: Hedge,
    local: LocalRunner,
    inputs: Sequence[torch.Tensor],
    forecasts: Callable[[], Mapping[Mode, Forecast]],
    remotely: Callable[[Mode], Attempt],
    on_late_result: Callable[[Mode, float, Optional[Attempt]], None],
) -> Tuple[Mode, Outcome]:
    """Locally; if the server comes back meanwhile and would be ready first, there too.

    Args:
        hedge: lets them race.
        local: what the robot computes with.
        inputs: of the module.
        forecasts: of now, for such inputs.
        remotely: one inference in a mode.
        on_late_result: called with (mode, seconds, attempt) of a remote one that lost.

    Returns:
        The mode that was asked in the end, and what came of it.
    """
    started_s, before = time.monotonic(), forecasts()
    joined_mode = Mode.LOCAL

    def join(elapsed_s: float) -> Optional[Callable[[], Attempt]]:
        nonlocal joined_mode
        mode = worth_joining(before, forecasts(), elapsed_s)
        if mode is None:
            return None
        joined_mode = mode
        return lambda: remotely(mode)

    outcome = hedge.race_joined(
        lambda cancelled: local.attempt_inference(inputs, cancelled=cancelled),
        join,
        on_late_result=lambda seconds, attempt: on_late_result(joined_mode, seconds, attempt),
    )
    if not outcome.hedged:
        return Mode.LOCAL, replace(outcome, local_s=time.monotonic() - started_s)
    return joined_mode, outcome
