"""A network that runs wherever it is told to, and on the robot when that fails: one call, one result."""

from __future__ import annotations

import functools
import math
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from edge_offload import background
from edge_offload.companion.process import ExecutorProcess
from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.engines.table import chosen
from edge_offload.execute.module import ByEngine, Inputs, as_inputs, canonical_input
from edge_offload.execute.tensors import specs_of
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.explore import Explorer
from edge_offload.manager.forecast import Forecaster
from edge_offload.manager.in_flight import TOGETHER, Pace, Row
from edge_offload.manager.lateness import FrameLateness, Lateness, TimeoutLimits
from edge_offload.manager.policy import CANDIDATES, Situation
from edge_offload.manager.promise import PromisePolicy
from edge_offload.mode import BRIDGE, BRIDGED, Mode
from edge_offload.models import registry
from edge_offload.models.entry import Scalar
from edge_offload.modes.local import LocalRunner
from edge_offload.modes.runner import Attempt, Runner
from edge_offload.modes.server import ServerRunner
from edge_offload.power.states import StatePowers
from edge_offload.runtime.hedge import Hedge, Outcome, apart
from edge_offload.runtime.joining import WORTH_JOINING_S, run_and_join
from edge_offload.runtime.preparation import NOT_CHOSEN, PREPARED, Preparation
from edge_offload.runtime.promise import Promise
from edge_offload.runtime.results import tell_result
from edge_offload.runtime.robot_device import executor_of, made_once, split_runner
from edge_offload.runtime.server_load import ServerLoad
from edge_offload.split.model.objective import Objective
from edge_offload.timing import Expected, InferenceReport


class OffloadedModule:
    """A module of the robot that also runs on a server, mode by mode, call by call. Thread-safe.

    Connecting and opening the model happen in the background; until then, and after any fault (link lost, late reply,
    refusal), calls are answered locally and say so. Pin threads (:mod:`edge_offload.execute.threads`) beforehand.

    Args:
        name: of the model in the registry (also the server's), or ``package.module:factory``.
        module: the robot's own copy; put in eval mode. A GPU computes with a copy of it.
        client: the link, started and closed by its owner; None: no server. Wire :meth:`link_changed` to ``on_state``.
        options: what ``module`` was built with, for the server to build the same.
        device: where the robot computes; ``engine``: by what, as :func:`.table.chosen` takes it.
        exact: results have the robot's bits: no engine, and no server whose fingerprint differs.
        codec: payload codec, both ways; ``auto`` is lossless.
        robot_slowdown: emulate a robot that is so many times slower; 1 does not.
        patience: bounds on the wait for a reply of which there is no forecast.
        example: inputs of the shapes to come, so that the model is opened before the first frame.
        hedging: start the local computation when a remote result is late by its own forecast; the first one wins.
        report_results: tell the server the results of calls with ``meta`` that it did not compute itself.
        candidates: modes that a policy may choose among, and that are made ready for it; ``local`` is always one.
        powers: of the robot by state, for the energy of forecasts; None: that is unknown (NaN).
        in_flight: calls that may be under way at once, by what :attr:`pace` says; it refuses none.
        beside: who computes on the robot in place of this process (:mod:`edge_offload.companion`); closed with this.

    Attributes:
        fingerprint: what decides the bits of the robot's own results.
        row: calls in their order, which modes keep whose inferences do not overlap.
        pace: says when one more call should be begun; feed it the reports of whole frames.
        explorer: chooses the calls that run in another mode, so that what is known of that does not go stale.

    Raises:
        BadInput: a slowdown below 1, or no such engine.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        client: Optional[Client] = None,
        *,
        options: Optional[Mapping[str, Scalar]] = None,
        device: Union[str, torch.device] = "cpu",
        engine: str = EAGER,
        exact: bool = False,
        codec: str = "auto",
        robot_slowdown: float = 1.0,
        patience: Optional[TimeoutLimits] = None,
        example: Optional[Inputs] = None,
        hedging: bool = True,
        report_results: bool = False,
        candidates: Sequence[Mode] = CANDIDATES,
        powers: Optional[StatePowers] = None,
        in_flight: int = 1,
        beside: Optional[ExecutorProcess] = None,
    ) -> None:
        self.name = name
        self.row, self.pace = Row(), Pace(in_flight)
        background.first(self.row)
        self._client, self._report_results = client, report_results
        bridges = BRIDGE not in candidates and BRIDGED in candidates
        wanted = {Mode.LOCAL, *candidates, *((BRIDGE,) if bridges else ())}
        self._candidates = tuple(mode for mode in Mode if mode in wanted)
        executor = executor_of(module, device, beside, name, options or {}, EAGER if exact else chosen(engine, name))
        self.fingerprint = executor.fingerprint()
        self._local = LocalRunner(executor, robot_slowdown)
        self.forecaster = Forecaster(powers, self._expected)
        self._preparation = Preparation(self.forecaster, bridges)
        self.explorer = Explorer()
        self._load = ServerLoad(client)
        self._inputs: Sequence[torch.Tensor] = ()
        self._hedging = hedging
        self._hedge = Hedge()
        self._lateness = Lateness(patience, hedging, None if client is None else client.attend)
        self._lock = threading.Lock()
        self._server: Optional[ServerRunner] = None
        self._objective: Optional[Objective] = None
        self._make_split: Optional[Callable[[], Runner]] = None
        self._runners: Dict[Mode, Runner] = {Mode.LOCAL: self._local}
        if client is not None:
            how = (codec, exact, lambda: executor.engine)
            hashed = functools.partial(registry.state_hash, executor.module)
            self._server = ServerRunner(name, options or {}, client, hashed, self.fingerprint, *how)
            self.add_runner(self._server)
            source = (name, options or {}, executor.module, hashed, self._local.run)
            link = {"client": client, "slowdown": robot_slowdown, "power": powers}
            if not isinstance(module, ByEngine):
                self._make_split = made_once(lambda: split_runner(executor, *source, objective=self._objective, **link))
            if example is not None:
                self._server.prepare(specs_of(as_inputs(example)))
        background.when_learnt(self.forecaster.disturb)

    def add_runner(self, runner: Runner) -> None:
        """Let ``runner`` run its mode from now on."""
        self._runners[runner.mode] = runner

    def follow(self, policy: PromisePolicy) -> Promise:
        """Ask the server for a promise and follow its turns from now on; wire it to the client.

        Raises:
            BadInput: there is no server.
        """
        if self._server is None or self._client is None:
            raise BadInput("a bound on accuracy is promised by a server", remedy="start with server:=host:port")
        server = self._server
        promise = Promise(policy, self._client, lambda: server.handle(specs_of(as_inputs(self._inputs))))
        server.follower = promise
        return promise

    def modes(self) -> Tuple[Mode, ...]:
        """The modes that can be asked for."""
        return tuple(self._runners)

    def offers(self, mode: Mode) -> bool:
        """Whether ``mode`` can be asked for at all here; ``split`` is prepared when it first is."""
        return mode in self._runners or (mode is Mode.SPLIT and self._make_split is not None)

    def unavailable_reason(self, mode: Mode, inputs: Inputs) -> Optional[str]:
        """Why ``mode`` cannot run ``inputs`` now, in words; None when it can. Never blocks."""
        inputs = as_inputs(inputs)
        if mode is Mode.LOCAL:
            return None  # nothing ever keeps the robot from computing by itself
        if mode is Mode.SPLIT and mode not in self._runners and self._make_split is not None:
            self.add_runner(self._make_split())  # tracing and planning are costly: only for who asks for it
        runner = self._runners.get(mode)
        if runner is None:
            return f"mode {mode} is not available for model {self.name!r}"
        return self._hedge.unavailable_reason() or runner.unavailable_reason(inputs)

    def aim(self, objective: Objective) -> None:
        """What plans of mode ``split`` are made for from now on; returns at once."""
        self._objective = objective
        for runner in list(self._runners.values()):
            runner.aim(objective)

    def reading(self, now: float) -> LinkReading:
        """What is known of the link."""
        return LinkReading() if self._client is None else self._client.estimator.reading(now)

    def situation(self, inputs: Inputs, deadline_s: Optional[float] = None, choosing: bool = True) -> Situation:
        """What a policy needs to know to choose the mode of the next call, which is about to have these ``inputs``.

        ``choosing``: whether one does; modes that take long to prepare are not prepared while one is held by name.
        """
        inputs, preparation = as_inputs(inputs), self._preparation
        obstacles: Dict[Mode, str] = {}
        for mode in self._candidates:
            if self.offers(mode):
                why = ""
                if mode in PREPARED:
                    why = preparation.not_yet(mode, obstacles) if choosing else NOT_CHOSEN
                obstacles[mode] = why or self.unavailable_reason(mode, inputs) or ""
        now = time.monotonic()
        self._inputs = inputs
        self._load.step(now)
        with self._lock:
            self.forecaster.busy_s = self._load.waiting_s(now)
            reading = self.reading(now)
            forecasts = self.forecaster.forecasts(now, obstacles, reading, obstacles)
            link = self.forecaster.assumed(reading)
        return Situation(now, forecasts, deadline_s, self._load.load(now), link=link)

    def close(self) -> None:
        """End what waits for late results, what learns a split, and what computes. The link is its owner's."""
        self._make_split = None
        for runner in list(self._runners.values()):
            runner.close()
        self._hedge.close()
        self._local.executor.close()

    def link_changed(self, state: LinkState, cause: str) -> None:
        """For the client's ``on_state``: see ``client``."""
        if self._server is not None:
            self._server.link_changed(state, cause)

    def state(self) -> Dict[str, str]:
        """Each mode's state in words (``server``: the link, the model, and whether results are bit-equal)."""
        return {mode.value: runner.state() for mode, runner in self._runners.items()}

    def engine_state(self) -> Tuple[str, bool]:
        """How the robot's own engine stands, in words, and whether somebody should look at it."""
        return self._local.executor.engine_state()

    def torches(self) -> str:
        """What to do about another release of torch on the server, in one line; empty while there is nothing to do."""
        return "" if self._server is None else self._server.torches()

    def run(
        self,
        inputs: Inputs,
        mode: Mode = Mode.LOCAL,
        deadline_s: Optional[float] = None,
        meta: Optional[Mapping[str, Any]] = None,
        refresh: bool = False,
        place: Optional[int] = None,
    ) -> Tuple[Tuple[torch.Tensor, ...], InferenceReport]:
        """One inference: exactly one result, in ``mode`` or locally.

        Args:
            inputs: a tensor, or a tuple or list of them; copied where not contiguous, so that modes agree to the bit.
            mode: where to run.
            deadline_s: seconds from now until the result is due. The wait for a server leaves room for a local
                computation before it; the local computation itself is never cut short.
            meta: facts on the frame (stamp, sequence number, letterbox) for those who watch on the server.
            refresh: the call may explore another candidate, instead of ``mode`` or beside a local computation.
            place: in :attr:`row`, which is given up; none: behind all calls that are under way.

        Returns:
            The outputs in the module's order, on the CPU, and what they cost. ``report.mode`` is the mode that ran,
            ``report.fallback_reason`` says why it is not the one asked for.

        Raises:
            TypeError: neither a tensor nor a tuple or list of tensors.
            Exception: what the module itself raises when the robot runs it.
        """
        began = time.monotonic()
        place = self.row.place() if place is None else place
        try:
            canonical = [canonical_input(tensor) for tensor in as_inputs(inputs)]
            waited_s, beside = 0.0 if mode in TOGETHER else self.row.wait(place), None
            if refresh and self._hedging:
                mode, beside = self._explored(mode, canonical)
                waited_s += 0.0 if mode in TOGETHER else self.row.wait(place)
            left_s = None if deadline_s is None else max(0.0, deadline_s - waited_s)
            mode, outcome, reason = self._outcome(canonical, mode, beside, left_s, meta or {}, refresh, place)
        finally:
            self.pace.ended(place)
            self.row.done(place)
        report = self._account(replace(outcome, waited_s=waited_s), mode, reason, time.monotonic() - began)
        if self._report_results and meta is not None and report.mode is not Mode.SERVER:
            tell_result(self._client, self.name, outcome.attempt.outputs, report, meta)
        return outcome.attempt.outputs, report

    def _outcome(
        self, inputs: Sequence[torch.Tensor], mode: Mode, beside: Optional[Mode], deadline_s: Optional[float],
        meta: Mapping[str, Any], refresh: bool, place: int,
    ) -> Tuple[Mode, Outcome, str]:  # fmt: skip
        """Return the mode that was asked in the end, its outcome, and why the robot had to help out."""
        if beside is not None:
            return beside, self._run_remotely(beside, inputs, deadline_s, meta, place, beside=True), ""
        reason = ""
        if mode is not Mode.LOCAL:
            reason = self.unavailable_reason(mode, inputs) or ""
            if not reason:
                outcome = self._run_remotely(mode, inputs, deadline_s, meta, place, watched=refresh)
                return mode, outcome, outcome.reason and f"{mode}: {outcome.reason}"
        self.pace.begun(place, -math.inf)
        local_s = self._local.expected_s()
        joins = mode is Mode.LOCAL and refresh and self._hedging and len(self._runners) > 1
        if joins and local_s >= WORTH_JOINING_S:
            asked, outcome = run_and_join(
                self._hedge, self._local, inputs, lambda: self.situation(inputs).forecasts,
                lambda mode: self._ask(mode, inputs, meta, self._late(mode, beside=True)), self._settled,
            )  # fmt: skip
            return asked, outcome, reason
        return mode, Outcome(self._hedge.alone(lambda enough: self._local.run(inputs)), remote=False), reason

    def _explored(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> Tuple[Mode, Optional[Mode]]:
        """The mode to run in, and one to ask beside it, so that what is known of the candidates does not go stale."""
        forecasts = self.situation(inputs).forecasts
        with self._lock:
            return self.explorer.choose(mode, time.monotonic(), forecasts, self._local.expected_s() > 0)

    def _expected(self, mode: Mode, reading: LinkReading) -> Optional[Expected]:
        """What the plan that is in force for such a link is expected to take; None where there are no plans."""
        runner = self._runners.get(mode)
        if runner is None or not runner.has_plans or not self._inputs or reading.uplink <= 0:
            return None
        planned = runner.planned(self._inputs)
        return None if planned is None else planned.expected(reading.uplink)

    def _run_remotely(
        self, mode: Mode, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], meta: Mapping[str, Any],
        place: int, beside: bool = False, watched: bool = False,
    ) -> Outcome:  # fmt: skip
        """Remotely, or locally after a failure; with a local rival when the result is late.

        ``beside``: the local computation is what counts, and begins at once. ``watched``: it also begins when the link
        is seen to have stopped.
        """
        runner = self._runners[mode]

        def local(enough: threading.Event) -> Attempt:
            self.pace.begun(place, -math.inf)
            return self._local.run(inputs, enough=enough)

        if not beside and runner.has_plans and runner.stays_local(inputs):
            self.pace.begun(place, -math.inf)
            budget = self._lateness.alone(mode, self._local.expected_s(), deadline_s)
            return self._hedge.here(lambda: runner.run(inputs, meta, budget), local)
        late = self._late(mode, deadline_s, place, beside, watched)
        self.pace.begun(place, -math.inf if beside else late.doubtful_at)
        with late:
            outcome = self._hedge.run(
                lambda: self._ask(mode, inputs, meta, late),
                local,
                late,
                lambda seconds, attempt: self._settled(mode, seconds, attempt),
            )
        if not beside and outcome.hedged and not outcome.remote:
            now = time.monotonic()
            with self._lock:
                self.forecaster.late(now, mode, max(0.0, now - max(late.began_s, self.row.first_since_s(place))))
        return outcome

    def _late(
        self, mode: Mode, deadline_s: Optional[float] = None, place: int = -1, beside: bool = False,
        watched: bool = False,
    ) -> FrameLateness:  # fmt: skip
        """What is late for a remote attempt that begins now; arguments as :meth:`_run_remotely` has them."""
        now = time.monotonic()
        with self._lock:
            reading = self.reading(now)
            forecast, local = (self.forecaster.forecast(now, each, reading) for each in (mode, Mode.LOCAL))
        local_s = local.latency_s if local.known else 0.0

        def behind() -> Tuple[float, float]:
            # when nothing comes back any more, no frame waits for the one before it
            lost = self._hedge.unavailable_reason() is not None
            return (now if lost else self.row.first_since_s(place)), self.pace.part_s(mode)

        if beside:
            return self._lateness.beside(forecast, local_s, now)
        return self._lateness.frame(forecast, local_s, deadline_s, now, watched, behind)

    def _ask(self, mode: Mode, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any], late: FrameLateness) -> Attempt:
        """A remote attempt, whose seconds are learnt from, in time or not."""
        began = time.monotonic()
        attempt = self._runners[mode].run(inputs, meta, late.budget)
        if attempt.round_trips:
            late.came(time.monotonic() - began - sum(attempt.behind_s.values()))
        return attempt

    def _settled(self, mode: Mode, seconds: float, attempt: Optional[Attempt]) -> None:
        """A remote result came too late; where its time went is worth knowing."""
        if attempt is None:
            return
        sizes = (attempt.bytes_up, attempt.bytes_down, attempt.round_trips)
        report = apart(InferenceReport(mode, self.name, seconds, attempt.stages_s, *sizes), attempt)
        with self._lock:
            self.forecaster.settled(time.monotonic(), report, self.reading(time.monotonic()))

    def _account(self, outcome: Outcome, mode: Mode, reason: str, total_s: float) -> InferenceReport:
        """The report of one inference, and what the forecaster learns from it."""
        report, learnt = outcome.report(mode, reason, total_s, self.name, self._local, self.forecaster.bytes_up(mode))
        now = time.monotonic()
        with self._lock:
            if outcome.remote and outcome.hedged:
                self.forecaster.overtaken(now, outcome.local_s)
            self.forecaster.note(now, learnt, self.reading(now))
        return report
