"""What a plan really takes on this machine, as a timeline: both halves for real, the link between them emulated.

Each half has a thread of this process, computes its operators, and codes what it sends. The link is emulated: a
direction carries one piece after the other at the rate that is given, and hands it over after the delay.
"""

from __future__ import annotations

import functools
import queue
import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.errors import RemoteError
from edge_offload.split.model.cost import LinkCosts
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side
from edge_offload.split.runtime.pieces import cut_transfer, decode_piece, encode_piece
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.progress import SplitProgress
from edge_offload.split.runtime.spans import overlap_seconds
from edge_offload.split.runtime.tables import ReadyPlan
from edge_offload_research.split.model.plan_cost import TIMELINE_ROWS, TimelineSpan

#: Longest wait for one inference, seconds.
MOST_S = 60.0


@dataclass(frozen=True)
class Timeline:
    """One inference.

    Attributes:
        makespan_s: from its begin to the last result on the robot.
        spans: what each lane did, seconds since its begin.
        overlap_ratio: share of the makespan in which robot and server both computed.
        idle: shares of the makespan in which a side did not compute.
    """

    makespan_s: float
    spans: Tuple[TimelineSpan, ...]

    @property
    def overlap_ratio(self) -> float:
        """See the class."""
        robot, server = ([(span.start_s, span.end_s) for span in self._seconds_of(side)] for side in Side)
        return overlap_seconds(robot, server) / self.makespan_s

    def idle_share(self, side: Side) -> float:
        """See the class."""
        return max(0.0, 1.0 - sum(span.end_s - span.start_s for span in self._seconds_of(side)) / self.makespan_s)

    def _seconds_of(self, side: Side) -> List[TimelineSpan]:
        return [span for span in self.spans if span.row == side.value]


def measure_timeline(
    plan: ReadyPlan, network: TracedNetwork, inputs: Sequence[torch.Tensor], bandwidth: float, link: LinkCosts,
    slowdown: float = 1.0, repeats: int = 9,
) -> Tuple[Timeline, List[float]]:  # fmt: skip
    """The inference of the median makespan, and the makespans of all (seconds).

    Args:
        plan: checked.
        network: what it is for.
        inputs: of the network.
        bandwidth: bytes per second up; down it is as much more or less as ``link`` says.
        link: its delay is emulated, too.
        slowdown: emulate a robot that is so many times slower.
        repeats: inferences, after two that nobody counts.

    Raises:
        RemoteError: an inference came to no end.
    """
    shared = SplitDevice().share_values(network)
    timelines = [_Run(plan, network, shared, inputs, bandwidth, link, slowdown).run() for _ in range(repeats + 2)][2:]
    middle = statistics.median_low([one.makespan_s for one in timelines])
    return next(one for one in timelines if one.makespan_s == middle), [one.makespan_s for one in timelines]


class _Run:
    """One inference; a thread for each half, and two for each direction of the link."""

    def __init__(
        self, plan: ReadyPlan, network: TracedNetwork, shared: Mapping[int, torch.Tensor],
        inputs: Sequence[torch.Tensor], bandwidth: float, link: LinkCosts, slowdown: float,
    ) -> None:  # fmt: skip
        self._located = network.located
        self._halves = {
            side: SplitProgress(plan, side, network.located, shared, slowdown if side is Side.ROBOT else 1.0)
            for side in Side
        }
        for value, tensor in zip(network.program.sequence.inputs, inputs):
            self._halves[Side.ROBOT].give_input(value, tensor)
        self._rates = {Side.ROBOT: bandwidth, Side.SERVER: bandwidth * link.down_factor}
        self._delay_s = link.latency_s
        self._spans: List[TimelineSpan] = []
        self._out: Dict[Side, queue.SimpleQueue[Any]] = {side: queue.SimpleQueue() for side in Side}
        self._way: Dict[Side, queue.SimpleQueue[Any]] = {side: queue.SimpleQueue() for side in Side}
        self._failure: Optional[BaseException] = None
        self._started_at = 0.0

    def run(self) -> Timeline:
        """Carry it out."""
        jobs: List[Callable[[], None]] = [
            functools.partial(job, side)
            for side in Side
            for job in (self._compute_side, self._send_side, self._deliver_side)
        ]
        threads = [threading.Thread(target=self._run_guarded, args=(job,), daemon=True) for job in jobs]
        self._started_at = time.perf_counter()
        for thread in threads:
            thread.start()
        threads[0].join(MOST_S)
        ended = time.perf_counter()
        for side in Side:
            self._out[side].put(None)
        for thread in threads:
            thread.join(MOST_S)
        if self._failure is not None or not self._halves[Side.ROBOT].has_results:
            raise RemoteError(f"the plan came to no end: {self._failure or 'it took too long'}")
        spans = sorted(self._spans, key=lambda span: (TIMELINE_ROWS.index(span.row), span.start_s))
        return Timeline(ended - self._started_at, tuple(spans))

    def _run_guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._failure = self._failure or error
            for side, half in self._halves.items():
                half.fail(error)
                self._way[side].put(None)

    def _note_span(self, lane: str, started_at: float, label: str) -> None:
        self._spans.append(
            TimelineSpan(lane, started_at - self._started_at, time.perf_counter() - self._started_at, label)
        )

    def _compute_side(self, side: Side) -> None:
        half, until = self._halves[side], time.monotonic() + MOST_S
        while True:
            for index in half.take_sendable():
                self._out[side].put(index)
            if half.can_compute():
                started_at, rows = time.perf_counter(), half.rows_computed
                half.compute_block()
                self._note_span(side.value, started_at, f"{half.rows_computed - rows} rows")
            elif half.all_computed and (side is Side.SERVER or half.has_results):
                break
            elif not half.wait_until(until, lambda: half.can_compute() or (side is Side.ROBOT and half.has_results)):
                raise RemoteError(f"the {side.value} waited in vain")

    def _send_side(self, side: Side) -> None:
        half, lane = self._halves[side], "uplink" if side is Side.ROBOT else "downlink"
        free = 0.0
        while (index := self._out[side].get()) is not None:
            transfer = half.transfer_at(index)
            for low, high in cut_transfer(self._located, transfer):
                descriptors, buffers = encode_piece(half.read_payload(index, low, high), transfer.codec)
                started_at = max(time.perf_counter(), free)
                size = sum(memoryview(part).nbytes for part in buffers)
                free = started_at + size / self._rates[side]
                _sleep_until(free)
                self._note_span(lane, started_at, f"value {transfer.value}")
                body = {"transfer": index, "low": low, "high": high, "tensors": descriptors}
                self._way[side].put((free + self._delay_s, body, [memoryview(part) for part in buffers]))
        self._way[side].put(None)

    def _deliver_side(self, side: Side) -> None:
        other = self._halves[side.opposite]
        while (item := self._way[side].get()) is not None:
            due, body, buffers = item
            _sleep_until(due)
            other.add_rows(*decode_piece(other, body, buffers))


def _sleep_until(due: float) -> None:
    remaining_s = due - time.perf_counter()
    if remaining_s > 0:
        time.sleep(remaining_s)
