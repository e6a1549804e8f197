"""What one inference cost: the report that every execution mode returns with its outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, Tuple

from edge_offload.mode import Mode

STAGES = ("queue", "encode", "uplink", "compute_robot", "compute_server", "downlink", "decode")
SHARES = ("overlap_ratio", "idle_robot", "idle_server")
"""Shares of a frame's time, as ``Latency`` and records name them."""


@dataclass
class InferenceReport:
    """Cost of one inference as seen by the robot. Durations are seconds on the monotonic clock.

    Attributes:
        mode: the mode that really produced the outputs.
        model: name of the model.
        total_s: from the call to the outputs being usable.
        stages_s: seconds per stage of :data:`STAGES`; a stage that did not happen is 0. Stages may overlap, so
            their sum is not the total.
        bytes_up, bytes_down: payload and headers given to, and taken from, the link (bytes).
        round_trips: how often the caller blocked for a message that one of its own caused.
        clock_error_s: bound on the error of ``uplink`` and ``downlink`` (they use the peer's clock), 0 if local.
        emulated_slowdown: factor by which robot-side compute was slowed on purpose; 1 means not at all.
        hedged: the local computation was started because the remote result was late; the first of the two was used.
        wasted_s: robot compute beyond the end of the inference, for a result that nobody waits for (expected).
        fallback_reason: why a requested mode was not the one that ran; empty when it was.
        engine: what computed: ``eager`` (torch), or an inference engine with version and precision.
        behind_s: for how long it waited behind the robot's own frames before it; part of ``total_s``.
        part_s: what took longest of its way, for which the next frame has to wait: upload, server, download, or all of
            it where one inference follows the other.
        lead_s: of its way, before its turn: while the frame before it is computed.
        overlap_s: in which robot and server both computed; NaN: not in mode ``split``, or not known.
    """

    mode: Mode
    model: str = ""
    total_s: float = 0.0
    stages_s: Dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    round_trips: int = 0
    clock_error_s: float = 0.0
    emulated_slowdown: float = 1.0
    fallback_reason: str = ""
    hedged: bool = False
    wasted_s: float = 0.0
    engine: str = "eager"
    behind_s: float = 0.0
    part_s: float = 0.0
    lead_s: float = 0.0
    overlap_s: float = math.nan

    def __post_init__(self) -> None:
        unknown = set(self.stages_s) - set(STAGES)
        if unknown:
            raise ValueError(f"unknown stages {sorted(unknown)}; the stages are {STAGES}")
        self.stages_s = {name: float(self.stages_s.get(name, 0.0)) for name in STAGES}

    def idle(self) -> Tuple[float, float]:
        """Shares of the time in which the robot neither coded nor computed, and in which the server did not compute."""
        stages_s, total_s = self.stages_s, max(self.total_s, 1e-9)
        robot_s = stages_s["encode"] + stages_s["compute_robot"] + stages_s["decode"]
        return 1.0 - min(robot_s / total_s, 1.0), 1.0 - min(stages_s["compute_server"] / total_s, 1.0)


@dataclass(frozen=True)
class Expected:
    """What a planner expects of the plan for the bandwidth of now.

    Attributes:
        seconds: from the call to usable outputs.
        local: whether the plan makes no use of the link: then it is mode ``local`` under another name.
        remote: whether the robot computes no operator: then it is mode ``replay`` or ``server`` under another name.
    """

    seconds: float
    local: bool = False
    remote: bool = False
