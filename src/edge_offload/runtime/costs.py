"""What the next call of a module would cost in each mode: forecasts, learnt from reports and from the server's load."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload import background
from edge_offload.errors import EdgeOffloadError
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.explore import Explorer
from edge_offload.manager.forecast import Forecast, Forecaster
from edge_offload.manager.policy import Situation
from edge_offload.manager.tuning import NOTABLE, RECENT_S
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt
from edge_offload.runtime.hedge import Outcome, without_queueing
from edge_offload.runtime.preparation import NOT_CHOSEN, PREPARED, Preparation
from edge_offload.runtime.runners import ModeRunners
from edge_offload.runtime.settings import ModuleSettings
from edge_offload.timing import Expected, InferenceReport

#: Seconds between two questions for the server's load: one answer may be lost before it is too old.
EVERY_S = RECENT_S / 3
#: A server that computes all the time: its queue has no mean, so something large but finite is taken.
BUSIEST = 1 - NOTABLE


class ServerLoad:
    """The server's load by others: requested once a second, never waited for. Thread-safe."""

    def __init__(self, client: Optional[Client]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._requested_s = self._answered_s = -math.inf
        self._load = self._service_s = math.nan

    def step(self, now: float) -> None:
        """Ask if it is time to; returns at once."""
        if self._client is None:
            return
        with self._lock:
            if now - self._requested_s < EVERY_S or self._client.state is not LinkState.READY:
                return
            self._requested_s = now
        self._client.request("status", {}, timeout_s=RECENT_S).add_done_callback(lambda done: self._answered(done, now))

    def _answered(self, done: Future[Any], requested_s: float) -> None:
        if done.exception() is not None:
            return
        body: Mapping[str, Any] = done.result().body
        try:
            load, models = float(body["load"]), list(body["models"].values())
            counts = [int(model["count"]) for model in models]
            seconds = sum(count * float(model["mean_s"]) for count, model in zip(counts, models))
        except (KeyError, TypeError, ValueError, AttributeError, EdgeOffloadError):
            return
        with self._lock:
            self._answered_s = requested_s
            self._load = min(1.0, max(0.0, load))
            self._service_s = seconds / sum(counts) if sum(counts) else 0.0

    def load(self, now: float) -> float:
        """Share of the server's last seconds spent computing, 0 to 1; nan while unknown."""
        with self._lock:
            return self._load if now - self._answered_s < RECENT_S else math.nan

    def waiting_s(self, now: float) -> float:
        """Return the expected wait of a request that comes now (seconds); 0 while unknown.

        The mean of a queue with one server and equal service times (M/D/1): load / (2 (1 - load)) of one service time.
        Robots that wait for their answers before they ask again queue less than that.
        """
        load = self.load(now)
        if math.isnan(load):
            return 0.0
        load = min(load, BUSIEST)
        with self._lock:
            return load / (2 * (1 - load)) * self._service_s


class ModeCosts:
    """Forecasts of one module's modes, and what they are learnt from. Thread-safe.

    Args:
        name: of the model.
        runners: of the modes.
        client: the link; None: no server.
        settings: of the module.
        silent: why no remote mode can begin now, in words; None: there is no such reason.
        queueing_s: how long frames wait for each other if all run in a mode, from that, the latency of one, and the
            deviation of that (seconds).

    Attributes:
        forecaster: learns from reports; one thread at a time.
        explorer: chooses the calls that run in another mode, so that what is known of that does not go stale.
        inputs: those of the latest situation; empty before the first one.
    """

    def __init__(
        self,
        name: str,
        runners: ModeRunners,
        client: Optional[Client],
        settings: ModuleSettings,
        silent: Callable[[], Optional[str]],
        queueing_s: Callable[[Mode, float, float], float],
    ) -> None:
        self._queueing_s = queueing_s
        self._name, self._runners, self._client, self._silent = name, runners, client, silent
        self._forecast_modes = settings.forecast_modes
        self._load = ServerLoad(client)
        starting = PREPARED if settings.bridges else ()
        self.forecaster = Forecaster(settings.powers, self._planned, self._load.waiting_s, starting)
        self._preparation = Preparation(self.forecaster, settings.bridges)
        self.explorer = Explorer()
        self.inputs: Sequence[torch.Tensor] = ()
        self._lock = threading.Lock()
        background.on_learning_ended(self.forecaster.disturb)

    def reading(self, now: float) -> LinkReading:
        """Return the estimate of the link."""
        return LinkReading() if self._client is None else self._client.estimator.make_reading(now)

    def offers(self, mode: Mode) -> bool:
        """Tell whether ``mode`` is offered here; ``split`` is prepared when it is first requested."""
        return mode in self._runners.by_mode or (mode is Mode.SPLIT and self._runners.make_split is not None)

    def find_obstacle(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Return why ``mode`` cannot run ``inputs`` now; None when it can. Never blocks."""
        if mode is Mode.LOCAL:
            return None  # nothing ever keeps the robot from computing by itself
        runner, make_split = self._runners.by_mode.get(mode), self._runners.make_split
        if runner is None and mode is Mode.SPLIT and make_split is not None:
            runner = make_split()  # tracing and planning are costly: only for who asks for it
            self._runners.add(runner)
        if runner is None:
            return f"mode {mode} is not available for model {self._name!r}"
        return self._silent() or runner.unavailable_reason(inputs)

    def _planned(self, mode: Mode, reading: LinkReading) -> Optional[Expected]:
        """Return what the plan in force for such a link is expected to take; None without plans."""
        runner, inputs = self._runners.by_mode.get(mode), self.inputs
        if runner is None or not runner.has_plans or not inputs or reading.uplink <= 0:
            return None
        planned = runner.planned(inputs)
        return None if planned is None else planned.expected(reading.uplink)

    def situation(
        self, inputs: Sequence[torch.Tensor], deadline_s: Optional[float] = None, choosing: bool = True
    ) -> Situation:
        """Return a policy's inputs; arguments as those of the module's."""
        obstacles: Dict[Mode, str] = {}
        for mode in self._forecast_modes:
            if self.offers(mode):
                why = ""
                if mode in PREPARED:
                    why = self._preparation.not_yet(mode, obstacles) if choosing else NOT_CHOSEN
                obstacles[mode] = why or self.find_obstacle(mode, inputs) or ""
        now = time.monotonic()
        self.inputs = inputs
        self._load.step(now)
        with self._lock:
            reading = self.reading(now)
            forecasts = {
                mode: self._with_queueing(forecast)
                for mode, forecast in self.forecaster.forecasts(now, obstacles, reading, obstacles).items()
            }
            link = self.forecaster.assumed(reading)
        return Situation(now, forecasts, deadline_s, self._load.load(now), link=link)

    def _with_queueing(self, forecast: Forecast) -> Forecast:
        if not forecast.measured:
            return forecast
        queueing_s = self._queueing_s(forecast.mode, forecast.latency_s, forecast.error_s)
        return replace(forecast, latency_s=forecast.latency_s + queueing_s)

    def choose_probe(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> Tuple[Mode, Optional[Mode]]:
        """The mode to run in, and one to ask beside it, so that what is known of the candidates does not go stale."""
        forecasts = self.situation(inputs).forecasts
        with self._lock:
            return self.explorer.choose(mode, time.monotonic(), forecasts, self._runners.local.expected_s() > 0)

    def forecast(self, mode: Mode, now: float) -> Tuple[Forecast, float]:
        """The next call in ``mode``, and what the robot takes by itself (seconds; 0 while that is unknown)."""
        with self._lock:
            reading = self.reading(now)
            forecast, local = (self.forecaster.forecast(now, each, reading) for each in (mode, Mode.LOCAL))
        return forecast, local.latency_s if local.measured else 0.0

    def raise_forecast(self, mode: Mode, since_s: float) -> None:
        """Raise the forecast of ``mode``: a call has waited for it in vain since ``since_s`` (monotonic seconds)."""
        now = time.monotonic()
        with self._lock:
            self.forecaster.raise_latency(now, mode, max(0.0, now - since_s))

    def learn_late_result(self, mode: Mode, seconds: float, attempt: Optional[Attempt]) -> None:
        """Learn where the time of a remote result went that lost its race."""
        if attempt is None:
            return
        sizes = (attempt.bytes_up, attempt.bytes_down, attempt.round_trips)
        report = without_queueing(InferenceReport(mode, self._name, seconds, attempt.stages_s, *sizes), attempt)
        now = time.monotonic()
        with self._lock:
            self.forecaster.learn_late_report(now, report, self.reading(now))

    def report_outcome(self, outcome: Outcome, mode: Mode, reason: str, total_s: float) -> InferenceReport:
        """Return the report of one inference, and teach it to the forecaster; arguments as :meth:`.Outcome.report`."""
        usual_bytes_up = self.forecaster.bytes_up(mode)
        report, to_learn = outcome.report(mode, reason, total_s, self._name, self._runners.local, usual_bytes_up)
        now = time.monotonic()
        with self._lock:
            if outcome.remote and outcome.hedged:
                self.forecaster.overtaken(now, outcome.local_s)
            self.forecaster.learn_report(now, to_learn, self.reading(now))
        return report
