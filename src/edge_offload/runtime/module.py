"""A network that runs wherever it is told to, and on the robot when that fails: one call, one result."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.fingerprint import fingerprint
from edge_offload.execute.module import Inputs, ModuleExecutor, as_inputs, canonical_input
from edge_offload.execute.tensors import specs_of
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.forecast import Forecaster
from edge_offload.manager.hedge import Hedge, Outcome
from edge_offload.manager.policy import BRIDGE, BRIDGED, CANDIDATES, Situation, bridged
from edge_offload.manager.refresh import Refresher, worth_joining
from edge_offload.mode import Mode
from edge_offload.models import registry
from edge_offload.models.entry import Scalar
from edge_offload.modes.local import LocalRunner
from edge_offload.modes.remote import TimeoutLimits
from edge_offload.modes.runner import Attempt, FailedAttempt, Runner
from edge_offload.modes.server import ServerRunner
from edge_offload.power.states import StatePowers
from edge_offload.runtime.account import account
from edge_offload.runtime.link_monitor import EVERY_S, LinkMonitor
from edge_offload.runtime.preparation import Preparation
from edge_offload.runtime.results import tell_result
from edge_offload.runtime.server_load import ServerLoad
from edge_offload.split.model.objective import Objective
from edge_offload.timing import Expected, InferenceReport

#: A local computation that takes less (seconds) is over before anybody could join it.
WORTH_JOINING_S = 0.05
#: Modes that take long to prepare: while a mode is held by name, they are not.
PREPARED = (Mode.REPLAY, Mode.SPLIT)


class OffloadedModule:
    """A module of the robot that also runs on a server, mode by mode, call by call. Thread-safe.

    Connecting and opening the model happen in the background: until the server is there, calls are answered locally
    and say so. After any fault (connection lost, late reply, refusal, error of the server, unreadable reply) the call
    is answered locally too; a late reply is dropped.

    Pin the robot's threads (:func:`edge_offload.execute.threads.pin`) before making one: its fingerprint is taken then.

    Args:
        name: of the model in the registry (also the server's), or ``package.module:factory``.
        module: the robot's own copy; put in eval mode and moved to ``device``.
        client: the link, or None for a robot without a server. Its owner starts and closes it. Wire
            :meth:`link_changed` to its ``on_state``, and the model is open again before the next frame asks.
        options: what ``module`` was built with, for the server to build the same.
        device: where the robot computes; ``engine``: by what (:mod:`edge_offload.execute.engines`).
        exact: no result may have other bits than torch's: neither here nor on a server is an engine used.
        codec: payload codec, both ways; ``auto`` is lossless.
        robot_slowdown: emulate a robot that is so many times slower; 1 does not.
        patience: bounds on the wait for a reply.
        example: inputs of the shapes to come, so that the model is opened before the first frame.
        hedging: start the local computation when a remote result is late by its own forecast; the first one wins.
        report_results: tell the server the results of calls with ``meta`` that it did not compute itself.
        candidates: modes that a policy may choose among, and that are made ready for it; ``local`` is always one.
            ``server`` stands in for ``replay`` until that is ready, and while it is slower.
        powers: of the robot by state, for the energy of forecasts; None: that is unknown (NaN).

    Raises:
        BadInput: a slowdown below 1.
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
    ) -> None:
        self.name = name
        self._client = client
        self._report_results = report_results
        bridges = BRIDGE not in candidates and BRIDGED in candidates
        wanted = {Mode.LOCAL, *candidates, *((BRIDGE,) if bridges else ())}
        self._candidates = tuple(mode for mode in Mode if mode in wanted)
        executor = ModuleExecutor(module, device, EAGER if exact else engine)
        self._local = LocalRunner(executor, robot_slowdown)
        self.forecaster = Forecaster(powers, self._expected)
        self._preparation = Preparation(self.forecaster) if bridges else None
        if bridges:
            self.forecaster.trials = {BRIDGED: 2, Mode.SPLIT: 2}
        self._refresher = Refresher()
        self._load = ServerLoad(client)
        self._inputs: Sequence[torch.Tensor] = ()
        self._hedging = hedging
        self._hedge = Hedge(self._settled)
        self._link_monitor = LinkMonitor(client) if client is not None else None
        self._watching: Optional[LinkMonitor] = None
        self._racing = threading.Lock()
        self._raced = Mode.LOCAL
        self._lock = threading.Lock()
        self._server: Optional[ServerRunner] = None
        self._objective: Optional[Objective] = None
        self._make_split: Optional[Callable[[], Runner]] = None
        self._runners: Dict[Mode, Runner] = {Mode.LOCAL: self._local}
        if client is not None:
            module_hash = functools.partial(registry.state_hash, executor.module)
            own = {**fingerprint(executor.device), **executor.engine_facts()}
            self._server = ServerRunner(name, options or {}, client, module_hash, own, codec, patience, exact)
            self.add_runner(self._server)
            source = (name, options or {}, executor.module, module_hash, self._local.run)
            link = {"client": client, "slowdown": robot_slowdown, "limits": patience, "power": powers}
            self._make_split = lambda: _split_runner(*source, objective=self._objective, **link)
            if example is not None:
                self._server.prepare(specs_of(as_inputs(example)))

    def add_runner(self, runner: Runner) -> None:
        """Let ``runner`` run its mode from now on."""
        self._runners[runner.mode] = runner

    def modes(self) -> Tuple[Mode, ...]:
        """The modes that can be asked for."""
        return tuple(self._runners)

    def offers(self, mode: Mode) -> bool:
        """Whether ``mode`` can be asked for at all here; ``split`` is prepared when it first is."""
        return mode in self._runners or (mode is Mode.SPLIT and self._make_split is not None)

    def unavailable_reason(self, mode: Mode, inputs: Inputs) -> Optional[str]:
        """Why ``mode`` cannot run ``inputs`` now, in words; None when it can. Never blocks."""
        inputs = as_inputs(inputs)
        if mode is Mode.SPLIT and mode not in self._runners and self._make_split is not None:
            # tracing and planning are costly: only for who asks for the mode
            self.add_runner(self._make_split())
        runner = self._runners.get(mode)
        if runner is None:
            return f"mode {mode} is not available for model {self.name!r}"
        if mode is not Mode.LOCAL:
            out = self._hedge.unavailable_reason()
            if out is not None:
                return out
        return runner.unavailable_reason(inputs)

    def aim(self, objective: Objective) -> None:
        """What plans of mode ``split`` are made for from now on; returns at once."""
        self._objective = objective
        change = getattr(self._runners.get(Mode.SPLIT), "aim", None)
        if change is not None:
            change(objective)

    def reading(self, now: float) -> LinkReading:
        """What is known of the link."""
        return LinkReading() if self._client is None else self._client.estimator.reading(now)

    def situation(self, inputs: Inputs, deadline_s: Optional[float] = None, choosing: bool = True) -> Situation:
        """What a policy needs to know to choose the mode of the next call, which is about to have these ``inputs``.

        ``choosing``: whether one does; modes that take long to prepare are not prepared while one is held by name.
        """
        inputs = as_inputs(inputs)
        obstacles: Dict[Mode, str] = {}
        for mode in self._candidates:
            if self.offers(mode):
                why = "it is prepared when a policy chooses" if not choosing and mode in PREPARED else ""
                if self._preparation is not None and not why and choosing:
                    why = self._preparation.not_yet(mode, obstacles)
                obstacles[mode] = why or self.unavailable_reason(mode, inputs) or ""
        now = time.monotonic()
        self._inputs = inputs
        self._load.step(now)
        with self._lock:
            self.forecaster.busy_s = self._load.waiting_s(now)
            reading = self.reading(now)
            forecasts = self.forecaster.forecasts(now, obstacles, reading, obstacles)
            link = self.forecaster.assumed(reading)
        if self._preparation is not None and choosing:
            forecasts = bridged(forecasts)
        return Situation(now, forecasts, deadline_s, self._load.load(now), link=link)

    def close(self) -> None:
        """End the threads that wait for late results. The link is its owner's."""
        self._hedge.close()

    def link_changed(self, state: LinkState, cause: str) -> None:
        """For the client's ``on_state``: see ``client``."""
        if self._server is not None:
            self._server.link_changed(state, cause)

    def state(self) -> Dict[str, str]:
        """Each mode's state in words (``server``: the link, the model, and whether results are bit-equal)."""
        return {mode.value: runner.state() for mode, runner in self._runners.items()}

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
    ) -> Tuple[Tuple[torch.Tensor, ...], InferenceReport]:
        """One inference: exactly one result, in ``mode`` or locally.

        Args:
            inputs: what the module takes: a tensor, or a tuple or list of tensors; one that is not contiguous is copied
                first, so that modes agree bit for bit.
            mode: where to run.
            deadline_s: seconds from now until the result is due. The wait for a server leaves room for a local
                computation before it; the local computation itself is never cut short.
            meta: facts on the frame (stamp, sequence number, letterbox) for those who watch on the server.
            refresh: now and then another candidate may be asked, beside a local call (the first result is used) or
                instead of one that is about as good, so that a policy's forecasts do not go stale.

        Returns:
            The outputs in the module's order, on the CPU, and what they cost. ``report.mode`` is the mode that ran,
            ``report.fallback_reason`` says why it is not the one asked for.

        Raises:
            TypeError: neither a tensor nor a tuple or list of tensors.
            Exception: what the module itself raises when the robot runs it.
        """
        began = time.monotonic()
        canonical = [canonical_input(tensor) for tensor in as_inputs(inputs)]
        outcome, reason, beside = None, "", None
        if refresh and self._hedging:
            mode, beside = self._refreshed(mode, canonical)
        if beside is not None:
            mode, outcome = beside, self._run_remotely(beside, canonical, deadline_s, meta or {}, beside=True)
        elif mode is not Mode.LOCAL:
            reason = self.unavailable_reason(mode, canonical) or ""
            if not reason:
                outcome = self._run_remotely(mode, canonical, deadline_s, meta or {}, watched=refresh)
                reason = outcome.reason and f"{mode}: {outcome.reason}"
        elif refresh and self._hedging and len(self._runners) > 1:
            mode, outcome = self._run_and_join(canonical, meta or {})
        if outcome is None:
            outcome = Outcome(self._run_alone(canonical), remote=False)
        report = self._account(outcome, mode, reason, time.monotonic() - began)
        outputs = outcome.attempt.outputs
        if self._report_results and meta is not None and report.mode is not Mode.SERVER:
            tell_result(self._client, self.name, outputs, report, meta)
        return outputs, report

    def _run_alone(self, inputs: Sequence[torch.Tensor]) -> Attempt:
        return self._hedge.alone(lambda enough: self._local.run(inputs))

    def _run_and_join(self, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any]) -> Tuple[Mode, Optional[Outcome]]:
        """Locally; if the server comes back meanwhile and would be ready first, there too."""
        began, before = time.monotonic(), self.situation(inputs).forecasts
        local_s = self._local.expected_s()
        asked = Mode.LOCAL

        def join(elapsed_s: float) -> Optional[Callable[[], Attempt]]:
            nonlocal asked
            mode = worth_joining(before, self.situation(inputs).forecasts, elapsed_s)
            if mode is None:
                return None
            asked = self._raced = mode
            return lambda: self._runners[mode].run(inputs, None, local_s, meta)

        if local_s < WORTH_JOINING_S or not self._racing.acquire(blocking=False):
            return Mode.LOCAL, None
        try:
            outcome = self._hedge.joined(lambda enough: self._local.run(inputs, enough=enough), join)
        finally:
            self._racing.release()
        if not outcome.hedged:
            return Mode.LOCAL, replace(outcome, local_s=time.monotonic() - began)
        return asked, outcome

    def _refreshed(self, mode: Mode, inputs: Sequence[torch.Tensor]) -> Tuple[Mode, Optional[Mode]]:
        """The mode to run in, and one to ask beside it, so that what is known of the candidates does not go stale."""
        forecasts = self.situation(inputs).forecasts
        if mode is not Mode.LOCAL:
            return self._refresher.instead(mode, forecasts) or mode, None
        return mode, self._refresher.due(time.monotonic(), forecasts) if self._local.expected_s() > 0 else None

    def _expected(self, mode: Mode, reading: LinkReading) -> Optional[Expected]:
        """What the plan that is in force for such a link is expected to take; None where there are no plans."""
        runner = self._runners.get(mode)
        find = getattr(runner, "planned", None)
        planned = find(self._inputs) if find is not None and self._inputs and reading.uplink > 0 else None
        return None if planned is None else planned.expected(reading.uplink)

    def _run_remotely(
        self,
        mode: Mode,
        inputs: Sequence[torch.Tensor],
        deadline_s: Optional[float],
        meta: Mapping[str, Any],
        beside: bool = False,
        watched: bool = False,
    ) -> Outcome:
        """Remotely, or locally after a failure; with a local rival where it is known when a result is late.

        ``beside``: the local computation is what counts, and begins at once. ``watched``: it also begins when the link
        is seen to have stopped.
        """
        runner, local_s = self._runners[mode], self._local.expected_s()
        late_s = 0.0 if beside else self._late_s(mode, deadline_s, local_s)
        if not self._racing.acquire(blocking=False):
            # another thread's call is under way: this one goes without a rival
            try:
                return Outcome(runner.run(inputs, deadline_s, local_s, meta), remote=True)
            except EdgeOffloadError as error:
                lost = error if isinstance(error, FailedAttempt) else None
                return Outcome(self._run_alone(inputs), remote=False, reason=str(error), lost=lost)
        began = time.monotonic()
        # a link that stops is watched for while a policy decides; a mode that is held waits until it is late
        watching = self._watching = self._link_monitor if watched and math.isfinite(late_s) else None
        try:
            self._raced = mode
            with contextlib.nullcontext() if watching is None else watching.over(local_s) as stopped:
                outcome = self._hedge.run(
                    # a local rival sees to the deadline: then the remote attempt may go on for as long as makes sense
                    lambda: runner.run(inputs, deadline_s if math.isinf(late_s) else None, local_s, meta),
                    lambda enough: self._local.run(inputs, enough=enough),
                    late_s,
                    stopped,
                    EVERY_S,
                )
            if outcome.remote and self._watching is not None:
                self._watching.came()
        finally:
            self._racing.release()
        if beside:
            return outcome
        with self._lock:
            self.forecaster.hedged(in_vain=outcome.hedged and outcome.remote)
            if outcome.hedged and not outcome.remote:
                # what stopped the link stops it for the mode that stands in, too
                for other in (mode, BRIDGE) if mode is BRIDGED else (mode,):
                    self.forecaster.late(time.monotonic(), other, time.monotonic() - began)
        return outcome

    def _late_s(self, mode: Mode, deadline_s: Optional[float], local_s: float) -> float:
        """Seconds from now after which a result of ``mode`` counts as late; inf while too little is known."""
        if not self._hedging or local_s <= 0:
            return math.inf
        now = time.monotonic()
        with self._lock:
            forecast = self.forecaster.forecast(now, mode, self.reading(now))
        late_s = forecast.latency_s + forecast.late_s
        if deadline_s is not None and deadline_s - local_s >= forecast.latency_s + forecast.error_s:
            late_s = min(late_s, deadline_s - local_s)
        return late_s if math.isfinite(late_s) else math.inf

    def _settled(self, seconds: float, attempt: Optional[Attempt]) -> None:
        """A remote result came too late; where its time went is worth knowing."""
        if attempt is None:
            return
        if self._watching is not None:
            self._watching.came()
        report = InferenceReport(
            self._raced, self.name, seconds, attempt.stages_s, attempt.bytes_up, attempt.bytes_down, attempt.round_trips
        )
        now = time.monotonic()
        with self._lock:
            self.forecaster.settled(now, report, self.reading(now))

    def _account(self, outcome: Outcome, mode: Mode, reason: str, total_s: float) -> InferenceReport:
        """The report of one inference, and what the forecaster learns from it."""
        report, learnt = account(outcome, mode, reason, total_s, self.name, self._local, self.forecaster.bytes_up(mode))
        now = time.monotonic()
        with self._lock:
            if outcome.remote and outcome.hedged:
                self.forecaster.overtaken(now, outcome.local_s)
            self.forecaster.note(now, learnt, self.reading(now))
        return report


def _split_runner(*source: Any, **link: Any) -> Runner:
    """Mode ``split``; planners and their solvers are imported by who asks for it alone."""
    from edge_offload.modes.split.robot.opening import ModelSource
    from edge_offload.modes.split.robot.runner import SplitRunner

    return SplitRunner(ModelSource(*source), **link)
