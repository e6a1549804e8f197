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
from edge_offload.modes.split.robot.contest import PlanContest
from edge_offload.modes.split.robot.frame import FrameCounts, SplitFrame, SplitPlans, TransferThreads
from edge_offload.modes.split.robot.opening import RobotSplit, SplitOpener, SplitSource
from edge_offload.split.learning.planning import PlanSettings
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import SplitPlan
from edge_offload.split.runtime.places import SplitDevice


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
        opener: opens splits; ``counts``: what the last inference did.
    """

    mode = Mode.SPLIT
    has_plans = True

    def __init__(
        self,
        source: SplitSource,
        client: Client,
        slowdown: float = 1.0,
        bandwidth: Optional[float] = None,
        place: Optional[SplitDevice] = None,
        **settings: Any,
    ) -> None:
        self.opener = SplitOpener(source, client, slowdown, PlanSettings(**settings), place)
        self.bandwidth = bandwidth
        self.counts: Optional[FrameCounts] = None
        self._source, self._client, self._slowdown = source, client, slowdown
        self._handles: Handles[Specs, RobotSplit] = Handles(
            client, f"the split of {source.name!r}", self.opener.close_split, source.retry_s, 64, source.report
        )
        self._runs = itertools.count(1)
        self._threads = TransferThreads()
        self._failures = 0
        self._outdated: List[RobotSplit] = []

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""

        def prepare() -> Work[RobotSplit]:
            examples = [tensor.clone() for tensor in inputs]
            return lambda progress: self.opener.open_split(examples, progress)

        specs = specs_of(inputs)
        opened = self._handles.get_handle(specs)
        if opened is not None and opened.objective != self.opener.settings.objective:
            self._handles.forget(specs, opened)
            self._outdated.append(opened)
        return self._handles.unavailable_reason(specs, prepare)

    def planned(self, inputs: Sequence[torch.Tensor]) -> Optional[SplitPlans]:
        """Return the plans for such inputs; None before the split is open."""
        opened = self._handles.get_handle(specs_of(inputs))
        return None if opened is None else opened.planned

    def stays_local(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Return True if the plan for the present bandwidth leaves all steps to the robot."""
        planned = self.planned(inputs)
        return planned is not None and planned.plans[planned.plan_in_use(self._read_bandwidth())].plan.is_local

    def close(self) -> None:
        """Close the server's half, also of a split that is still being opened, and stop learning."""
        self._handles.close()
        self._source.learning.close()

    def plan_again(self, inputs: Sequence[torch.Tensor], planner: str, codecs: bool = True) -> SplitPlans:
        """Plan again with another planner, and put its plans in force on both sides; blocks. For experiments.

        Raises:
            LinkLost: nothing is open for such inputs.
            EdgeOffloadError: the server did not take the plans.
        """
        specs = specs_of(inputs)
        self.opener.settings.planner, self.opener.settings.codecs = planner, codecs
        opened = self.opener.plan_again(self._require_open(specs), specs)
        self._handles.replace(specs, opened)
        return opened.planned

    def aim(self, objective: Objective) -> None:
        """Have plans made for another objective from now on; returns at once.

        What is open with plans for another one is opened again when it is asked for: plans never change under a frame.
        """
        if objective != (self.opener.settings.objective or Objective()):
            self.opener.settings.objective = objective

    def put_in_force(self, inputs: Sequence[torch.Tensor], change: Callable[[SplitPlans], SplitPlans]) -> RobotSplit:
        """Use changed plans on both sides; blocks. For experiments; raises as :meth:`plan_again`."""
        specs = specs_of(inputs)
        opened = self._require_open(specs)
        opened = replace(self.opener.put_in_force(opened.handle, change(opened.planned)), objective=opened.objective)
        self._handles.replace(specs, opened)
        return opened

    def attempt_inference(self, inputs: Sequence[torch.Tensor], meta: Mapping[str, Any], budget: Budget) -> Attempt:
        """Implement :class:`~edge_offload.modes.runner.Runner`."""
        del meta
        specs = specs_of(inputs)
        opened = self._require_open(specs)
        while self._outdated:  # frames that ran with them are over
            self.opener.close_split(self._outdated.pop())
        planned = opened.planned
        bandwidth = self._read_bandwidth()
        place, contest = self._next_plan(planned, bandwidth)
        divides = place == planned.choose_plan(bandwidth)
        plan = planned.plans[place].plan
        started = time.monotonic()
        if plan.is_local:
            attempt = replace(self._source.run_here(inputs), overlap_s=0.0)
            self.counts = FrameCounts(place, sum(step.high - step.low for step in plan.robot), 0, 0, 0)
            if contest is not None:
                contest.record_inference(divides, time.monotonic() - started)
            return attempt
        frame = SplitFrame(
            self._client,
            self._threads,
            self._slowdown,
            planned,
            {"handle": opened.handle, "run": next(self._runs)},
            place,
            inputs,
            self.opener.place,
        )
        try:
            attempt = frame.run(started + budget.give_up_s)
        except EdgeOffloadError as error:
            self._failures += 1
            if contest is not None:
                contest.drop_inference()
            # after a failure frames run locally for so long
            pause_s = min(0.25 * 2 ** (self._failures - 1), 4.0)
            self._handles.pause(pause_s, "the server's half did not come a moment ago")
            if not isinstance(error, LinkLost):  # the session may be gone there: open again
                self._handles.forget(specs, opened)
            raise FailedAttempt(error, time.monotonic() - started, frame.bytes_up) from error
        took_s = time.monotonic() - started
        if contest is not None:
            contest.record_inference(divides, took_s)
        elif divides:
            self._compare_local(planned, bandwidth, took_s, budget.local_s)
        self.counts = frame.make_counts()
        self._failures = 0
        return attempt

    def state(self) -> str:
        """Describe the state of the split."""
        reason, _ = self._handles.state()
        opened = self._handles.all()
        if reason or not opened or self._client.state is not LinkState.READY:
            return reason
        plans = opened[0].planned.plans
        shared = sum(plan.plan.splits_an_operator for plan in plans)
        measured = opened[0].planned.contests.describe_state()
        summary = f"{len(plans)} plans by {self.opener.settings.planner}, {shared} of them split operators"
        problem = self._source.learning.problem
        learning_note = f"; learnt in threads of this process, for {problem}" if problem else ""
        return f"{summary}{measured and f': {measured}'}{learning_note}"

    def _next_plan(self, planned: SplitPlans, bandwidth: float) -> Tuple[int, Optional[PlanContest]]:
        """Return the place of the next plan to run, and its contest."""
        entry = planned.find_contest(bandwidth)
        if entry is None or (planned.plans[entry[1]].plan.is_local and not self._source.computes):
            return planned.plan_in_use(bandwidth), None
        contest, other = entry
        return planned.choose_plan(bandwidth) if contest.next_divides() else other, contest

    def _compare_local(self, planned: SplitPlans, bandwidth: float, took_s: float, local_s: float) -> None:
        """Compare with the local time if the best undivided plan is computed outside this runner."""
        entry = planned.find_contest(bandwidth)
        if entry is not None and local_s > 0:
            entry[0].add_pair(took_s, local_s)

    def _require_open(self, specs: Specs) -> RobotSplit:
        opened = self._handles.get_handle(specs)
        if opened is None:
            raise LinkLost(f"the split of {self._source.name!r} is not open")
        return opened

    def _read_bandwidth(self) -> float:
        if self.bandwidth is not None:
            return self.bandwidth
        # until the link has shown what it carries
        return self._client.estimator.make_reading(time.monotonic()).cautious.uplink or 5e6


def describe_plan(plan: SplitPlan) -> str:
    """Name a plan's kind: device-only, server-only, layer cut, or split."""
    if plan.is_local:
        return "device-only"
    if plan.splits_an_operator:
        return "split"
    return "layer cut" if plan.robot else "server-only"
