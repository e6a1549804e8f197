"""A network that runs in the requested mode, and on the robot when that fails: one call, one result."""

from __future__ import annotations

import math
import threading
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload import background
from edge_offload.execute.module import Inputs, as_inputs, canonical_input
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.explore import Explorer
from edge_offload.manager.in_flight import TOGETHER, FramesInFlight
from edge_offload.manager.lateness import FrameLateness, Lateness
from edge_offload.manager.policy import Situation
from edge_offload.manager.promise import PromisePolicy
from edge_offload.mode import Mode
from edge_offload.modes.runner import Attempt, Runner
from edge_offload.runtime.costs import ModeCosts
from edge_offload.runtime.hedge import JOIN_EVERY_S, Hedge, Outcome
from edge_offload.runtime.joining import run_and_join
from edge_offload.runtime.promise import Promise
from edge_offload.runtime.results import report_result
from edge_offload.runtime.runners import ModeRunners
from edge_offload.runtime.settings import ModuleSettings
from edge_offload.split.model.objective import Objective
from edge_offload.timing import InferenceReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edge_offload.runtime.settings import ModuleOptions


class OffloadedModule:
    """A module of the robot that also runs on a server; each call has its mode. Thread-safe.

    Connecting and opening the model happen in the background. Until then, and after any fault (link lost, late reply,
    refusal), calls run locally, and their reports say so. Pin threads (:mod:`edge_offload.execute.threads`) beforehand.

    Args:
        name: of the model in the registry (also the server's), or ``package.module:factory``.
        module: the robot's own copy; put in eval mode. A GPU computes with a copy of it.
        client: the link, which the caller starts and closes; None: no server. :meth:`link_changed` is its
            ``on_state``.
        settings: those of :class:`~edge_offload.runtime.settings.ModuleSettings`, by their names.

    Attributes:
        frames: order of the calls, for modes whose inferences may not overlap; says when the next call should begin.
            Its ``note`` takes the reports of whole frames.
        runners: the runner of each mode.
        costs: forecasts of the next call in each mode.

    Raises:
        BadInput: a slowdown below 1, or no such engine.
    """

    def __init__(
        self, name: str, module: nn.Module, client: Optional[Client] = None, **settings: Unpack[ModuleOptions]
    ) -> None:
        self.name, self._client, self._settings = name, client, ModuleSettings(**settings)
        self.frames = FramesInFlight(self._settings.in_flight)
        background.yield_to(self.frames)
        self._hedge = Hedge()
        self.runners = ModeRunners(name, module, client, self._settings)
        self.costs = ModeCosts(
            name, self.runners, client, self._settings, self._hedge.find_overdue_attempt, self.frames.queueing_s
        )
        attend = None if client is None else client.attend
        self._lateness = Lateness(self._settings.patience, self._settings.hedging, attend)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Return what decides the bits of the robot's own results."""
        return self.runners.local.executor.fingerprint()

    @property
    def explorer(self) -> Explorer:
        """Return the explorer: it has some calls run in another mode, to renew the forecasts of that mode."""
        return self.costs.explorer

    def add_runner(self, runner: Runner) -> None:
        """Let ``runner`` run its mode from now on."""
        self.runners.add(runner)

    def follow(self, policy: PromisePolicy) -> Promise:
        """Request a promise from the server and follow its slots from now on.

        The client is to call ``notified`` and ``link_changed`` of the result.

        Raises:
            BadInput: there is no server.
        """
        return self.runners.follow(policy, lambda: self.costs.inputs)

    def modes(self) -> Tuple[Mode, ...]:
        """The modes that can be requested."""
        return tuple(self.runners.by_mode)

    def offers(self, mode: Mode) -> bool:
        """Tell whether ``mode`` is offered here; ``split`` is prepared when it is first requested."""
        return self.costs.offers(mode)

    def unavailable_reason(self, mode: Mode, inputs: Inputs) -> Optional[str]:
        """Return why ``mode`` cannot run ``inputs`` now; None when it can. Never blocks."""
        return self.costs.find_obstacle(mode, as_inputs(inputs))

    def aim(self, objective: Objective) -> None:
        """Have plans of mode ``split`` made for ``objective`` from now on; returns at once."""
        self.runners.aim(objective)

    def reading(self, now: float) -> LinkReading:
        """Return the estimate of the link."""
        return self.costs.reading(now)

    def situation(self, inputs: Inputs, deadline_s: Optional[float] = None, choosing: bool = True) -> Situation:
        """Return the situation in which a policy chooses the mode of the next call.

        Args:
            inputs: of that call.
            deadline_s: as in :meth:`run`.
            choosing: whether a policy chooses; otherwise modes that take long to prepare are not prepared.
        """
        return self.costs.situation(as_inputs(inputs), deadline_s, choosing)

    def close(self) -> None:
        """End the module's threads and processes: they wait for late results, learn a split, or compute.

        The caller closes the link.
        """
        self.runners.close()
        self._hedge.close()

    def link_changed(self, state: LinkState, cause: str) -> None:
        """Handle the client's ``on_state``: see ``client``."""
        if self.runners.server is not None:
            self.runners.server.link_changed(state, cause)

    def state(self) -> Dict[str, str]:
        """Each mode's state in words (``server``: the link, the model, and whether results are bit-equal)."""
        return self.runners.state()

    def engine_state(self) -> Tuple[str, bool]:
        """Describe the robot's own engine, and tell whether it needs attention."""
        return self.runners.local.executor.engine_state()

    def torches(self) -> str:
        """Return the remedy for another release of torch on the server, in one line; empty: none is needed."""
        return "" if self.runners.server is None else self.runners.server.torches()

    def run_inference(
        self,
        inputs: Inputs,
        mode: Mode = Mode.LOCAL,
        deadline_s: Optional[float] = None,
        meta: Optional[Mapping[str, Any]] = None,
        refresh: bool = False,
        ticket: Optional[int] = None,
    ) -> Tuple[Tuple[torch.Tensor, ...], InferenceReport]:
        """Run one inference, in ``mode`` or locally; it has exactly one result.

        Args:
            inputs: a tensor, or a tuple or list of them; copied where not contiguous, so that modes agree to the bit.
            mode: where to run.
            deadline_s: seconds from now until the result is due. The wait for a server leaves room for a local
                computation before it; the local computation itself is never cut short.
            meta: facts on the frame (stamp, sequence number, letterbox) for viewers on the server.
            refresh: the call may explore another candidate, instead of ``mode`` or beside a local computation.
            ticket: the call's ticket of :attr:`frames`, released at its end; None: behind all calls in flight.

        Returns:
            The outputs in the module's order, on the CPU, and what they cost. ``report.mode`` is the mode that ran,
            ``report.fallback_reason`` says why it is not the requested one.

        Raises:
            TypeError: neither a tensor nor a tuple or list of tensors.
            Exception: what the module itself raises when the robot runs it.
        """
        started_s = time.monotonic()
        ticket = self.frames.take_ticket() if ticket is None else ticket
        try:
            canonical = [canonical_input(tensor) for tensor in as_inputs(inputs)]
            waited_s, probe = self._wait_for_turn(mode, canonical, ticket), None
            if refresh and self._settings.hedging:
                mode, probe = self.costs.choose_probe(mode, canonical)
                waited_s += self._wait_for_turn(mode, canonical, ticket)
            remaining_s = None if deadline_s is None else max(0.0, deadline_s - waited_s)
            mode, outcome, reason = self._run_mode(canonical, mode, probe, remaining_s, meta or {}, refresh, ticket)
        finally:
            self.frames.release_ticket(ticket)
        report = self.costs.report_outcome(
            replace(outcome, waited_s=waited_s), mode, reason, time.monotonic() - started_s
        )
        if self._settings.report_results and meta is not None and report.mode is not Mode.SERVER:
            report_result(self._client, self.name, outcome.attempt.outputs, report, meta)
        return outcome.attempt.outputs, report

    def run(self, *inputs_and_mode: Any, place: Optional[int] = None, **options: Any) -> Any:
        """Deprecated name of :meth:`run_inference`, whose ``ticket`` was named ``place``."""
        warnings.warn("OffloadedModule.run is now run_inference", DeprecationWarning, stacklevel=2)
        if place is not None:
            options["ticket"] = place
        return self.run_inference(*inputs_and_mode, **options)

    def _wait_for_turn(self, mode: Mode, inputs: Sequence[torch.Tensor], ticket: int) -> float:
        """Wait for the inferences before, while the inputs go ahead; return the seconds. Some modes overlap instead."""
        if mode in TOGETHER:
            return 0.0
        runner = self.runners.by_mode.get(mode)
        if runner is not None and math.isinf(self.frames.first_since_s(ticket)):
            runner.send_ahead(inputs)
        return self.frames.wait_for_ticket(ticket)

    def _run_mode(
        self, inputs: Sequence[torch.Tensor], mode: Mode, probe: Optional[Mode], deadline_s: Optional[float],
        meta: Mapping[str, Any], refresh: bool, ticket: int,
    ) -> Tuple[Mode, Outcome, str]:  # fmt: skip
        """Return the mode that was requested in the end, its outcome, and the reason for a fallback (empty: none)."""
        if probe is not None:
            return probe, self._run_remotely(probe, inputs, deadline_s, meta, ticket, probe=True), ""
        reason = ""
        if mode is not Mode.LOCAL:
            reason = self.costs.find_obstacle(mode, inputs) or ""
            if not reason:
                outcome = self._run_remotely(mode, inputs, deadline_s, meta, ticket, watched=refresh)
                return mode, outcome, outcome.reason and f"{mode}: {outcome.reason}"
        self.frames.mark_started(ticket, -math.inf)
        local = self.runners.local
        joins = mode is Mode.LOCAL and refresh and self._settings.hedging and len(self.runners.by_mode) > 1
        if joins and local.expected_s() > JOIN_EVERY_S:
            requested, outcome = run_and_join(
                self._hedge, local, inputs, lambda: self.costs.situation(inputs).forecasts,
                lambda mode: self._run_attempt(mode, inputs, meta, self._limit_attempt(mode, probe=True)),
                self.costs.learn_late_result,
            )  # fmt: skip
            return requested, outcome, reason
        attempt = self._hedge.run_unraced(lambda _cancelled: local.attempt_inference(inputs))
        return mode, Outcome(attempt, remote=False), reason

    def _run_remotely(
        self, mode: Mode, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], meta: Mapping[str, Any],
        ticket: int, probe: bool = False, watched: bool = False,
    ) -> Outcome:  # fmt: skip
        """Run in ``mode``, or locally after a failure; a late result races with a local computation.

        With ``probe``, the call only measures ``mode``, and the local computation begins at once. With ``watched``, it
        also begins when the link has stopped. Other arguments are as in :meth:`run`.
        """
        runner = self.runners.by_mode[mode]

        def run_locally(cancelled: threading.Event) -> Attempt:
            self.frames.mark_started(ticket, -math.inf)
            return self.runners.local.attempt_inference(inputs, cancelled=cancelled)

        if not probe and runner.has_plans and runner.stays_local(inputs):
            self.frames.mark_started(ticket, -math.inf)
            budget = self._lateness.limit_attempt(mode, self.runners.local.expected_s(), deadline_s)
            return self._hedge.run_inline(lambda: runner.attempt_inference(inputs, meta, budget), run_locally)
        limits = self._limit_attempt(mode, deadline_s, ticket, probe, watched)
        self.frames.mark_started(ticket, -math.inf if probe else limits.doubtful_at)
        with limits:
            outcome = self._hedge.race_attempts(
                lambda: self._run_attempt(mode, inputs, meta, limits),
                run_locally,
                limits,
                lambda seconds, attempt: self.costs.learn_late_result(mode, seconds, attempt),
            )
        if not probe and outcome.hedged and not outcome.remote:
            self.costs.raise_forecast(mode, max(limits.started_s, self.frames.first_since_s(ticket)))
        return outcome

    def _limit_attempt(
        self, mode: Mode, deadline_s: Optional[float] = None, ticket: int = -1, probe: bool = False,
        watched: bool = False,
    ) -> FrameLateness:  # fmt: skip
        """Return the time limits of a remote attempt that begins now; arguments as for :meth:`_run_remotely`."""
        now = time.monotonic()
        forecast, local_s = self.costs.forecast(mode, now)

        def behind() -> Tuple[float, float]:
            """Return since when this is the first frame, and the longest part of a frame (seconds)."""
            # while an attempt that lost its race is still out, no frame waits for the one before it
            lost = self._hedge.find_overdue_attempt() is not None
            return (now if lost else self.frames.first_since_s(ticket)), self.frames.part_s(mode)

        if probe:
            return self._lateness.limit_probe(forecast, local_s, now)
        return self._lateness.limit_frame(forecast, local_s, deadline_s, now, watched, behind)

    def _run_attempt(
        self, mode: Mode, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any], limits: FrameLateness
    ) -> Attempt:
        """Run a remote attempt, and note how long it took for later limits, even if it is late."""
        started_s = time.monotonic()
        attempt = self.runners.by_mode[mode].attempt_inference(inputs, meta, limits.budget)
        if attempt.round_trips:
            # the wait behind this robot's own earlier requests does not count
            seconds = time.monotonic() - started_s + attempt.ahead_s
            limits.note_result(seconds - sum(attempt.behind_s.values()))
        return attempt
