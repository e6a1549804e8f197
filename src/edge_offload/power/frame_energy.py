"""Joules of frames, of which several may be under way at once."""

from __future__ import annotations

import math
from typing import Optional, Tuple

from edge_offload.power.detect import open_meter
from edge_offload.power.source import MEASURED
from edge_offload.power.states import COMPUTE, StatePowers, StateTimeline
from edge_offload.timing import InferenceReport


class FrameEnergy:
    """Shares out what the robot uses among its frames, so that their sum counts no moment twice.

    Args:
        source: what is read, as :func:`edge_offload.power.detect.open_meter` takes it.
        powers: of the robot by state, where no sensor measures; None: unknown.
    """

    def __init__(self, source: str, powers: Optional[StatePowers]) -> None:
        self._timeline = StateTimeline()
        self._meter = open_meter(self._timeline, source, powers)
        self._told_s = -math.inf

    def of(self, received_s: float, report: InferenceReport) -> Tuple[float, bool]:
        """Joules from taking a frame up to its result, and whether they were measured; nan where unknown.

        Of two frames that are under way at once, the second one's begin with the first one's result.

        Args:
            received_s: when it came, monotonic seconds.
            report: what it cost.
        """
        self._timeline.add_report(report, received_s)
        ended = received_s + report.total_s
        self._timeline.add(COMPUTE, ended, ended + report.wasted_s)
        began = max(self._told_s, received_s + report.stages_s["queue"])
        self._told_s = max(began, ended)
        energy = self._meter.energy_between(began, max(began, ended))
        return energy.joules, energy.source == MEASURED

    def close(self) -> None:
        """Read no more."""
        self._meter.close()
