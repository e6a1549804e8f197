"""What an inference cost, as its report tells it, and as a forecaster should learn it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Tuple

from edge_offload.manager.hedge import Outcome
from edge_offload.mode import Mode
from edge_offload.modes.local import LocalRunner
from edge_offload.timing import InferenceReport


def account(
    outcome: Outcome, mode: Mode, reason: str, total_s: float, name: str, local: LocalRunner, usual_bytes_up: int
) -> Tuple[InferenceReport, InferenceReport]:
    """The report of one inference, and what is learnt from it: the same, but where the server was asked late.

    Args:
        outcome: how it ended.
        mode: that was asked for.
        reason: why another one ran; empty when none did.
        total_s: what it took (seconds).
        name: of the model.
        local: what computes on the robot.
        usual_bytes_up: what a frame in ``mode`` puts on the link.
    """
    attempt = outcome.attempt
    stages_s = dict(attempt.stages_s)
    wasted_s = 0.0
    lost_bytes = lost_trips = 0
    if outcome.remote and outcome.hedged:
        stages_s["compute_robot"] = stages_s.get("compute_robot", 0.0) + outcome.local_s
        wasted_s = max(0.0, local.expected_s() - outcome.local_s)
    elif outcome.lost is not None:
        lost_bytes, lost_trips = outcome.lost.bytes_up, 1
    elif outcome.hedged:
        # the request is on its way still: the radio was busy while the robot waited
        stages_s["uplink"] = max(0.0, total_s - stages_s["compute_robot"])
        lost_bytes, lost_trips = usual_bytes_up, 1
    report = InferenceReport(
        mode=mode if outcome.remote else Mode.LOCAL,
        model=name,
        total_s=total_s,
        stages_s=stages_s,
        bytes_up=attempt.bytes_up + lost_bytes,
        bytes_down=attempt.bytes_down,
        round_trips=attempt.round_trips + lost_trips,
        clock_error_s=attempt.clock_error_s,
        emulated_slowdown=local.slowdown,
        fallback_reason=reason,
        hedged=outcome.hedged,
        wasted_s=wasted_s,
        engine=attempt.engine,
    )
    if outcome.remote and not math.isnan(outcome.remote_s):
        # the server was asked when the robot had been computing for a while: that is no time of the server's
        return report, replace(report, total_s=outcome.remote_s, stages_s=dict(attempt.stages_s), hedged=False)
    return report, report
