"""Mode ``split`` on the robot: its half of the plan for the bandwidth of the moment, while threads send and receive.

Opening traces and profiles the model on both sides, plans a table over bandwidths, and gives the server the plans; all
of it in the background. A frame looks its plan up and names it in one small message.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import queue
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError, RemoteError
from edge_offload.execute.tensors import TensorSpec
from edge_offload.link.client import Client
from edge_offload.link.replies import LinkState, Reply
from edge_offload.manager.patience import Patience, PatienceLimits
from edge_offload.manager.runners import Attempt, FailedAttempt
from edge_offload.models.registry import Scalar
from edge_offload.modes import Mode
from edge_offload.split.cost import CostModel, Link
from edge_offload.split.networks import Network
from edge_offload.split.objective import Objective
from edge_offload.split.plan import Plan, Side
from edge_offload.split.planners import DEFAULT, Effort, PlanTable, plan_table
from edge_offload.split.profile import Profile, cost_model, measure
from edge_offload.split.reference import shared_values
from edge_offload.split.runtime.pieces import cut, decode_piece, encode_piece
from edge_offload.split.runtime.progress import Progress
from edge_offload.split.runtime.streaming import best_stream
from edge_offload.split.runtime.tables import ReadyPlan, ready
from edge_offload.split.runtime.tracing import trace
from edge_offload.split.space import Space

BANDWIDTHS = tuple(max(k, 0.5) * 1e6 for k in range(31))
"""Bytes per second for which plans are made."""
UNKNOWN_BANDWIDTH = 5e6
"""Taken for granted until the link has shown what it carries."""
REQUEST_S = 1.5e-3
"""The runtime's own time per inference that uses the link, charged by the planner."""
OPEN_TIMEOUT_S = 600.0
REOPEN_S = 5.0
GIVE_UP_S = 10.0
MOST_UNANSWERED = 24
"""Pieces on their way at once; the link bounds how many requests may wait."""
PROFILE_REPEATS = 3

_log = logging.getLogger(__name__)
Specs = Tuple[TensorSpec, ...]
Compute = Callable[[Sequence[torch.Tensor]], Attempt]


@dataclass(frozen=True)
class Planned:
    """What opening a split gave.

    Attributes:
        network: the traced model.
        model: costs, from a profile of each side.
        table: one plan per bandwidth.
        plans: the distinct ones that are in force on both sides.
        place: entry of the table -> place among ``plans``.
        shared: what both sides have.
        tail: what the robot computes behind the traced part; None if everything was traced.
    """

    network: Network
    model: CostModel
    table: PlanTable
    plans: Tuple[ReadyPlan, ...]
    place: Tuple[int, ...]
    shared: Mapping[int, torch.Tensor]
    tail: Optional[nn.Module]


@dataclass(frozen=True)
class Counted:
    """What one inference did: rows computed and bytes, by side."""

    plan: int
    rows_robot: int
    rows_server: int
    bytes_up: int
    bytes_down: int


@dataclass
class _Opening:
    """A split on its way to being open, or open, for one set of input shapes on one connection."""

    connection: int
    handle: Optional[int] = None
    planned: Optional[Planned] = None
    problem: str = ""
    retry_s: float = 0.0


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
        limits: Optional[PatienceLimits] = None,
    ) -> None:
        self._name, self._options, self._module, self._client = name, dict(options), module, client
        self._state_hash, self._local, self._slowdown = state_hash, local, slowdown
        self._planner, self._objective = planner, objective or Objective()
        self._effort, self._codecs, self._stream = effort or Effort(), codecs, stream
        self.bandwidth = bandwidth
        self.patience = Patience(limits)
        self.counted: Optional[Counted] = None
        self._known: Dict[Specs, Tuple[Network, Profile, Mapping[int, torch.Tensor]]] = {}
        self._openings: Dict[Specs, _Opening] = {}
        self._runs = itertools.count(1)
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._threads = _Threads()

    def obstacle(self, inputs: Sequence[torch.Tensor]) -> Optional[str]:
        """See :class:`~edge_offload.manager.runners.Runner`."""
        if self._client.state is not LinkState.READY:
            return f"no server: {self._client.cause}"
        specs = tuple(TensorSpec.of(tensor) for tensor in inputs)
        connection = self._client.counters["connections"]
        with self._lock:
            opening = self._openings.get(specs)
            stale = opening is None or opening.connection != connection
            if stale or (opening is not None and opening.problem and time.monotonic() >= opening.retry_s):
                opening = self._openings[specs] = _Opening(connection)
                examples = [tensor.clone() for tensor in inputs]
                threading.Thread(
                    target=self._open, args=(specs, opening, examples), name="edge-offload-split", daemon=True
                ).start()
            assert opening is not None
            if opening.problem:
                return opening.problem
            return None if opening.handle is not None else f"the split of {self._name!r} is being planned"

    def planned(self, inputs: Sequence[torch.Tensor]) -> Optional[Planned]:
        """What is in force for such inputs; None before it is open."""
        with self._lock:
            opening = self._openings.get(tuple(TensorSpec.of(tensor) for tensor in inputs))
        return None if opening is None else opening.planned

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
        return planned

    def _put_in_force(self, handle: int, planned: Planned) -> None:
        table = json.dumps([item.plan.to_json() for item in planned.plans]).encode()
        self._client.request("split_table", {"handle": handle}, [table], timeout_s=60.0).result(60.0)

    def run(
        self, inputs: Sequence[torch.Tensor], deadline_s: Optional[float], local_s: float, meta: Mapping[str, Any]
    ) -> Attempt:
        """See :class:`~edge_offload.manager.runners.Runner`."""
        del meta
        specs = tuple(TensorSpec.of(tensor) for tensor in inputs)
        with self._lock:
            opening = self._openings.get(specs)
        if opening is None or opening.handle is None or opening.planned is None:
            raise LinkLost(f"the split of {self._name!r} is not open")
        planned = opening.planned
        place = planned.place[planned.table.index(self._bandwidth())]
        if planned.plans[place].plan.is_local:
            attempt = self._local(inputs)
            self.counted = Counted(place, sum(s.high - s.low for s in planned.plans[place].plan.robot), 0, 0, 0)
            return attempt
        began = time.monotonic()
        frame = _Frame(self, planned, opening.handle, place, next(self._runs), inputs)
        try:
            attempt = frame.run(began + self.patience.wait_s(deadline_s, local_s))
        except EdgeOffloadError as error:
            if not isinstance(error, LinkLost):  # the session may be gone there: open again
                with self._lock:
                    if self._openings.get(specs) is opening:
                        del self._openings[specs]
            raise FailedAttempt(error, time.monotonic() - began, frame.bytes_up) from error
        self.patience.note(time.monotonic() - began)
        self.counted = frame.counted()
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
        return "not asked for yet" if not openings else f"the split of {self._name!r} is being planned"

    def _bandwidth(self) -> float:
        if self.bandwidth is not None:
            return self.bandwidth
        return self._client.estimator.reading(time.monotonic()).uplink or UNKNOWN_BANDWIDTH

    # -- opening, in a thread of its own

    def _open(self, specs: Specs, opening: _Opening, examples: Sequence[torch.Tensor]) -> None:
        try:
            body = {
                "name": self._name,
                "options": self._options,
                "state_hash": self._state_hash(),
                "inputs": [spec.to_dict() for spec in specs],
            }
            future = self._client.request("split_open", body, timeout_s=OPEN_TIMEOUT_S)
            network, profile, shared = self._learn(specs, examples)
            reply: Reply = future.result(OPEN_TIMEOUT_S)
            theirs = _profile_of(reply)
            if theirs.sequence != profile.sequence:
                raise RemoteError("robot and server trace this model differently", remedy="use the same torch on both")
            rtt_s = self._client.clock.rtt_s
            link = Link(latency_s=rtt_s / 2 if 0 <= rtt_s < 1 else Link().latency_s)
            model = cost_model(network.located, profile, theirs, link, request_s=REQUEST_S, slowdown=self._slowdown)
            planned = self._plan(network, model, shared)
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

    def _learn(
        self, specs: Specs, examples: Sequence[torch.Tensor]
    ) -> Tuple[Network, Profile, Mapping[int, torch.Tensor]]:
        """Trace and profile here, once, whatever the link does meanwhile."""
        with self._learning:
            if specs not in self._known:
                network = trace(self._name, self._module, examples)
                shared = shared_values(network.located, network.program.constants)
                self._known[specs] = (network, measure(network, PROFILE_REPEATS), shared)
            return self._known[specs]

    def _not_opened(self, opening: _Opening, why: str) -> None:
        opening.retry_s = time.monotonic() + REOPEN_S
        opening.problem = f"the split of {self._name!r} was not opened: {why}"
        _log.warning("%s", opening.problem)

    def _plan(self, network: Network, model: CostModel, shared: Mapping[int, torch.Tensor]) -> Planned:
        space = Space(model, BANDWIDTHS, self._codecs)
        table = plan_table(space, self._planner, self._objective, self._effort)
        distinct: Dict[str, int] = {}
        plans: List[ReadyPlan] = []
        place: List[int] = []
        for bandwidth, plan in zip(table.bandwidths, table.plans):
            if self._stream:
                plan = best_stream(plan, model, bandwidth)
            key = json.dumps([[*plan.robot], [*plan.server], [*plan.transfers]], default=vars)
            if key not in distinct:
                distinct[key] = len(plans)
                plans.append(ready(plan, network.located, space.identity))
            place.append(distinct[key])
        tail = getattr(self._module, "readout", None) if network.part == "network" else None
        return Planned(network, model, table, tuple(plans), tuple(place), shared, tail)


class _Frame:
    """One inference: the calling thread computes, others send and receive."""

    def __init__(
        self, runner: SplitRunner, planned: Planned, handle: int, place: int, number: int,
        inputs: Sequence[torch.Tensor],
    ) -> None:  # fmt: skip
        self._client, self._threads = runner._client, runner._threads
        self._planned, self._place = planned, place
        self._who = {"handle": handle, "run": number}
        self._slowdown = runner._slowdown
        self.progress = Progress(planned.plans[place], Side.ROBOT, planned.network.located, planned.shared,
                                 runner._slowdown)  # fmt: skip
        for value, tensor in zip(planned.network.program.sequence.inputs, inputs):
            self.progress.half.put(value, 0, tensor)
        self.bytes_up = self.bytes_down = 0
        self._round_trips = 0
        self._rows_server = 0
        names = ("encode", "uplink", "downlink", "decode", "compute_server")
        self._stages: Dict[str, float] = dict.fromkeys(names, 0.0)
        self._credit = threading.Semaphore(MOST_UNANSWERED)
        self._clock_error_s = 0.0

    def run(self, until_s: float) -> Attempt:
        """Carry the plan out.

        Raises:
            EdgeOffloadError: something went wrong, or the results were not here by ``until_s`` (monotonic).
        """
        progress = self.progress
        incoming = progress.mine.receives
        self._ask("split_begin", {"plan": self._place}, until_s)
        for index in incoming[:-1]:
            self._ask("split_take", {"transfer": index}, until_s)
        self._flush(until_s)
        while not progress.finished:
            if progress.computable():
                progress.compute()
                self._flush(until_s)
            elif not progress.wait(until_s, lambda: progress.finished or progress.computable()):
                raise LinkLost("the server's half did not come in time")
            if progress.failure is not None:
                raise progress.failure
        outputs = progress.results()
        if self._planned.tail is not None:
            with torch.inference_mode():
                outputs = tuple(tensor.clone() for tensor in self._planned.tail(*outputs))
        stages = {**self._stages, "compute_robot": progress.compute_s}
        return Attempt(outputs, stages, self.bytes_up, self.bytes_down, self._round_trips, self._clock_error_s)

    def counted(self) -> Counted:
        """What it did."""
        return Counted(self._place, self.progress.rows_computed, self._rows_server, self.bytes_up, self.bytes_down)

    def _ask(self, kind: str, body: Dict[str, Any], until_s: float) -> None:
        timeout_s = max(until_s - time.monotonic(), 0.01) + GIVE_UP_S
        future = self._client.request(kind, {**self._who, **body}, timeout_s=timeout_s)
        self._round_trips = 1
        future.add_done_callback(lambda done: self._threads.receive.put(lambda: self._received(done)))

    def _flush(self, until_s: float) -> None:
        for index in self.progress.sendable():
            self._threads.send.put(functools.partial(self._send, index, until_s))

    def _send(self, index: int, until_s: float) -> None:
        """On the sending thread: piece by piece, so that the first is on its way while the next is coded."""
        progress = self.progress
        transfer = progress.transfer(index)
        try:
            for low, high in cut(self._planned.network.located, transfer):
                if progress.failure is not None or time.monotonic() > until_s:
                    return
                began = time.perf_counter()
                descriptors, buffers = encode_piece(progress.payload(index, low, high), transfer.codec)
                spent = time.perf_counter() - began
                if self._slowdown > 1.0 and transfer.codec != "raw":
                    time.sleep((self._slowdown - 1.0) * spent)
                self._stages["encode"] += time.perf_counter() - began
                body = {**self._who, "transfer": index, "low": low, "high": high, "tensors": descriptors}
                self.bytes_up += sum(memoryview(part).nbytes for part in buffers)
                if not self._credit.acquire(timeout=max(until_s - time.monotonic(), 0.001)):
                    return
                future = self._client.request("split_rows", body, buffers, timeout_s=GIVE_UP_S)
                future.add_done_callback(self._acknowledged)
        except EdgeOffloadError as error:
            progress.fail(error)

    def _acknowledged(self, done: Future) -> None:
        self._credit.release()
        error = done.exception()
        if error is not None:
            self.progress.fail(error)
            return
        self._stages["uplink"] += done.result().transfer.uplink_s

    def _received(self, done: Future) -> None:
        """On the receiving thread."""
        error = done.exception()
        if error is not None:
            self.progress.fail(error)
            return
        reply: Reply = done.result()
        began = time.monotonic()
        try:
            index, low, tensor = decode_piece(self.progress, reply.body, reply.buffers)
            self.bytes_down += reply.transfer.bytes_down
            self._stages["downlink"] += reply.transfer.downlink_s
            self._clock_error_s = max(self._clock_error_s, reply.transfer.clock_error_s)
            self._stages["compute_server"] = max(self._stages["compute_server"], _number(reply.body, "compute_s"))
            self._rows_server = max(self._rows_server, int(_number(reply.body, "rows_computed")))
            self._stages["decode"] += time.monotonic() - began
            self.progress.arrive(index, low, tensor)
        except EdgeOffloadError as failure:
            self.progress.fail(failure)


class _Threads:
    """One thread that sends and one that receives, for all frames of a runner; they begin with the first job."""

    def __init__(self) -> None:
        self.send = _Jobs("edge-offload-split-send")
        self.receive = _Jobs("edge-offload-split-receive")


class _Jobs:
    """A queue of jobs and the daemon thread that does them in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def put(self, job: Callable[[], None]) -> None:
        """Do ``job`` after those before it."""
        self._queue.put(job)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            try:
                job()
            except Exception:
                _log.exception("a transfer of a split failed")


def _profile_of(reply: Reply) -> Profile:
    """The server's profile, from the reply's one buffer.

    Raises:
        ProtocolError: it is none.
    """
    from edge_offload import records
    from edge_offload.split.profile import CodecSpeed

    if len(reply.buffers) != 1 or reply.buffers[0].nbytes > 32 << 20:
        raise ProtocolError("the server sent no profile")
    try:
        record = json.loads(bytes(reply.buffers[0]).decode())
        records.validate("split_profile", record)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the server's profile cannot be read: {error}") from error
    return Profile(
        record["model"], record["sequence"], {int(key): axis for key, axis in record["axes"].items()},
        record["machine"], tuple(tuple((int(r), float(s)) for r, s in points) for points in record["operators"]),
        {int(key): tuple(CodecSpeed(**speed) for speed in found) for key, found in record["codecs"].items()},
        record["whole_s"],
    )  # fmt: skip


def _number(body: Mapping[str, Any], key: str) -> float:
    value = body.get(key)
    if not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ProtocolError(f"the server's reply holds no number under {key}")
    return float(value)


def ways(plan: Plan) -> str:
    """What a plan is, in a word: device-only, server-only, layer cut, or split."""
    if plan.is_local:
        return "device-only"
    if plan.splits_an_operator:
        return "split"
    return "layer cut" if plan.robot else "server-only"
