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
from edge_offload.modes.split.robot.frame import Planned
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
ECHOES = 9
MOST_REQUEST_S = 0.05
OPEN_TIMEOUT_S = 600.0
REOPEN_S, MOST_REOPEN_S = 5.0, 600.0
"""Before what was refused is asked for again; twice as long each time."""
PROFILE_REPEATS = 3
SAME_LINK_S = 0.02
"""By so much the way to the server may differ from that which plans were made for."""

_log = logging.getLogger(__name__)


class Source(Protocol):
    """What is split: where its operators come from, and how the server comes to have them."""

    name: str
    computes: bool
    """Whether :meth:`run_here` does; otherwise the robot computes such an inference by itself, and it is not asked."""
    learning: SplitLearning
    """Who traces, measures and plans."""

    def trace(self, examples: Sequence[torch.Tensor], progress: Progress) -> TracedNetwork:
        """Return its operators, for inputs of these shapes."""

    def ask_to_open(
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

    def trace(self, examples: Sequence[torch.Tensor], progress: Progress) -> TracedNetwork:
        """Implement :class:`Source`."""
        return self.learning.trace_model(self.module, examples, progress)

    def ask_to_open(
        self, client: Client, examples: Sequence[torch.Tensor], sequence: Optional[str], progress: Progress
    ) -> Future[Any]:
        """Implement :class:`Source`."""
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
        """Implement :class:`Source`."""
        return min(REOPEN_S * 2.0 ** max(0, refusals - 1), MOST_REOPEN_S)

    def report(self, problem: str) -> None:
        """Log a problem once, until another one occurs."""
        if problem != self._reported:
            _log.warning("%s", problem)
        self._reported = problem


@dataclass(frozen=True)
class OpenSplit:
    """A split that is open: its number on the server, what both sides have, and what for its plans were made."""

    handle: int
    planned: Planned
    objective: Optional[Objective] = None


@dataclass(frozen=True)
class _Made:
    """Plans that were made, the server's profile that they were made from, and what for."""

    theirs: Profile
    planned: Planned
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
        source: Source,
        client: Client,
        slowdown: float,
        settings: PlanSettings,
        place: Optional[SplitDevice] = None,
    ) -> None:
        self.source, self.settings, self.place = source, settings, place or SplitDevice()
        self._client, self._slowdown = client, slowdown
        self._known: Dict[Specs, Tuple[TracedNetwork, Profile, Mapping[int, torch.Tensor]]] = {}
        self._made: Dict[Specs, _Made] = {}
        self._untraceable: Dict[Specs, Unsupported] = {}
        self._learning = threading.Lock()

    def open(self, examples: Sequence[torch.Tensor], progress: Progress) -> OpenSplit:
        """Open for inputs of these shapes; blocks for seconds to minutes.

        Raises:
            EdgeOffloadError: the server refused, or traces it differently; or there is no plan.
        """
        with self.source.learning.keep_process():
            return self._open(examples, progress)

    def _open(self, examples: Sequence[torch.Tensor], progress: Progress) -> OpenSplit:
        specs = specs_of(examples)
        if specs in self._untraceable:
            raise self._untraceable[specs]
        progress("it is being traced here")
        known = self._known.get(specs)
        sequence = None if known is None else known[1].sequence
        connection = self._client.counters["connections"]
        future = self.source.ask_to_open(self._client, examples, sequence, progress)
        try:
            return self._opened(examples, future, progress)
        except BaseException:
            future.add_done_callback(lambda done: self._not_wanted(done, connection))
            raise

    def _not_wanted(self, opened: Future[Any], connection: int) -> None:
        """Close a split that the server opened after this robot has given up."""
        if opened.exception() is None and self._client.counters["connections"] == connection:
            self._client.request("split_close", {"handle": opened.result().body.get("handle")})

    def _opened(self, examples: Sequence[torch.Tensor], future: Future[Any], progress: Progress) -> OpenSplit:
        specs = specs_of(examples)
        network, profile, shared = self.learn(examples, progress)
        progress("the server is still tracing and timing it")
        reply: Reply = background.result(future, OPEN_TIMEOUT_S)
        theirs = Profile.from_bytes(reply.buffers)
        if theirs.sequence != profile.sequence:
            raise RemoteError("robot and server trace this model differently", remedy="use the same torch on both")
        made = self._made.get(specs)
        rtt_s = self._client.clock.rtt_s
        link = LinkCosts(latency_s=rtt_s / 2 if 0 <= rtt_s < 1 else LinkCosts().latency_s)
        objective = self.settings.objective
        known_plans = made is not None and made.theirs == theirs and made.objective == objective
        if made is None or not known_plans or not _similar(made.planned.model.link, link):
            request_s = self._request_s(2 * link.latency_s)
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
            made = self._made[specs] = _Made(theirs, self.plan(network, model, shared, progress), objective)
        handle = reply.body.get("handle")
        if type(handle) is not int:
            raise ProtocolError("the server opened the split without a handle")
        return replace(self.put_in_force(handle, made.planned), objective=made.objective)

    def plan_again(self, split: OpenSplit, specs: Specs) -> OpenSplit:
        """Plan an open split again, with the present settings; blocks."""
        planned = self.plan(split.planned.network, split.planned.model, split.planned.shared)
        opened = replace(self.put_in_force(split.handle, planned), objective=self.settings.objective)
        if specs in self._made:
            self._made[specs] = _Made(self._made[specs].theirs, planned, self.settings.objective)
        return opened

    def put_in_force(self, handle: int, planned: Planned) -> OpenSplit:
        """Send these plans to the server; blocks.

        Raises:
            EdgeOffloadError: it did not take them.
        """
        table = json.dumps([item.plan.to_json() for item in planned.plans]).encode()
        future = self._client.request("split_table", {"handle": handle}, [table], timeout_s=60.0)
        background.result(future, 60.0)
        return OpenSplit(handle, planned)

    def close(self, split: OpenSplit) -> None:
        """Give the server's half up."""
        self._client.request("split_close", {"handle": split.handle})

    def learn(
        self, examples: Sequence[torch.Tensor], progress: Progress = lambda doing: None
    ) -> Tuple[TracedNetwork, Profile, Mapping[int, torch.Tensor]]:
        """Trace and profile here, once, whatever the link's state; blocks. Opening a split includes it."""
        specs = specs_of(examples)
        with self._learning:
            if specs not in self._known:
                retain_freed_memory()  # page faults come and go with the heap's state; no profile would foretell them

                def between(doing: str) -> None:
                    background.give_way()
                    progress(doing)

                learning = self.source.learning
                with learning.keep_process():
                    try:
                        network = self.source.trace(examples, between)
                    except Unsupported as error:
                        self._untraceable[specs] = error  # it will not be another time either
                        raise
                    measured = learning.measure_profile(network, self.place, PROFILE_REPEATS, between)
                    measured = measured or self.place.measure_profile(network, PROFILE_REPEATS, between)
                self._known[specs] = (network, measured, self.place.share_values(network))
            return self._known[specs]

    def plan(
        self, network: TracedNetwork, model: CostModel, shared: Mapping[int, torch.Tensor],
        progress: Progress = lambda doing: None,
    ) -> Planned:  # fmt: skip
        """Make plans for :data:`BANDWIDTHS`, equal ones once."""
        made = self.source.learning.make_plans(model, BANDWIDTHS, self.settings, progress)
        identity, plans = sequence_hash(network.program.sequence), []
        with background.sliced():
            for plan in made.plans:
                background.give_way()
                plans.append(compile_ready(plan, network.located, identity))
            times = PlanTimes.of([item.plan for item in plans], model)
        return Planned(network, model, made.table, tuple(plans), made.place, times, shared, made.undivided)

    def _request_s(self, rtt_s: float) -> float:
        """Measure a request's time beyond the round trip, through all the threads of both sides: a median."""
        seconds = []
        try:
            for _ in range(ECHOES):
                began = time.monotonic()
                background.result(self._client.request("split_echo", {}, timeout_s=5.0), 5.0)
                seconds.append(time.monotonic() - began)
        except (EdgeOffloadError, FutureTimeout):
            return REQUEST_S
        return min(max(statistics.median(seconds) - rtt_s, 0.0), MOST_REQUEST_S)


def _similar(one: LinkCosts, other: LinkCosts) -> bool:
    return abs(one.latency_s - other.latency_s) <= SAME_LINK_S
