"""Mode ``split`` on the robot: its half of the plan for the bandwidth of the moment, while threads send and receive.

Opening traces and profiles the model on both sides, plans a table over bandwidths, and gives the server the plans; all
of it in the background. A frame looks its plan up and names it in one small message. After an interruption nothing of
that is done again: the server is told the hash of the trace, and gets the plans of before if its profile is the same.
"""

from __future__ import annotations

import itertools
import json
import logging
import statistics
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError, RemoteError
from edge_offload.execute.heap import keep_freed
from edge_offload.execute.tensors import TensorSpec, pack
from edge_offload.link.replies import LinkState, Reply
from edge_offload.link.transport.client import Client
from edge_offload.mode import Mode
from edge_offload.models.entry import Scalar
from edge_offload.modes.runner import Attempt, FailedAttempt
from edge_offload.modes.split.robot.frame import Counted, Frame, Planned, Threads
from edge_offload.modes.split.robot.plan_times import PlanTimes
from edge_offload.modes.timeouts import TimeoutLimits, TimeoutPolicy
from edge_offload.split.model.cost import CostModel, Link
from edge_offload.split.model.network import Network
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Plan
from edge_offload.split.model.reference import shared_values
from edge_offload.split.planners.space import Space
from edge_offload.split.planners.table import DEFAULT, Effort, plan_table
from edge_offload.split.runtime.profile import Profile, cost_model, measure
from edge_offload.split.runtime.streaming import best_stream
from edge_offload.split.runtime.tables import ReadyPlan, ready
from edge_offload.split.runtime.tracing import trace

BANDWIDTHS = tuple(
    1e6 * rate
    for rate in (
        0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.3, 2.6, 3, 3.5, 4, 4.5,
        5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 27, 30,
    )
)  # fmt: skip
"""Bytes per second for which plans are made: close to each other where a frame takes most of its time on the link."""
UNKNOWN_BANDWIDTH = 5e6
"""Taken for granted until the link has shown what it carries."""
REQUEST_S = 1.5e-3
"""The runtime's own time per inference that uses the link, charged by the planner where it could not be measured."""
ECHOES = 9
MOST_REQUEST_S = 0.05
OPEN_TIMEOUT_S = 600.0
REOPEN_S = 5.0
PAUSE_S, MOST_PAUSE_S = 0.25, 4.0
"""After a failure frames run locally for so long; it doubles with each failure in a row."""
PROFILE_REPEATS = 3
SAME_LINK_S = 0.02
"""By so much the way to the server may differ from that which plans were made for."""

_log = logging.getLogger(__name__)
Specs = Tuple[TensorSpec, ...]
Compute = Callable[[Sequence[torch.Tensor]], Attempt]


@dataclass(frozen=True)
class Made:
    """Plans that were made, and the server's profile that they were made from."""

    theirs: Profile
    planned: Planned


@dataclass
class Opening:
    """A split on its way to being open, or open, for one set of input shapes on one connection."""

    connection: int
    handle: Optional[int] = None
    planned: Optional[Planned] = None
    problem: str = ""
    retry_s: float = 0.0
    doing: str = "it is being traced here"


class SplitRunner:
    """Runs inferences on robot and server together.

    Args:
        name, options: of the model in the server's registry.
        module: the robot's own.
        client: the link, owned by someone else.
        state_hash: makes the hash of the robot's weights; called in the background.
        local: computes a whole inference here, for plans that use no link.
        slowdown: emulate a robot that is so many times slower.
        planner, objective, effort: how the table is made.
        codecs: whether payloads may be coded.
        stream: whether the server's first steps follow the pieces of the input.
        bandwidth: bytes per second to look plans up by, instead of the link's estimate (for experiments).
        limits: bounds on the wait for the server.
    """

    mode = Mode.SPLIT

    def __init__(
        self,
        name: str,
        options: Mapping[str, Scalar],
        module: nn.Module,
        client: Client,
        state_hash: Callable[[], str],
        local: Compute,
        slowdown: float = 1.0,
        planner: str = DEFAULT,
        objective: Optional[Objective] = None,
        effort: Optional[Effort] = None,
        codecs: bool = True,
        stream: bool = True,
        bandwidth: Optional[float] = None,
        limits: Optional[TimeoutLimits] = None,
    ) -> None:
        self._name, self._options, self._module, self._client = name, dict(options), module, client
        self._state_hash, self._local, self._slowdown = state_hash, local, slowdown
        self._planner, self._objective = planner, objective or Objective()
        self._effort, self._codecs, self._stream = effort or Effort(), codecs, stream
        self.bandwidth = bandwidth
        self.patience = TimeoutPolicy(limits)
        self.counted: Optional[Counted] = None
        self._known: Dict[Specs, Tuple[Network, Profile, Mapping[int, torch.Tensor]]] = {}
        self._made: Dict[Specs, Made] = {}
        self._hash: Optional[str] = None
        self._openings: Dict[Specs, Opening] = {}
        self._runs = itertools.count(1)
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._threads = Threads()
        self._pause_until_s = 0.0
        self._silent = 0

    def unavailable_reason(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        if self._client.state is not LinkState.READY:
            return f"no server: {self._client.cause}"
        specs = tuple(TensorSpec.of(tensor) for tensor in inputs)
        connection = self._client.counters["connections"]
        with self._lock:
            opening = self._openings.get(specs)
            stale = opening is None or opening.connection != connection
            if stale or (opening is not None and opening.problem and time.monotonic() >= opening.retry_s):
                opening = self._openings[specs] = Opening(connection)
                examples = [tensor.clone() for tensor in inputs]
                background.start("edge-offload-split", self._open, specs, opening, examples)
            assert opening is not None
            if opening.problem:
                return opening.problem
            if time.monotonic() < self._pause_until_s:
                return "the server's half did not come a moment ago"
            return None if opening.handle is not None else self._under_way(opening)

    def planned(self, inputs: Sequence[torch.Tensor]) -> Optional[Planned]:
        """What is in force for such inputs; None before it is open."""
        with self._lock:
            opening = self._openings.get(tuple(TensorSpec.of(tensor) for tensor in inputs))
        return None if opening is None else opening.planned

    def stays_local(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the plan for the bandwidth of the moment leaves everything to the robot."""
        planned = self.planned(inputs)
        return planned is not None and planned.plans[planned.choose(self._bandwidth())].plan.is_local

    def close(self) -> None:
        """Give the server's half up; nothing is open afterwards."""
        with self._lock:
            openings, self._openings = list(self._openings.values()), {}
        for opening in openings:
            if opening.handle is not None and opening.connection == self._client.counters["connections"]:
                self._client.request("split_close", {"handle": opening.handle})

    def replan(self, inputs: Sequence[torch.Tensor], planner: str, codecs: bool = True) -> Planned:
        """Plan again with another planner, and put its plans in force on both sides; blocks. For experiments.

        Raises:
            LinkLost: nothing is open for such inputs.
            EdgeOffloadError: the server did not take the plans.
        """
        with self._lock:
            opening = self._openings.get(tuple(TensorSpec.of(tensor) for tensor in inputs))
        if opening is None or opening.handle is None or opening.planned is None:
            raise LinkLost(f"the split of {self._name!r} is not open")
        self._planner, self._codecs = planner, codecs
        planned = self._plan(opening.planned.network, opening.planned.model, opening.planned.shared)
        self._put_in_force(opening.handle, planned)
        opening.planned = planned
        specs = tuple(TensorSpec.of(tensor) for tensor in inputs)
        if specs in self._made:
            self._made[specs] = Made(self._made[specs].theirs, planned)
        return planned

    def _put_in_force(self, handle: int, planned: Planned) -> None:
        table = json.dumps([item.plan.to_json() for item in planned.plans]).encode()
        future = self._client.request("split_table", {"handle": handle}, [table], timeout_s=60.0)
        background.result(future, 60.0)

    def run(
        self, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], local_s: float, meta: Mapping[str, Any]
    ) -> Attempt:
        """See :class:`~edge_offload.modes.runner.Runner`."""
        del meta
        specs = tuple(TensorSpec.of(tensor) for tensor in inputs)
        with self._lock:
            opening = self._openings.get(specs)
        if opening is None or opening.handle is None or opening.planned is None:
            raise LinkLost(f"the split of {self._name!r} is not open")
        planned = opening.planned
        place = planned.choose(self._bandwidth())
        if planned.plans[place].plan.is_local:
            attempt = self._local(inputs)
            self.counted = Counted(place, sum(s.high - s.low for s in planned.plans[place].plan.robot), 0, 0, 0)
            return attempt
        began = time.monotonic()
        frame = Frame(
            self._client, self._threads, self._slowdown, planned, opening.handle, place, next(self._runs), inputs
        )
        try:
            attempt = frame.run(began + self.patience.wait_s(deadline_s, local_s))
        except EdgeOffloadError as error:
            self._silent += 1
            self._pause_until_s = time.monotonic() + min(PAUSE_S * 2 ** (self._silent - 1), MOST_PAUSE_S)
            if not isinstance(error, LinkLost):  # the session may be gone there: open again
                with self._lock:
                    if self._openings.get(specs) is opening:
                        del self._openings[specs]
            raise FailedAttempt(error, time.monotonic() - began, frame.bytes_up) from error
        self.patience.note(time.monotonic() - began)
        self.counted = frame.counted()
        self._silent = 0
        return attempt

    def state(self) -> str:
        """How the split stands, in words."""
        if self._client.state is not LinkState.READY:
            return f"no server: {self._client.cause}"
        with self._lock:
            openings = list(self._openings.values())
        for opening in openings:
            if opening.problem:
                return opening.problem
            if opening.planned is not None:
                plans = opening.planned.plans
                shared = sum(plan.plan.splits_an_operator for plan in plans)
                return f"{len(plans)} plans by {self._planner}, {shared} of them split operators"
        return "not asked for yet" if not openings else self._under_way(openings[-1])

    def _under_way(self, opening: Opening) -> str:
        return f"the split of {self._name!r} is being planned: {opening.doing}"

    def _bandwidth(self) -> float:
        if self.bandwidth is not None:
            return self.bandwidth
        return self._client.estimator.reading(time.monotonic()).cautious.uplink or UNKNOWN_BANDWIDTH

    # -- opening, in a thread of its own

    def _open(self, specs: Specs, opening: Opening, examples: Sequence[torch.Tensor]) -> None:
        def tell(what: str) -> None:
            opening.doing = what

        try:
            future = self._ask_to_open(examples, tell)
            network, profile, shared = self.learn(examples, tell)
            tell("the server is still tracing and timing it")
            reply: Reply = background.result(future, OPEN_TIMEOUT_S)
            theirs = Profile.from_bytes(reply.buffers)
            if theirs.sequence != profile.sequence:
                raise RemoteError("robot and server trace this model differently", remedy="use the same torch on both")
            made = self._made.get(specs)
            rtt_s = self._client.clock.rtt_s
            link = Link(latency_s=rtt_s / 2 if 0 <= rtt_s < 1 else Link().latency_s)
            if made is None or made.theirs != theirs or not _similar(made.planned.model.link, link):
                request_s = self._request_s(2 * link.latency_s)
                model = cost_model(network.located, profile, theirs, link, request_s=request_s, slowdown=self._slowdown)
                tell("plans are being made")
                made = self._made[specs] = Made(theirs, self._plan(network, model, shared))
            planned = made.planned
            handle = reply.body.get("handle")
            if type(handle) is not int:
                raise ProtocolError("the server opened the split without a handle")
            self._put_in_force(handle, planned)
            opening.planned = planned
            opening.handle = handle
        except (EdgeOffloadError, FutureTimeout) as error:
            self._not_opened(opening, str(error) or type(error).__name__)
        except Exception as error:
            _log.exception("the split of %s was not opened", self._name)
            self._not_opened(opening, f"{type(error).__name__}: {error}")

    def _ask_to_open(self, examples: Sequence[torch.Tensor], tell: Callable[[str], None]) -> Future[Any]:
        """Ask the server to trace and profile its model; ``tell`` hears what else takes time."""
        del tell
        descriptors, buffers = pack(examples)
        if self._hash is None:
            self._hash = self._state_hash()
        body = {"name": self._name, "options": self._options, "state_hash": self._hash, "inputs": descriptors}
        known = self._known.get(tuple(TensorSpec.of(tensor) for tensor in examples))
        if known is not None:
            body["sequence"] = known[1].sequence
        return self._client.request("split_open", body, buffers, timeout_s=OPEN_TIMEOUT_S)

    def learn(
        self, examples: Sequence[torch.Tensor], tell: Callable[[str], None] = lambda what: None
    ) -> Tuple[Network, Profile, Mapping[int, torch.Tensor]]:
        """Trace and profile here, once, whatever the link does meanwhile; blocks. Opening a split does so by itself.

        ``tell`` hears what is being done.
        """
        specs = tuple(TensorSpec.of(tensor) for tensor in examples)
        with self._learning:
            if specs not in self._known:
                keep_freed()  # page faults come and go with the heap's state; no profile would foretell them
                network = self._trace(examples)
                shared = shared_values(network.located, network.program.constants)
                self._known[specs] = (network, measure(network, PROFILE_REPEATS, tell=tell), shared)
            return self._known[specs]

    def _trace(self, examples: Sequence[torch.Tensor]) -> Network:
        return trace(self._name, self._module, examples)

    def _request_s(self, rtt_s: float) -> float:
        """What a request takes beyond the round trip, through all the threads of both sides: a median."""
        seconds = []
        try:
            for _ in range(ECHOES):
                began = time.monotonic()
                background.result(self._client.request("split_echo", {}, timeout_s=5.0), 5.0)
                seconds.append(time.monotonic() - began)
        except (EdgeOffloadError, FutureTimeout):
            return REQUEST_S
        return min(max(statistics.median(seconds) - rtt_s, 0.0), MOST_REQUEST_S)

    def _not_opened(self, opening: Opening, why: str) -> None:
        opening.retry_s = time.monotonic() + REOPEN_S
        opening.problem = f"the split of {self._name!r} was not opened: {why}"
        _log.warning("%s", opening.problem)

    def _plan(self, network: Network, model: CostModel, shared: Mapping[int, torch.Tensor]) -> Planned:
        space = Space(model, BANDWIDTHS, self._codecs)
        table = plan_table(space, self._planner, self._objective, self._effort)
        distinct: Dict[Tuple[Any, ...], List[int]] = {}
        for index, plan in enumerate(table.plans):
            distinct.setdefault((plan.robot, plan.server, plan.transfers), []).append(index)
        plans: List[ReadyPlan] = []
        place = [0] * len(table.plans)
        for entries in distinct.values():
            background.check()
            plan = table.plans[entries[0]]
            if self._stream:
                plan = best_stream(plan, model, [table.bandwidths[index] for index in entries])
            for index in entries:
                place[index] = len(plans)
            plans.append(ready(plan, network.located, space.identity))
        times = PlanTimes.of([item.plan for item in plans], model)
        return Planned(network, model, table, tuple(plans), tuple(place), times, shared)


def _similar(one: Link, other: Link) -> bool:
    return abs(one.latency_s - other.latency_s) <= SAME_LINK_S


def ways(plan: Plan) -> str:
    """What a plan is, in a word: device-only, server-only, layer cut, or split."""
    if plan.is_local:
        return "device-only"
    if plan.splits_an_operator:
        return "split"
    return "layer cut" if plan.robot else "server-only"
