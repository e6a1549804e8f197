"""Exploration: which mode a frame runs in so that what is not measured does not go stale.

A server that was slow while it started, or busy a minute ago, would be avoided for ever by a policy that goes by what
the last frames there cost. At most one frame in fifty explores: it runs in the mode with the greatest expected
improvement over the mode in force (Jones et al., 1998), if that pays for the frame before the next one is due. A frame
that the robot computes anyway explores beside its own computation: the first result is used, and no time is lost.
"""

from __future__ import annotations

import math
import statistics
from typing import Mapping, Optional, Tuple

from edge_offload.manager.forecast import Forecast
from edge_offload.manager.tuning import CHANGE, CHANGE_S, ENOUGH, RARE
from edge_offload.mode import Mode
from edge_offload.notices import Once

_NORMAL = statistics.NormalDist()


def expected_improvement(forecast: Forecast, reference_s: float) -> float:
    """Return the mean of max(0, reference - latency) in seconds, where the latency is normal as forecast.

    The longer a mode has not run, the more likely it has changed unseen, which adds to its uncertainty.
    """
    changed = CHANGE * math.sqrt(-math.expm1(-min(forecast.age_s, 1e9) / CHANGE_S))
    gain_s = reference_s - forecast.latency_s
    deviation_s = math.hypot(forecast.standard_error_s, changed * forecast.latency_s)
    if deviation_s <= 0:
        return max(0.0, gain_s)
    ratio = gain_s / deviation_s
    return deviation_s * _NORMAL.pdf(ratio) + gain_s * _NORMAL.cdf(ratio)


class Explorer:
    """Spends the budget of exploration. One thread at a time."""

    def __init__(self) -> None:
        self._frames_due = float(ENOUGH)
        self._mode: Optional[Mode] = None
        self._explored_s = -math.inf
        self._notices = Once()

    def allow(self) -> None:
        """Let the next frame explore, whatever the budget: a network that waits for turns has few frames that may."""
        self._frames_due = max(self._frames_due, 1.0)

    def choose(
        self, mode: Mode, now: float, forecasts: Mapping[Mode, Forecast], with_local: bool = True
    ) -> Tuple[Mode, Optional[Mode]]:
        """Return the mode that a frame runs in which was meant for ``mode``, and the one that runs beside it, if any.

        Args:
            mode: the mode in force.
            now: monotonic seconds.
            forecasts: of all candidates.
            with_local: whether a frame of mode ``local`` may explore beside its own computation.
        """
        explored = self._explore(mode, now, forecasts) if with_local or mode is not Mode.LOCAL else None
        if explored is None or mode is Mode.LOCAL:
            return mode, explored
        self._notices.notify(
            f"mode {explored} is tried by one frame in fifty (up to {ENOUGH} in a row after the start), "
            f"so that it is known what frames take there; mode {mode} stays in force"
        )
        return explored, None

    def _explore(self, mode: Mode, now: float, forecasts: Mapping[Mode, Forecast]) -> Optional[Mode]:
        self._frames_due = min(self._frames_due + RARE, float(ENOUGH))
        reference = forecasts.get(mode)
        if self._frames_due < 1 or reference is None or not reference.measured:
            return None
        pending = forecasts.get(self._mode) if self._mode is not None else None
        if pending is not None and not pending.unavailable_reason and pending.age_s > now - self._explored_s:
            return None  # the report of the frame before is not there yet
        values = {
            other: expected_improvement(forecast, reference.latency_s) if forecast.measured else math.inf
            for other, forecast in forecasts.items()
            if other is not mode and (forecast.measured or mode is Mode.LOCAL) and not forecast.unavailable_reason
            and forecast.floor_s < reference.latency_s
        }  # fmt: skip
        best = max(values, key=lambda other: values[other], default=None)
        if best is None or values[best] <= 0:
            return None
        loss_s = 0.0 if mode is Mode.LOCAL else forecasts[best].latency_s - reference.latency_s
        if values[best] < RARE * loss_s:
            return None
        self._frames_due -= 1
        self._mode, self._explored_s = best, now
        return best


def worth_joining(before: Mapping[Mode, Forecast], now: Mapping[Mode, Forecast], elapsed_s: float) -> Optional[Mode]:
    """A mode that would end a frame sooner than the robot, which has been computing it for ``elapsed_s`` seconds.

    A frame of a slow robot that began in an outage need not go on to its end by itself when the link is back. Only what
    has changed since the frame began counts: a policy that chose the robot although another mode was faster meant it.

    Args:
        before: the forecasts with which the frame began.
        now: those of now.
        elapsed_s: seconds since the frame began.
    """
    local = before.get(Mode.LOCAL)
    if local is None or not local.measured:
        return None
    best: Optional[Mode] = None
    best_s = local.latency_s - elapsed_s
    for mode, forecast in now.items():
        then = before.get(mode)
        chosen_against = then is not None and not then.unavailable_reason and then.latency_s <= local.latency_s
        if mode is Mode.LOCAL or forecast.unavailable_reason or not forecast.measured or chosen_against:
            continue
        if forecast.latency_s + forecast.error_s < best_s:
            best, best_s = mode, forecast.latency_s + forecast.error_s
    return best
