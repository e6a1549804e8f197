"""Mode ``split`` on the robot: its half of the plan for the bandwidth of the moment, while threads send and receive.

Splits are opened in the background (:mod:`.opening`). A frame looks its plan up and names it in one small message.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import EdgeOffloadError, LinkLost
from edge_offload.execute.tensors import Specs, specs_of
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.lateness import Budget
from edge_offload.mode import Mode
from edge_offload.modes.remote import Handles, Work
from edge_offload.modes.runner import Attempt, FailedAttempt, Runner
from edge_offload.modes.split.robot.contest import Contest
from edge_offload.modes.split.robot.frame import Counted, Frame, Planned, Threads
from edge_offload.modes.split.robot.opening import OpenSplit, Source, SplitOpener
from edge_offload.split.learning.planning import PlanSettings
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import SplitPlan
from edge_offload.split.runtime.places import SplitDevice

UNKNOWN_BANDWIDTH = 5e6
"""Taken for granted until the link has shown what it carries."""
PAUSE_S, MOST_PAUSE_S = 0.25, 4.0
"""After a failure frames run locally for so long; it doubles with each failure in a row."""
MAX_SHAPES = 64


class SplitRunner(Runner):
    """Runs inferences on robot and server together.

    Args:
        source: what is split.
        client: the link, owned by someone else.
        slowdown: emulate a robot that is so many times slower.
        bandwidth: bytes per second to look plans up by, instead of the link's estimate (for experiments).
        place: where the robot's half is computed.
        settings: how plans are made (:class:`PlanSettings`).

    Attributes:
        opener: opens splits; ``counted``: what the last inference did.
    """

    mode = Mode.SPLIT
    has_plans = True

    def __init__(
        self,
        source: Source,
        client: Client,
        slowdown: float = 1.0,
        bandwidth: Optional[float] = None,
        place: Optional[SplitDevice] = None,
        **settings: Any,
    ) -> None:
        self.opener = SplitOpener(source, client, slowdown, PlanSettings(**settings), place)
        self.bandwidth = bandwidth
        self.counted: Optional[Counted] = None
        self._source, self._client, self._slowdown = source, client, slowdown
        self._handles: Handles[Specs, OpenSplit] = Handles(
            client, f"the split of {source.name!r}", self.opener.close, source.retry_s, MAX_SHAPES, source.report
        )
        self._runs = itertools.count(1)
        self._threads = Threads()
        self._silent = 0
        self._outdated: List[OpenSplit] = []

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""

        def prepare() -> Work[OpenSplit]:
            examples = [tensor.clone() for tensor in inputs]
            return lambda progress: self.opener.open(examples, progress)

        specs = specs_of(inputs)
        opened = self._handles.get(specs)
        if opened is not None and opened.objective != self.opener.settings.objective:
            self._handles.forget(specs, opened)
            self._outdated.append(opened)
        return self._handles.unavailable_reason(specs, prepare)

    def planned(self, inputs: Sequence[torch.Tensor]) -> Optional[Planned]:
        """Return the plans for such inputs; None before the split is open."""
        opened = self._handles.get(specs_of(inputs))
        return None if opened is None else opened.planned

    def stays_local(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Return True if the plan for the present bandwidth leaves all steps to the robot."""
        planned = self.planned(inputs)
        return planned is not None and planned.plans[planned.in_use(self._bandwidth())].plan.is_local

    def close(self) -> None:
        """Close the server's half, also of a split that is still being opened, and stop learning."""
        self._handles.close()
        self._source.learning.close()

    def replan(self, inputs: Sequence[torch.Tensor], planner: str, codecs: bool = True) -> Planned:
        """Plan again with another planner, and put its plans in force on both sides; blocks. For experiments.

        Raises:
            LinkLost: nothing is open for such inputs.
            EdgeOffloadError: the server did not take the plans.
        """
        specs = specs_of(inputs)
        self.opener.settings.planner, self.opener.settings.codecs = planner, codecs
        opened = self.opener.plan_again(self._open(specs), specs)
        self._handles.replace(specs, opened)
        return opened.planned

    def aim(self, objective: Objective) -> None:
        """Have plans made for another objective from now on; returns at once.

        What is open with plans for another one is opened again when it is asked for: plans never change under a frame.
        """
        if objective != (self.opener.settings.objective or Objective()):
            self.opener.settings.objective = objective

    def put_in_force(self, inputs: Sequence[torch.Tensor], change: Callable[[Planned], Planned]) -> OpenSplit:
        """Use changed plans on both sides; blocks. For experiments; raises as :meth:`replan`."""
        specs = specs_of(inputs)
        opened = self._open(specs)
        opened = replace(self.opener.put_in_force(opened.handle, change(opened.planned)), objective=opened.objective)
        self._handles.replace(specs, opened)
        return opened

    def run(self, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any], budget: Budget) -> Attempt:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        del meta
        specs = specs_of(inputs)
        opened = self._open(specs)
        while self._outdated:  # frames that ran with them are over
            self.opener.close(self._outdated.pop())
        planned = opened.planned
        bandwidth = self._bandwidth()
        place, contest = self._turn(planned, bandwidth)
        divides = place == planned.choose(bandwidth)
        plan = planned.plans[place].plan
        began = time.monotonic()
        if plan.is_local:
            attempt = replace(self._source.run_here(inputs), overlap_s=0.0)
            self.counted = Counted(place, sum(step.high - step.low for step in plan.robot), 0, 0, 0)
            if contest is not None:
                contest.note(divides, time.monotonic() - began)
            return attempt
        frame = Frame(
            self._client,
            self._threads,
            self._slowdown,
            planned,
            opened.handle,
            place,
            next(self._runs),
            inputs,
            self.opener.place,
        )
        try:
            attempt = frame.run(began + budget.give_up_s)
        except EdgeOffloadError as error:
            self._silent += 1
            if contest is not None:
                contest.drop()
            pause_s = min(PAUSE_S * 2 ** (self._silent - 1), MOST_PAUSE_S)
            self._handles.pause(pause_s, "the server's half did not come a moment ago")
            if not isinstance(error, LinkLost):  # the session may be gone there: open again
                self._handles.forget(specs, opened)
            raise FailedAttempt(error, time.monotonic() - began, frame.bytes_up) from error
        took_s = time.monotonic() - began
        if contest is not None:
            contest.note(divides, took_s)
        elif divides:
            self._against_local(planned, bandwidth, took_s, budget.local_s)
        self.counted = frame.counted()
        self._silent = 0
        return attempt

    def state(self) -> str:
        """Describe the state of the split."""
        why, _ = self._handles.state()
        opened = self._handles.all()
        if why or not opened or self._client.state is not LinkState.READY:
            return why
        plans = opened[0].planned.plans
        shared = sum(plan.plan.splits_an_operator for plan in plans)
        measured = opened[0].planned.contests.words()
        told = f"{len(plans)} plans by {self.opener.settings.planner}, {shared} of them split operators"
        problem = self._source.learning.problem
        learnt = f"; learnt in threads of this process, for {problem}" if problem else ""
        return f"{told}{measured and f': {measured}'}{learnt}"

    def _turn(self, planned: Planned, bandwidth: float) -> Tuple[int, Optional[Contest]]:
        """Return the place of the next plan to run, and its contest."""
        found = planned.contest(bandwidth)
        if found is None or (planned.plans[found[1]].plan.is_local and not self._source.computes):
            return planned.in_use(bandwidth), None
        contest, other = found
        return planned.choose(bandwidth) if contest.divides() else other, contest

    def _against_local(self, planned: Planned, bandwidth: float, took_s: float, local_s: float) -> None:
        """Compare with the local time if the best undivided plan is computed outside this runner."""
        found = planned.contest(bandwidth)
        if found is not None and local_s > 0:
            found[0].pair(took_s, local_s)

    def _open(self, specs: Specs) -> OpenSplit:
        opened = self._handles.get(specs)
        if opened is None:
            raise LinkLost(f"the split of {self._source.name!r} is not open")
        return opened

    def _bandwidth(self) -> float:
        if self.bandwidth is not None:
            return self.bandwidth
        return self._client.estimator.reading(time.monotonic()).cautious.uplink or UNKNOWN_BANDWIDTH


def ways(plan: SplitPlan) -> str:
    """Name a plan's kind: device-only, server-only, layer cut, or split."""
    if plan.is_local:
        return "device-only"
    if plan.splits_an_operator:
        return "split"
    return "layer cut" if plan.robot else "server-only"
