"""Progress of one side of a split inference: blocks to compute, transfers to send, and rows still awaited."""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, List, Mapping, Optional, Set, Tuple

import torch

from edge_offload.errors import ProtocolError
from edge_offload.execute.clocks import busy_clock
from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.check import add_rows, covers
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import RowTransfer, Side
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.spans import ComputeSpans
from edge_offload.split.runtime.tables import ReadyPlan


class SplitProgress:
    """Progress of one side of an inference. One thread at a time computes blocks; any thread may add received rows.

    Args:
        ready: the plan.
        side: the robot or the server.
        located: the sequence and its axes.
        shared: values on both sides (see :func:`edge_offload.split.model.reference.shared_values`).
        slowdown: factor by which to emulate a slower machine.
        place: device of this side, on which ``shared`` is.

    Attributes:
        spans: times at which blocks were computed; on a GPU, at which a thread was busy with them.
    """

    def __init__(
        self,
        ready: ReadyPlan,
        side: Side,
        located: LocalityMap,
        shared: Mapping[int, torch.Tensor],
        slowdown: float = 1.0,
        place: Optional[SplitDevice] = None,
    ) -> None:
        self.ready = ready
        self.side = side
        self.located = located
        self.side_plan = ready.sides[side]
        self.half = (place or SplitDevice()).make_half(ready, side, located, shared)
        self._computed_s = 0.0
        self.spans = ComputeSpans()
        self._host_values: Dict[int, torch.Tensor] = {}
        self.rows_computed = 0
        self._slowdown = slowdown
        self._slowed_s = 0.0
        self._done = 0
        self._sent = 0
        self._arrived: Set[int] = set()
        self._pieces: Dict[int, List[Range]] = {}
        self._changed = threading.Condition()
        self._failure: Optional[BaseException] = None

    def transfer_at(self, index: int) -> RowTransfer:
        """Return a transfer of the plan."""
        return self.ready.plan.transfers[index]

    def expect_rows(self, index: int, low: int, high: int) -> Tuple[str, Tuple[int, ...]]:
        """Return dtype and shape of rows [low, high) of an incoming transfer.

        Raises:
            ProtocolError: no such transfer, or rows outside it, or rows that have been received already.
        """
        if index not in self.side_plan.receives:
            raise ProtocolError(f"transfer {index} does not come this way")
        transfer = self.transfer_at(index)
        with self._changed:
            seen = self._pieces.get(index, [])
            if not transfer.low <= low < high <= transfer.high or any(a < high and low < b for a, b in seen):
                raise ProtocolError(f"rows [{low}, {high}) of transfer {index} are not awaited")
        return shape_of(self.located, transfer.value, low, high)

    def give_input(self, number: int, tensor: torch.Tensor) -> None:
        """Add an input of the sequence, on the host (the robot's side)."""
        self._host_values[number] = tensor
        if number in self.side_plan.reads:
            self.half.take_rows(number, 0, tensor)

    def add_rows(self, index: int, low: int, tensor: torch.Tensor) -> None:
        """Add received rows of an incoming transfer, from ``low`` on."""
        transfer = self.transfer_at(index)
        axis = self.located.axes.get(transfer.value)
        high = low + (1 if axis is None else tensor.shape[axis])
        number = transfer.value
        stays = number not in self.side_plan.reads and tuple(tensor.shape) == self.located.sequence.values[number].shape
        with self._changed:
            if stays:  # a complete result from which this side computes nothing
                self._host_values[number] = tensor
            else:
                self.half.take_rows(number, low, tensor)
            add_rows(self._pieces, index, (low, high))
            if covers(self._pieces[index], (transfer.low, transfer.high)):
                self._arrived.add(index)
                self._changed.notify_all()

    def can_compute(self) -> bool:
        """Return True if the next block has all awaited rows."""
        blocks = self.side_plan.blocks
        return self._done < len(blocks) and self._arrived.issuperset(blocks[self._done].awaits)

    @torch.no_grad()
    def compute_block(self) -> None:
        """Run the next block, which must be computable."""
        started, busy = time.monotonic(), busy_clock()
        block = self.side_plan.blocks[self._done]
        places = slice(block.first, block.last + 1)
        steps = self.ready.plan.steps_of(self.side)[places]
        self.half.run_block(steps, self.side_plan.dead[places])
        self.rows_computed += sum(step.high - step.low for step in steps)
        if self._slowdown > 1.0:
            self.half.wait_blocks()
            device_s = self.half.device_seconds()
            busy_s = busy_clock() - busy if device_s is None else device_s - self._slowed_s
            time.sleep((self._slowdown - 1.0) * busy_s)
            self._slowed_s = device_s or 0.0
        self._computed_s += time.monotonic() - started
        self.spans.add_span(started)
        with self._changed:
            self._done += 1

    def take_sendable(self) -> List[int]:
        """Return transfers that can be sent now, in order, each once."""
        ready: List[int] = []
        with self._changed:
            while self._sent < len(self.side_plan.sends):
                index = self.side_plan.sends[self._sent]
                blocks, awaited = self.ready.compiled.after[index]
                if self._done < blocks or not self._arrived.issuperset(awaited):
                    break
                ready.append(index)
                self._sent += 1
        return ready

    def read_payload(self, index: int, low: int, high: int) -> torch.Tensor:
        """Return rows [low, high) of an outgoing transfer on the host."""
        number = self.transfer_at(index).value
        on_host = self._host_values.get(number)
        if on_host is None:
            return self.half.fetch_rows(number, low, high, self.ready.compiled.after[index][0])
        axis = self.located.axes.get(number)
        return on_host if axis is None else on_host.narrow(axis, low, high - low)

    @property
    def compute_s(self) -> float:
        """Seconds of this side's steps; on a GPU, of those that were waited for."""
        device_s = self.half.device_seconds()
        return self._computed_s if device_s is None else device_s * self._slowdown

    @property
    def all_computed(self) -> bool:
        """Return True if all steps of this side are done."""
        return self._done == len(self.side_plan.blocks)

    @property
    def has_results(self) -> bool:
        """Return True if the results are present (the robot's side)."""
        return self.all_computed and self._arrived.issuperset(self.ready.compiled.results)

    def read_results(self) -> Tuple[torch.Tensor, ...]:
        """Return the outputs (the robot's side, when finished)."""
        return tuple(self._read_result(number) for number in self.located.sequence.outputs)

    def _read_result(self, number: int) -> torch.Tensor:
        on_host = self._host_values.get(number)
        return (
            self.half.fetch_rows(number, 0, self.located.count_rows(number), self._done) if on_host is None else on_host
        )

    def fail(self, error: BaseException) -> None:
        """Record a failure, which ends all waits; later ones are ignored."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    @property
    def failure(self) -> Optional[BaseException]:
        """First failure, or None."""
        return self._failure

    def wait_until(self, until_s: float, enough: Callable[[], bool]) -> bool:
        """Wait until ``enough()`` is true; False at ``until_s`` (monotonic seconds). A recorded failure is raised."""
        with self._changed:
            while self._failure is None and not enough():
                remaining_s = until_s - time.monotonic()
                if remaining_s <= 0:
                    return False
                self._changed.wait(remaining_s)
        if self._failure is not None:
            raise self._failure
        return True


def shape_of(located: LocalityMap, number: int, low: int, high: int) -> Tuple[str, Tuple[int, ...]]:
    """Return dtype and shape of rows [low, high) of a value."""
    value = located.sequence.values[number]
    shape = list(value.shape)
    if number in located.axes:
        shape[located.axes[number]] = high - low
    return value.dtype, tuple(shape)
