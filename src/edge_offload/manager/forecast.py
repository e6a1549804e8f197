"""Forecasts of the next frame's cost in each mode: latency with its uncertainty, and energy, from earlier frames.

A remote mode's latency is a sum of three parts. The link's part (bytes over bandwidth, both ways) is predicted from the
bandwidth *now*. The measured wait at the server fades into the wait that the server's load suggests, because an old
queue says little. The rest (coding, compute, overhead) is a mean of the mode's frames. A mode with a plan per bandwidth
is forecast by the plan for the bandwidth now, times the mean ratio of its frames to their plans.
The errors of earlier forecasts give the uncertainty. Pure: time (monotonic seconds) is an argument.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Callable, Container, Deque, Dict, Hashable, Iterable, Mapping, Optional, Tuple

from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.manager.tuning import CHANGE, ENOUGH, FIRST_NOISE, FRAMES, GIVE_UP_S, RARE, RECENT_S
from edge_offload.mode import BRIDGE, BRIDGED, TABLE, Mode
from edge_offload.power.states import StatePowers
from edge_offload.timing import Expected, InferenceReport

if TYPE_CHECKING:
    from edge_offload.manager.levels import Levels

#: Why a mode is not to be chosen whose plan leaves everything to the robot.
LOCAL_PLAN = "its plan for this link leaves everything to the robot"
#: Likewise, while another mode can run that leaves everything to the server for less.
SERVER_PLAN = "its plan for this link leaves everything to the server: that is {mode}"
#: Modes that run a whole inference on the server for one round trip, the preferred one first.
ONE_TRIP = (Mode.REPLAY, Mode.SERVER)


@dataclass(frozen=True)
class Forecast:
    """The next frame in one mode.

    Attributes:
        mode: the mode.
        latency_s: expected, from the call to usable outputs; nan if it has never run.
        error_s: one standard deviation of a single frame's latency.
        energy_j: expected energy of the robot over the frame; nan if it has never run.
        unavailable_reason: why the mode cannot run now, in words; empty when it can.
        floor_s: the link's part of the latency, which is current however old the other parts are.
        age_s: seconds since the mode last ran; inf if it never has.
        standard_error_s: one standard deviation of ``latency_s`` as a mean; it grows while the mode does not run.
        covariance: by mode, of the logarithms of its mean latency and this one's; this mode is included. The link's
            uncertainty is not. Empty: modes are independent.
        bytes_up, bytes_down: mean bytes of a frame, robot to server and back.
    """

    mode: Mode
    latency_s: float = math.nan
    error_s: float = math.inf
    energy_j: float = math.nan
    unavailable_reason: str = ""
    floor_s: float = 0.0
    age_s: float = math.inf
    standard_error_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    covariance: Mapping[Mode, float] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Tell whether the mode has run."""
        return math.isfinite(self.latency_s)

    @property
    def doubt_s(self) -> float:
        """Deprecated name of :attr:`standard_error_s`, for policies of users."""
        warnings.warn("Forecast.doubt_s is named standard_error_s", DeprecationWarning, stacklevel=2)
        return self.standard_error_s


class _ModeHistory:
    """Costs of one mode's frames.

    Args:
        mode: the mode.
        levels: estimates that all modes share. Under the mode: seconds of a frame without link and wait at the server.
            Under :attr:`plan_key`: ratio of a frame's seconds to its plan's.
    """

    def __init__(self, mode: Mode, levels: Levels) -> None:
        self.mode, self.levels = mode, levels
        self.plan_key = (mode, "plan")
        self.shares = TABLE[mode].needs_link
        self.frames = self.round_trips = 0
        self.updated_s = -math.inf
        self.queue_s = self.compute_s = self.link_s = self.rest_s = 0.0
        self.bytes_up = self.bytes_down = 0.0
        self.late_s = 0.0
        self.late_since_s = -math.inf
        self.errors: Deque[float] = deque(maxlen=FRAMES)
        self._deviation_s: Optional[float] = None  # of the errors, without the rare ones; None: outdated

    def note(self, now: float, report: InferenceReport, reading: LinkReading, planned_s: float, busy_s: float) -> None:
        if not planned_s and self._is_start_up(report.round_trips):
            self.frames, self.updated_s = self.frames + 1, now
            return
        expected = self.latency_s(now, reading, planned_s, busy_s) if self.frames else None
        stages = report.stages_s
        link_s = stages["uplink"] + stages["downlink"]
        if expected is not None:
            self.errors.append(report.total_s - expected)
            self._deviation_s = None
        # the first frame pays for choosing kernels and taking memory: the second one replaces it
        gain = 1 / min(max(self.frames, 1), ENOUGH)
        computing_s = stages["encode"] + stages["compute_robot"] + stages["decode"]
        self.queue_s += gain * (stages["queue"] - self.queue_s)
        self.compute_s += gain * (computing_s - self.compute_s)
        self.link_s += gain * (link_s - self.link_s)
        self.bytes_up += gain * (report.bytes_up - self.bytes_up)
        self.bytes_down += gain * (report.bytes_down - self.bytes_down)
        update_level = self.levels.start if self.frames == 1 else self.levels.observe
        if planned_s > 0:
            update_level(now, self.plan_key, report.total_s / planned_s, self.shares)
        else:
            update_level(now, self.mode, report.total_s - link_s - stages["queue"], self.shares)
        self.rest_s += gain * (report.total_s - link_s - stages["queue"] - self.rest_s)
        self.frames += 1
        self.updated_s = now
        if report.total_s < self.late_s:
            self.late_s = 0.0
        elif self.late_s:  # even later than the late frame
            self.late_s, self.late_since_s = report.total_s, now

    def _is_start_up(self, round_trips: int) -> bool:
        """Tell whether one of the first frames had more round trips than one before it, because its mode still records.

        A frame with fewer round trips shows that those before it were the start, and replaces them.
        """
        if not 0 < self.frames < ENOUGH:
            self.round_trips = round_trips
        elif round_trips < self.round_trips:
            self.round_trips, self.frames = round_trips, 1
            self.errors.clear()
        return round_trips > self.round_trips

    def late(self, now: float, waited_s: float) -> None:
        """Raise the latency: a frame waited in vain, and a retry would have taken the usual time on top."""
        usual_s = self.queue_s + self.link_s + self.rest_s
        self.late_s, self.late_since_s = max(self.late_s, waited_s + usual_s), now

    def transfer_s(self, reading: LinkReading) -> float:
        """Seconds on the link, both ways, at the bandwidth of ``reading``; the mean so far where that is unknown."""
        if reading.uplink <= 0 or not self.bytes_up:
            return self.link_s
        delay_s = 0.0 if math.isnan(reading.rtt_s) else reading.rtt_s
        down = reading.downlink if reading.downlink > 0 else reading.uplink
        return min(delay_s + self.bytes_up / reading.uplink + self.bytes_down / down, GIVE_UP_S)

    def latency_s(self, now: float, reading: LinkReading, planned_s: float, busy_s: float) -> float:
        fresh = 0.5 ** (max(0.0, now - self.updated_s) / RECENT_S)
        waiting_s = self.queue_s * fresh + busy_s * (1 - fresh)
        if planned_s > 0:
            expected = (self.levels.mean(self.plan_key) or 1.0) * planned_s + busy_s * (1 - fresh)
        else:
            rest_s = self.levels.mean(self.mode) if self.mode in self.levels else self.rest_s
            expected = max(0.0, rest_s + waiting_s + self.transfer_s(reading))
        since_s = max(0.0, now - self.late_since_s)
        measured = max(reading.age_s, reading.rtt_age_s) < since_s
        if measured or (math.isinf(reading.age_s) and math.isfinite(reading.rtt_s)):
            # the lateness is outdated: rate and round trip have been measured since, or the link is new
            return float(expected)
        return float(max(expected, self.late_s * 0.5 ** (since_s / RECENT_S)))

    def error_s(self, expected: float, reading: LinkReading) -> float:
        deviation_s = FIRST_NOISE * expected
        if len(self.errors) >= ENOUGH:
            if self._deviation_s is None:
                # the rare worst ones are left out: one frame in an outage says nothing of the next
                usual = sorted(map(abs, self.errors))[: -math.ceil(RARE * len(self.errors))]
                self._deviation_s = math.sqrt(sum(map(operator.mul, usual, usual)) / len(usual))
            deviation_s = self._deviation_s
        # a latency cannot be negative, so that old errors count as at most all of it
        return min(math.hypot(deviation_s, self.link_standard_error_s(reading)), expected)

    def link_standard_error_s(self, reading: LinkReading) -> float:
        """Standard deviation of the latency that the uncertain bandwidth causes, seconds."""
        if not TABLE[self.mode].needs_link or not math.isfinite(reading.uplink_error):
            return 0.0
        return self.transfer_s(reading) * min(1.0, reading.uplink_error)

    def level(self, latency_s: float, planned_s: float) -> Optional[Tuple[Hashable, float]]:
        """Return the key of the mode's level, and its share of the latency, 0 to 1; None: there is no level yet."""
        key = self.plan_key if planned_s > 0 else self.mode
        if key not in self.levels or latency_s <= 0:
            return None
        return key, 1.0 if planned_s > 0 else self.levels.mean(key) / latency_s


class Forecaster:
    """Learns from reports and makes a :class:`Forecast` per mode. One thread at a time.

    Args:
        powers: the robot's power by state, for the energy; None: the energy is unknown, nan.
        planned: returns what a planner expects of a mode on a link; None for modes without a plan.
        busy_s: returns the expected wait at the server for requests of others, seconds, at a monotonic time.
        starting: modes whose first frame measures only their start: their forecasts begin after the second.
    """

    def __init__(
        self,
        powers: Optional[StatePowers] = None,
        planned: Callable[[Mode, LinkReading], Optional[Expected]] = lambda mode, reading: None,
        busy_s: Callable[[float], float] = lambda now: 0.0,
        starting: Container[Mode] = (),
    ) -> None:
        self._powers, self._planned, self._busy_s, self._starting = powers, planned, busy_s, starting
        self._before: Optional[LinkReading] = None
        # imported here, because what only names policies (nodes/arguments.py) does without numpy
        from edge_offload.manager.levels import Levels

        self._levels = Levels()
        self._disturbed = False
        self._modes: Dict[Mode, _ModeHistory] = {}

    def learn_report(self, now: float, report: InferenceReport, reading: LinkReading) -> None:
        """Learn from a finished frame. One that fell back counts as a local frame, without its wait for the server."""
        on_robot = report.mode is Mode.LOCAL
        if TABLE[report.mode].needs_link and not report.round_trips:
            on_robot = True  # a plan that makes no use of the link
        if on_robot and (report.mode is not Mode.LOCAL or report.fallback_reason or report.hedged):
            seconds = report.stages_s["compute_robot"]
            if seconds <= 0:
                return
            report = InferenceReport(Mode.LOCAL, total_s=seconds, stages_s={"compute_robot": seconds})
        self._note(now, report, reading)

    def raise_latency(self, now: float, mode: Mode, waited_s: float) -> None:
        """Raise the latency of ``mode`` and of its stand-in: a frame waited ``waited_s`` for it in vain."""
        for each in (mode, BRIDGE) if mode is BRIDGED else (mode,):
            history = self._of(each)
            if history.frames:
                history.late(now, waited_s)

    def learn_late_report(self, now: float, report: InferenceReport, reading: LinkReading) -> None:
        """Learn from the stages of a remote result that came after its frame was over."""
        self._note(now, report, reading)

    def overtaken(self, now: float, ran_s: float) -> None:
        """Raise the local latency: a remote result came first when the local computation had run for ``ran_s``."""
        if Mode.LOCAL in self._levels and ran_s > self._levels.mean(Mode.LOCAL):
            self._levels.observe(now, Mode.LOCAL, ran_s, shares=False)

    def disturb(self) -> None:
        """Expect another latency of each mode from now on, because the machine's load changed; from any thread."""
        self._disturbed = True

    def frames(self, mode: Mode) -> int:
        """Count the frames that have run in ``mode``."""
        history = self._modes.get(mode)
        return 0 if history is None else history.frames

    def bytes_up(self, mode: Mode) -> int:
        """Return the mean bytes that a frame in ``mode`` puts on the link."""
        history = self._modes.get(mode)
        return 0 if history is None else round(history.bytes_up)

    def forecast(self, now: float, mode: Mode, reading: LinkReading, unavailable_reason: str = "") -> Forecast:
        """Forecast the next frame in ``mode``."""
        return self._forecast(now, mode, reading, unavailable_reason)[0]

    def _forecast(
        self, now: float, mode: Mode, reading: LinkReading, unavailable_reason: str
    ) -> Tuple[Forecast, Optional[Tuple[Hashable, float]]]:
        """Return the forecast, and the level that it rests on (:meth:`_ModeHistory.level`)."""
        reading = self.assumed(reading).cautious
        expected = self._planned(mode, reading)
        if expected is not None and expected.local and mode is not Mode.LOCAL:
            # equals mode local, which a policy chooses instead until a better link changes the plan
            local, level = self._forecast(now, Mode.LOCAL, reading, "")
            return replace(local, mode=mode, unavailable_reason=unavailable_reason or LOCAL_PLAN), level
        history = self._modes.get(mode)
        if history is None or history.frames <= (mode in self._starting):
            return Forecast(mode, unavailable_reason=unavailable_reason), None
        remote = TABLE[mode].needs_link
        planned_s = 0.0 if expected is None else expected.seconds
        latency_s = history.latency_s(now, reading, planned_s, self._busy_s(now) if remote else 0.0)
        level = history.level(latency_s, planned_s)
        level_s = 0.0
        if level is not None:
            level_s = latency_s * level[1] * math.sqrt(self._levels.covariance(now, [level[0]])[0, 0])
        return Forecast(
            mode,
            latency_s,
            history.error_s(latency_s, reading),
            self._energy_j(history, latency_s, reading),
            unavailable_reason,
            history.transfer_s(reading) if remote and not planned_s else 0.0,
            max(0.0, now - history.updated_s),
            math.hypot(level_s, history.link_standard_error_s(reading)),
            round(history.bytes_up),
            round(history.bytes_down),
        ), level

    def forecasts(
        self, now: float, modes: Iterable[Mode], reading: LinkReading, obstacles: Mapping[Mode, str]
    ) -> Dict[Mode, Forecast]:
        """Forecast the next frame in each mode; a plan that divides nothing yields to the mode that it equals."""
        if self._disturbed:
            self._disturbed = False
            self._levels.disturb()
        made = {mode: self._forecast(now, mode, reading, obstacles.get(mode, "")) for mode in modes}
        levels = {mode: level for mode, (_, level) in made.items() if level is not None}
        covariance = self._levels.covariance(now, [key for key, _ in levels.values()])
        rows = {
            mode: {
                other: share * other_share * float(covariance[row, column])
                for column, (other, (_, other_share)) in enumerate(levels.items())
            }
            for row, (mode, (_, share)) in enumerate(levels.items())
        }
        forecasts = {mode: replace(forecast, covariance=rows.get(mode, {})) for mode, (forecast, _) in made.items()}
        preferred = next(
            (mode for mode in ONE_TRIP if mode in forecasts and not forecasts[mode].unavailable_reason), None
        )
        if preferred is not None:
            for mode, forecast in forecasts.items():
                expected = self._planned(mode, self.assumed(reading).cautious)
                if expected is not None and expected.remote and not forecast.unavailable_reason:
                    forecasts[mode] = replace(forecast, unavailable_reason=SERVER_PLAN.format(mode=preferred))
        return forecasts

    def assumed(self, reading: LinkReading) -> LinkReading:
        """Return ``reading``; on a connection without transfers yet, the rates before it, uncertain by :data:`CHANGE`.

        So all modes are compared on the same link.
        """
        if reading.uplink > 0 or self._before is None:
            return reading
        up, down = self._before.uplink, self._before.downlink
        return replace(reading, uplink=up, downlink=down, uplink_error=CHANGE, downlink_error=CHANGE)

    def _energy_j(self, history: _ModeHistory, latency_s: float, reading: LinkReading) -> float:
        powers = self._powers
        if powers is None:
            return math.nan
        link_s = history.transfer_s(reading) if TABLE[history.mode].needs_link else 0.0
        busy = (powers.inference - powers.standby) * min(history.compute_s, latency_s)
        return powers.standby * latency_s + busy + (powers.communication - powers.standby) * min(link_s, latency_s)

    def _note(self, now: float, report: InferenceReport, reading: LinkReading) -> None:
        if reading.uplink > 0:
            self._before = reading
        busy_s, reading = self._busy_s(now) if TABLE[report.mode].needs_link else 0.0, reading.cautious
        expected = self._planned(report.mode, reading)
        planned_s = 0.0 if expected is None or expected.local else expected.seconds
        self._of(report.mode).note(now, report, reading, planned_s, busy_s)

    def _of(self, mode: Mode) -> _ModeHistory:
        return self._modes.setdefault(mode, _ModeHistory(mode, self._levels))
