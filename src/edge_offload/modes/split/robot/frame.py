"""One inference in mode ``split`` on the robot: the calling thread computes, others send and receive."""

from __future__ import annotations

import functools
import logging
import math
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError
from edge_offload.execute.clocks import busy_clock
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import Reply
from edge_offload.modes.runner import Attempt
from edge_offload.modes.split.robot.contest import PlanContest, PlanContests
from edge_offload.modes.split.robot.plan_times import PlanTimes
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.table import PlanTable
from edge_offload.split.runtime.pieces import cut_transfer, decode_piece, encode_piece
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.progress import SplitProgress
from edge_offload.split.runtime.spans import overlap_seconds, parse_spans
from edge_offload.split.runtime.tables import ReadyPlan
from edge_offload.timing import Expected

REQUEST_LIMIT_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SplitPlans:
    """What opening a split gave.

    Attributes:
        network: the traced model.
        model: costs, from a profile of each side.
        table: one plan per bandwidth.
        plans: the distinct ones that are in force on both sides.
        place: entry of the table -> place among ``plans``.
        times: what they are expected to take at any bandwidth.
        shared: what both sides have, on the robot's device.
        undivided: entry of the table -> place of the best plan that divides no operator; empty: plans are used by what
            they are expected to take.
        contests: what was measured of plans that divide operators against those.
    """

    network: TracedNetwork
    model: CostModel
    table: PlanTable
    plans: Tuple[ReadyPlan, ...]
    place: Tuple[int, ...]
    times: PlanTimes
    shared: Mapping[int, torch.Tensor]
    undivided: Tuple[int, ...] = ()
    contests: PlanContests = field(default_factory=PlanContests, compare=False)

    def choose_plan(self, bandwidth: float) -> int:
        """Return the place of the plan for a bandwidth (bytes per second), by predicted times."""
        return self.place[self.table.find_index(bandwidth)]

    def find_contest(self, bandwidth: float) -> Optional[Tuple[PlanContest, int]]:
        """Return the contest of the plan for a bandwidth, if it divides operators, and the place of the other one."""
        if not self.undivided:
            return None
        index = self.table.find_index(bandwidth)
        divided, other = self.place[index], self.undivided[index]
        return None if divided == other else (self.contests.contest_of(divided, other), other)

    def plan_in_use(self, bandwidth: float) -> int:
        """Return the place of the plan for a bandwidth, by measurements too; while undecided, of the divided one."""
        entry = self.find_contest(bandwidth)
        return self.choose_plan(bandwidth) if entry is None or entry[0].in_use is not False else entry[1]

    def expected(self, bandwidth: float) -> Expected:
        """Return the predicted time of the plan for a bandwidth."""
        place = self.plan_in_use(bandwidth)
        plan = self.plans[place].plan
        return Expected(self.times.predict_seconds(place, bandwidth), plan.is_local, plan.kind == "server")


@dataclass(frozen=True)
class FrameCounts:
    """Rows computed and bytes of one inference, by side."""

    plan: int
    rows_robot: int
    rows_server: int
    bytes_up: int
    bytes_down: int


class SplitFrame:
    """One inference; ``identity``: its ``handle`` and ``run`` in requests."""

    def __init__(
        self,
        client: Client,
        threads: TransferThreads,
        slowdown: float,
        planned: SplitPlans,
        identity: Mapping[str, int],
        place: int,
        inputs: Sequence[torch.Tensor],
        device: Optional[SplitDevice] = None,
    ) -> None:
        self._client, self._threads, self._slowdown = client, threads, slowdown
        self._planned, self._place = planned, place
        self._identity = identity
        self.progress = SplitProgress(planned.plans[place], Side.ROBOT, planned.network.located, planned.shared,
                                 slowdown, device)  # fmt: skip
        for value, tensor in zip(planned.network.program.sequence.inputs, inputs):
            self.progress.give_input(value, tensor)
        self.bytes_up = self.bytes_down = 0
        self._round_trips = 0
        self._rows_server = 0
        names = ("encode", "uplink", "downlink", "decode", "compute_server")
        self._stages: Dict[str, float] = dict.fromkeys(names, 0.0)
        # pieces on their way at once; the link bounds how many requests may wait
        self._credit = threading.Semaphore(24)
        self._clock_error_s = 0.0
        self._server_spans: Sequence[float] = ()

    def run(self, until_s: float) -> Attempt:
        """Carry the plan out.

        Raises:
            EdgeOffloadError: something went wrong, or the results were not here by ``until_s`` (monotonic).
        """
        progress = self.progress
        incoming = progress.side_plan.receives
        self._request("split_begin", {"plan": self._place}, until_s)
        for index in incoming[:-1]:
            self._request("split_take", {"transfer": index}, until_s)
        self._queue_sends(until_s)
        while not progress.has_results:
            if progress.can_compute():
                progress.compute_block()
                self._queue_sends(until_s)
            elif not progress.wait_until(until_s, lambda: progress.has_results or progress.can_compute()):
                raise LinkLost("the server's half did not come in time")
            if progress.failure is not None:
                raise progress.failure
        outputs = progress.read_results()
        stages = {**self._stages, "compute_robot": progress.compute_s}
        spans = parse_spans(self._server_spans, self._client.clock.offset_s)
        overlap_s = overlap_seconds(progress.spans.pairs, spans) if spans else math.nan
        sizes = self.bytes_up, self.bytes_down, self._round_trips
        return Attempt(outputs, stages, *sizes, self._clock_error_s, overlap_s=overlap_s)

    def make_counts(self) -> FrameCounts:
        """Return its rows and bytes."""
        return FrameCounts(self._place, self.progress.rows_computed, self._rows_server, self.bytes_up, self.bytes_down)

    def _request(self, kind: str, body: Dict[str, Any], until_s: float) -> None:
        timeout_s = max(until_s - time.monotonic(), 0.01) + REQUEST_LIMIT_S
        future = self._client.request(kind, {**self._identity, **body}, timeout_s=timeout_s)
        self._round_trips = 1
        future.add_done_callback(lambda reply: self._threads.receive.put_job(lambda: self._handle_reply(reply)))

    def _queue_sends(self, until_s: float) -> None:
        for index in self.progress.take_sendable():
            self._threads.send.put_job(functools.partial(self._send_transfer, index, until_s))

    def _send_transfer(self, index: int, until_s: float) -> None:
        """Send a transfer on the sending thread, piece by piece, so that coding and sending overlap."""
        progress = self.progress
        transfer = progress.transfer_at(index)
        try:
            for low, high in cut_transfer(self._planned.network.located, transfer):
                if progress.failure is not None or time.monotonic() > until_s:
                    return
                started, busy = time.perf_counter(), busy_clock()
                descriptors, buffers = encode_piece(progress.read_payload(index, low, high), transfer.codec)
                if self._slowdown > 1.0 and transfer.codec != "raw":
                    time.sleep((self._slowdown - 1.0) * (busy_clock() - busy))
                self._stages["encode"] += time.perf_counter() - started
                body = {**self._identity, "transfer": index, "low": low, "high": high, "tensors": descriptors}
                self.bytes_up += sum(memoryview(part).nbytes for part in buffers)
                if not self._credit.acquire(timeout=max(until_s - time.monotonic(), 0.001)):
                    return
                future = self._client.request("split_rows", body, buffers, timeout_s=REQUEST_LIMIT_S)
                future.add_done_callback(self._handle_acknowledgement)
        except EdgeOffloadError as error:
            progress.fail(error)

    def _handle_acknowledgement(self, acknowledgement: Future[Any]) -> None:
        self._credit.release()
        error = acknowledgement.exception()
        if error is not None:
            self.progress.fail(error)
            return
        self._stages["uplink"] += acknowledgement.result().transfer.uplink_s

    def _handle_reply(self, future: Future[Any]) -> None:
        """Handle a reply on the receiving thread."""
        error = future.exception()
        if error is not None:
            self.progress.fail(error)
            return
        reply: Reply = future.result()
        started, busy = time.monotonic(), busy_clock()
        try:
            index, low, tensor = decode_piece(self.progress, reply.body, reply.buffers)
            if self._slowdown > 1.0 and self.progress.transfer_at(index).codec != "raw":
                time.sleep((self._slowdown - 1.0) * (busy_clock() - busy))
            self.bytes_down += reply.transfer.bytes_down
            self._stages["downlink"] += reply.transfer.downlink_s
            self._clock_error_s = max(self._clock_error_s, reply.transfer.clock_error_s)
            compute_s = _read_number(reply.body, "compute_s")
            if compute_s >= self._stages["compute_server"]:  # the latest of its transfers tells all
                self._stages["compute_server"], self._server_spans = compute_s, reply.body.get("spans", ())
            self._rows_server = max(self._rows_server, int(_read_number(reply.body, "rows_computed")))
            self._stages["decode"] += time.monotonic() - started
            self.progress.add_rows(index, low, tensor)
        except EdgeOffloadError as failure:
            self.progress.fail(failure)


class TransferThreads:
    """One thread that sends and one that receives, for all frames of a runner; they start with the first job."""

    def __init__(self) -> None:
        self.send = _JobQueue("edge-offload-split-send")
        self.receive = _JobQueue("edge-offload-split-receive")


class _JobQueue:
    """A queue of jobs and the daemon thread that does them in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._started = False
        self._lock = threading.Lock()

    def put_job(self, job: Callable[[], None]) -> None:
        """Do ``job`` after those before it."""
        self._queue.put(job)
        if not self._started:
            with self._lock:
                if not self._started:
                    self._started = True
                    background.start(self._name, self._run_jobs)
                    background.on_shutdown(functools.partial(self._queue.put, background.check))

    def _run_jobs(self) -> None:
        while True:
            job = self._queue.get()
            try:
                job()
            except Exception:
                _log.exception("a transfer of a split failed")


def _read_number(body: Mapping[str, Any], key: str) -> float:
    value = body.get(key)
    if not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ProtocolError(f"the server's reply holds no number under {key}")
    return float(value)
