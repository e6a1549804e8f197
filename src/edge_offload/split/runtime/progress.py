"""One side of one inference: what can be computed now, what can be sent now, and what is still awaited."""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, List, Mapping, Optional, Set, Tuple

import torch

from edge_offload.errors import ProtocolError
from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.check import add, covers
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import Side, Transfer
from edge_offload.split.runtime.half import PieceHalf
from edge_offload.split.runtime.tables import ReadyPlan


class Progress:
    """Blocks of steps are run by one thread at a time (:meth:`compute`); pieces may arrive from any thread.

    Args:
        ready: the plan.
        side: which half this is.
        located: the sequence and its axes.
        shared: what both sides have (see :func:`edge_offload.split.model.reference.shared_values`).
        slowdown: emulate a machine that is so many times slower.
    """

    def __init__(
        self,
        ready: ReadyPlan,
        side: Side,
        located: LocalityMap,
        shared: Mapping[int, torch.Tensor],
        slowdown: float = 1.0,
    ) -> None:
        self.ready = ready
        self.side = side
        self.located = located
        self.mine = ready.sides[side]
        self.half = PieceHalf(located, shared, self.mine.gathered)
        self.compute_s = 0.0
        self.rows_computed = 0
        self._slowdown = slowdown
        self._done = 0
        self._sent = 0
        self._arrived: Set[int] = set()
        self._pieces: Dict[int, List[Range]] = {}
        self._changed = threading.Condition()
        self._failure: Optional[BaseException] = None

    def transfer(self, index: int) -> Transfer:
        """A transfer of the plan."""
        return self.ready.plan.transfers[index]

    def expect(self, index: int, low: int, high: int) -> Tuple[str, Tuple[int, ...]]:
        """Dtype and shape of rows [low, high) of an incoming transfer.

        Raises:
            ProtocolError: they are not due: no such transfer, outside it, or here already.
        """
        if index not in self.mine.receives:
            raise ProtocolError(f"transfer {index} does not come this way")
        transfer = self.transfer(index)
        with self._changed:
            seen = self._pieces.get(index, [])
            if not transfer.low <= low < high <= transfer.high or any(a < high and low < b for a, b in seen):
                raise ProtocolError(f"rows [{low}, {high}) of transfer {index} are not awaited")
        return shape_of(self.located, transfer.value, low, high)

    def arrive(self, index: int, low: int, tensor: torch.Tensor) -> None:
        """Rows of an incoming transfer are here (from ``low`` on)."""
        transfer = self.transfer(index)
        axis = self.located.axes.get(transfer.value)
        high = low + (1 if axis is None else tensor.shape[axis])
        with self._changed:
            self.half.put(transfer.value, low, tensor)
            add(self._pieces, index, (low, high))
            if covers(self._pieces[index], (transfer.low, transfer.high)):
                self._arrived.add(index)
                self._changed.notify_all()

    def computable(self) -> bool:
        """Whether the next block has all that it awaits."""
        blocks = self.mine.blocks
        return self._done < len(blocks) and self._arrived.issuperset(blocks[self._done].awaits)

    @torch.no_grad()
    def compute(self) -> None:
        """Run the next block, which must be computable."""
        began, busy = time.perf_counter(), busy_clock()
        block = self.mine.blocks[self._done]
        places = slice(block.first, block.last + 1)
        steps = self.ready.plan.steps(self.side)[places]
        self.half.run(steps, self.mine.dead[places])
        self.rows_computed += sum(step.high - step.low for step in steps)
        if self._slowdown > 1.0:
            time.sleep((self._slowdown - 1.0) * (busy_clock() - busy))
        self.compute_s += time.perf_counter() - began
        with self._changed:
            self._done += 1

    def sendable(self) -> List[int]:
        """Transfers that may leave now, in order; each is named once."""
        found: List[int] = []
        with self._changed:
            while self._sent < len(self.mine.sends):
                index = self.mine.sends[self._sent]
                blocks, brought = self.ready.compiled.after[index]
                if self._done < blocks or not self._arrived.issuperset(brought):
                    break
                found.append(index)
                self._sent += 1
        return found

    def payload(self, index: int, low: int, high: int) -> torch.Tensor:
        """Rows [low, high) of an outgoing transfer, as they are here."""
        number = self.transfer(index).value
        return self.half.rows(number, low, high) if number in self.located.axes else self.half.whole(number)

    @property
    def computed(self) -> bool:
        """Whether all own steps are done."""
        return self._done == len(self.mine.blocks)

    @property
    def finished(self) -> bool:
        """Whether the results are here (the robot's side)."""
        return self.computed and self._arrived.issuperset(self.ready.compiled.results)

    def results(self) -> Tuple[torch.Tensor, ...]:
        """The outputs (the robot's side, when finished)."""
        return tuple(self.half.whole(number) for number in self.located.sequence.outputs)

    def fail(self, error: BaseException) -> None:
        """End the waiting; the first failure counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    @property
    def failure(self) -> Optional[BaseException]:
        """What went wrong."""
        return self._failure

    def wait(self, until_s: float, enough: Callable[[], bool]) -> bool:
        """Wait until ``enough``, or something failed (then raise it); False when it is ``until_s`` (monotonic)."""
        with self._changed:
            while self._failure is None and not enough():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
        if self._failure is not None:
            raise self._failure
        return True


def busy_clock() -> float:
    """Seconds of work that an emulated slowdown multiplies: not the waiting for the interpreter or for a core."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def shape_of(located: LocalityMap, number: int, low: int, high: int) -> Tuple[str, Tuple[int, ...]]:
    """Dtype and shape of rows [low, high) of a value."""
    value = located.sequence.values[number]
    shape = list(value.shape)
    if number in located.axes:
        shape[located.axes[number]] = high - low
    return value.dtype, tuple(shape)
