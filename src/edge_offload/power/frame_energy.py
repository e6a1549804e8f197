"""Energy per frame, where several frames may be in flight at once."""

from __future__ import annotations

import math
from typing import Optional, Tuple

from edge_offload.power.detect import open_meter
from edge_offload.power.source import MEASURED
from edge_offload.power.states import COMPUTE, StatePowers, StateTimeline
from edge_offload.timing import InferenceReport


class FrameEnergy:
    """Attributes the robot's energy to its frames, so that the sum counts no moment twice.

    Args:
        source: choice of :func:`edge_offload.power.detect.open_meter`.
        powers: watts of the robot by state, where no sensor measures; None: unknown.
    """

    def __init__(self, source: str, powers: Optional[StatePowers]) -> None:
        self._timeline = StateTimeline()
        self._meter = open_meter(self._timeline, source, powers)
        self._attributed_until_s = -math.inf

    def measure_frame(self, received_s: float, report: InferenceReport) -> Tuple[float, bool]:
        """Return the joules from a frame's start to its result, and whether they were measured; nan: unknown.

        The energy of a frame that overlaps an earlier one starts at the earlier one's result.

        Args:
            received_s: arrival of the frame, monotonic seconds.
            report: stages and total time of the frame.
        """
        self._timeline.add_report(report, received_s)
        finished_at = received_s + report.total_s
        self._timeline.add_interval(COMPUTE, finished_at, finished_at + report.wasted_s)
        started_at = max(self._attributed_until_s, received_s + report.stages_s["queue"])
        self._attributed_until_s = max(started_at, finished_at)
        energy = self._meter.energy_between(started_at, max(started_at, finished_at))
        return energy.joules, energy.source == MEASURED

    def close(self) -> None:
        """Close the sensors."""
        self._meter.close()
