"""Opening a split: robot and server trace and time the model, the robot plans, and both have the same plans then.

After an interruption nothing of that is done again: the server is told the hash of the trace, and gets the plans of
before if its profile is the same.
"""

from __future__ import annotations

import functools
import json
import logging
import statistics
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import torch
from torch import nn

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, ProtocolError, RemoteError, Unsupported
from edge_offload.execute.heap import retain_freed_memory
from edge_offload.execute.tensors import Specs, pack_tensors, specs_of
from edge_offload.ir import sequence_hash
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import Reply
from edge_offload.models.entry import Scalar
from edge_offload.modes.remote import Progress
from edge_offload.modes.runner import Attempt
from edge_offload.modes.split.robot.frame import SplitPlans
from edge_offload.modes.split.robot.plan_times import PlanTimes
from edge_offload.split.learning.planning import PlanSettings
from edge_offload.split.learning.process import SplitLearning
from edge_offload.split.model.cost import CostModel, LinkCosts
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.objective import Objective
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.profile import Profile, make_cost_model
from edge_offload.split.runtime.tables import compile_ready

BANDWIDTHS = tuple(
    1e6 * rate
    for rate in (
        0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.3, 2.6, 3, 3.5, 4, 4.5,
        5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 27, 30,
    )
)  # fmt: skip
"""Bytes per second for which plans are made: close to each other where a frame takes most of its time on the link."""
REQUEST_S = 1.5e-3
"""The runtime's own time per inference that uses the link, charged by the planner where it could not be measured."""
OPEN_TIMEOUT_S = 600.0
REOPEN_S, MOST_REOPEN_S = 5.0, 600.0
"""Before what was refused is asked for again; twice as long each time."""
PROFILE_REPEATS = 3

_log = logging.getLogger(__name__)


class SplitSource(Protocol):
    """What is split: where its operators come from, and how the server comes to have them."""

    name: str
    computes: bool
    """Whether :meth:`run_here` does; otherwise the robot computes such an inference by itself, and it is not asked."""
    learning: SplitLearning
    """Who traces, measures and plans."""

    def trace_operators(self, examples: Sequence[torch.Tensor], progress: Progress) -> TracedNetwork:
        """Return its operators, for inputs of these shapes."""

    def request_open(
        self, client: Client, examples: Sequence[torch.Tensor], sequence: Optional[str], progress: Progress
    ) -> Future[Any]:
        """Request that the server traces and times it; ``sequence``: hash of the trace, if known."""

    def run_here(self, inputs: Sequence[torch.Tensor]) -> Attempt:
        """Run a whole inference on the robot, for plans that use no link."""

    def retry_s(self, refusals: int) -> float:
        """Return seconds until it may be opened again, after this number of refusals in a row."""

    def report(self, problem: str) -> None:
        """Report that it was not opened."""


@dataclass
class ModelSource:
    """A model of the registry, which the server builds by itself.

    Attributes:
        name, options: of the model.
        module: the robot's own.
        state_hash: makes the hash of the robot's weights; called once, in the background.
        run_here: computes a whole inference.
    """

    name: str
    options: Mapping[str, Scalar]
    module: nn.Module
    state_hash: Callable[[], str]
    run_here: Callable[[Sequence[torch.Tensor]], Attempt]
    computes: bool = True
    learning: SplitLearning = field(init=False)
    _reported: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.state_hash = functools.lru_cache(maxsize=1)(self.state_hash)
        self.learning = SplitLearning(self.name, self.options, self.state_hash)

    def trace_operators(self, examples: Sequence[torch.Tensor], progress: Progress) -> TracedNetwork:
        """Implement :class:`SplitSource`."""
        return self.learning.trace_model(self.module, examples, progress)

    def request_open(
        self, client: Client, examples: Sequence[torch.Tensor], sequence: Optional[str], progress: Progress
    ) -> Future[Any]:
        """Implement :class:`SplitSource`."""
        del progress
        descriptors, buffers = pack_tensors(examples)
        body = {
            "name": self.name,
            "options": dict(self.options),
            "state_hash": self.state_hash(),
            "inputs": descriptors,
        }
        if sequence is not None:
            body["sequence"] = sequence
        return client.request("split_open", body, buffers, timeout_s=OPEN_TIMEOUT_S)

    def retry_s(self, refusals: int) -> float:
        """Implement :class:`SplitSource`."""
        return min(REOPEN_S * 2.0 ** max(0, refusals - 1), MOST_REOPEN_S)

    def report(self, problem: str) -> None:
        """Log a problem once, until another one occurs."""
        if problem != self._reported:
            _log.warning("%s", problem)
        self._reported = problem


@dataclass(frozen=True)
class RobotSplit:
    """A split that is open: its number on the server, what both sides have, and what for its plans were made."""

    handle: int
    planned: SplitPlans
    objective: Optional[Objective] = None


@dataclass(frozen=True)
class _MadePlans:
    """Plans that were made, the server's profile that they were made from, and what for."""

    theirs: Profile
    planned: SplitPlans
    objective: Optional[Objective]


class SplitOpener:
    """Opens one source for any shapes of inputs.

    Args:
        source: what is split.
        client: the link, owned by someone else.
        slowdown: emulate a robot that is so many times slower.
        settings: how plans are made.
        place: where the robot's half is computed.
    """

    def __init__(
        self,
        source: SplitSource,
        client: Client,
        slowdown: float,
        settings: PlanSettings,
        place: Optional[SplitDevice] = None,
    ) -> None:
        self.source, self.settings, self.place = source, settings, place or SplitDevice()
        self._client, self._slowdown = client, slowdown
        self._learnt: Dict[Specs, Tuple[TracedNetwork, Profile, Mapping[int, torch.Tensor]]] = {}
        self._made: Dict[Specs, _MadePlans] = {}
        self._untraceable: Dict[Specs, Unsupported] = {}
        self._learning = threading.Lock()

    def open_split(self, examples: Sequence[torch.Tensor], progress: Progress) -> RobotSplit:
        """Open for inputs of these shapes; blocks for seconds to minutes.

        Raises:
            EdgeOffloadError: the server refused, or traces it differently; or there is no plan.
        """
        with self.source.learning.keep_process():
            return self._open_split(examples, progress)

    def _open_split(self, examples: Sequence[torch.Tensor], progress: Progress) -> RobotSplit:
        specs = specs_of(examples)
        if specs in self._untraceable:
            raise self._untraceable[specs]
        progress("it is being traced here")
        learnt = self._learnt.get(specs)
        sequence = None if learnt is None else learnt[1].sequence
        connection = self._client.counters["connections"]
        future = self.source.request_open(self._client, examples, sequence, progress)
        try:
            return self._finish_open(examples, future, progress)
        except BaseException:
            future.add_done_callback(lambda opened: self._close_unused(opened, connection))
            raise

    def _close_unused(self, opened: Future[Any], connection: int) -> None:
        """Close a split that the server opened after this robot has given up."""
        if opened.exception() is None and self._client.counters["connections"] == connection:
            self._client.request("split_close", {"handle": opened.result().body.get("handle")})

    def _finish_open(self, examples: Sequence[torch.Tensor], future: Future[Any], progress: Progress) -> RobotSplit:
        specs = specs_of(examples)
        network, profile, shared = self.learn_network(examples, progress)
        progress("the server is still tracing and timing it")
        reply: Reply = background.result(future, OPEN_TIMEOUT_S)
        theirs = Profile.from_bytes(reply.buffers)
        if theirs.sequence != profile.sequence:
            raise RemoteError("robot and server trace this model differently", remedy="use the same torch on both")
        plans = self._made.get(specs)
        rtt_s = self._client.clock.rtt_s
        link = LinkCosts(latency_s=rtt_s / 2 if 0 <= rtt_s < 1 else LinkCosts().latency_s)
        objective = self.settings.objective
        unchanged = plans is not None and plans.theirs == theirs and plans.objective == objective
        if plans is None or not unchanged or not _is_similar(plans.planned.model.link, link):
            request_s = self._measure_request(2 * link.latency_s)
            model = make_cost_model(
                network.located,
                profile,
                theirs,
                link,
                self.settings.power,
                request_s=request_s,
                slowdown=self._slowdown,
            )
            progress("plans are being made")
            plans = self._made[specs] = _MadePlans(theirs, self.make_plans(network, model, shared, progress), objective)
        handle = reply.body.get("handle")
        if type(handle) is not int:
            raise ProtocolError("the server opened the split without a handle")
        return replace(self.put_in_force(handle, plans.planned), objective=plans.objective)

    def plan_again(self, split: RobotSplit, specs: Specs) -> RobotSplit:
        """Plan an open split again, with the present settings; blocks."""
        planned = self.make_plans(split.planned.network, split.planned.model, split.planned.shared)
        opened = replace(self.put_in_force(split.handle, planned), objective=self.settings.objective)
        if specs in self._made:
            self._made[specs] = _MadePlans(self._made[specs].theirs, planned, self.settings.objective)
        return opened

    def put_in_force(self, handle: int, planned: SplitPlans) -> RobotSplit:
        """Send these plans to the server; blocks.

        Raises:
            EdgeOffloadError: it did not take them.
        """
        table = json.dumps([item.plan.to_json() for item in planned.plans]).encode()
        future = self._client.request("split_table", {"handle": handle}, [table], timeout_s=60.0)
        background.result(future, 60.0)
        return RobotSplit(handle, planned)

    def close_split(self, split: RobotSplit) -> None:
        """Give the server's half up."""
        self._client.request("split_close", {"handle": split.handle})

    def learn_network(
        self, examples: Sequence[torch.Tensor], progress: Progress = lambda doing: None
    ) -> Tuple[TracedNetwork, Profile, Mapping[int, torch.Tensor]]:
        """Trace and profile here, once, whatever the link's state; blocks. Opening a split includes it."""
        specs = specs_of(examples)
        with self._learning:
            if specs not in self._learnt:
                retain_freed_memory()  # page faults come and go with the heap's state; no profile would foretell them

                def report(doing: str) -> None:
                    background.give_way()
                    progress(doing)

                learning = self.source.learning
                with learning.keep_process():
                    try:
                        network = self.source.trace_operators(examples, report)
                    except Unsupported as error:
                        self._untraceable[specs] = error  # it will not be another time either
                        raise
                    measured = learning.measure_profile(network, self.place, PROFILE_REPEATS, report)
                    measured = measured or self.place.measure_profile(network, PROFILE_REPEATS, report)
                self._learnt[specs] = (network, measured, self.place.share_values(network))
            return self._learnt[specs]

    def make_plans(
        self, network: TracedNetwork, model: CostModel, shared: Mapping[int, torch.Tensor],
        progress: Progress = lambda doing: None,
    ) -> SplitPlans:  # fmt: skip
        """Make plans for :data:`BANDWIDTHS`, equal ones once."""
        distinct = self.source.learning.make_plans(model, BANDWIDTHS, self.settings, progress)
        identity, plans = sequence_hash(network.program.sequence), []
        with background.sliced():
            for plan in distinct.plans:
                background.give_way()
                plans.append(compile_ready(plan, network.located, identity))
            times = PlanTimes.simulate_plans([item.plan for item in plans], model)
        return SplitPlans(
            network, model, distinct.table, tuple(plans), distinct.place, times, shared, distinct.undivided
        )

    def _measure_request(self, rtt_s: float) -> float:
        """Measure a request's time beyond the round trip, through all the threads of both sides: a median."""
        seconds = []
        try:
            for _ in range(9):  # echoes, whose median counts
                started = time.monotonic()
                background.result(self._client.request("split_echo", {}, timeout_s=5.0), 5.0)
                seconds.append(time.monotonic() - started)
        except (EdgeOffloadError, FutureTimeout):
            return REQUEST_S
        return min(max(statistics.median(seconds) - rtt_s, 0.0), 0.05)  # seconds at most


def _is_similar(one: LinkCosts, other: LinkCosts) -> bool:
    return abs(one.latency_s - other.latency_s) <= 0.02  # seconds by which ways differ for which the same plans hold
