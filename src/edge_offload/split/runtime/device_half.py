"""One side's values on a GPU. Only rows that are transferred are copied, from or to the host."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import torch

from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.lanes import CopyStreams
from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.runtime.half import PieceHalf


class DeviceHalf(PieceHalf):
    """Like :class:`PieceHalf`, but blocks run on the device asynchronously.

    Args:
        located: the sequence and the axis of each divided value.
        shared: values that both sides have from the start, on the device.
        gathered: for each value that comes in several pieces, the range of all its rows.
        lanes: the device's streams.
    """

    def __init__(
        self,
        located: LocalityMap,
        shared: Mapping[int, torch.Tensor],
        gathered: Mapping[int, Range],
        lanes: CopyStreams,
    ) -> None:
        super().__init__(located, shared, gathered, lanes.device)
        self._lanes = lanes
        # CUDA events: from which on a value's buffer may be written
        self._writable: Dict[int, Any] = {}
        # ends of uploads for which the next block must wait, and ends of all uploads by value
        self._pending: List[Any] = []
        self._arrivals: Dict[int, List[Any]] = {}
        # start and end of each block
        self._blocks: List[Tuple[Any, Any]] = []
        self._synchronised = 0  # number of blocks, from the first, that are known to be done

    def take_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Start to copy rows from the other side to the device; does not wait.

        Raises:
            OutOfMemory, DeviceLost: the GPU failed.
        """
        with gpu_failures():
            if number in self._gathered:
                start, buffer = self._buffer_for(number, tensor)
                axis = self.located.axes[number]
                target = buffer.narrow(axis, low - start, tensor.shape[axis])
            else:
                target, _ = self._lanes.allocate_rows(tensor.shape, tensor.dtype)
            event = self._lanes.send_rows(tensor, target)
        with self._lock:
            self._pending.append(event)
            self._arrivals.setdefault(number, []).append(event)
        if number in self._gathered:
            self._record_rows(number, low, tensor)
        else:
            super().store_rows(number, low, target)

    def store_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Add rows that a block on the device computes."""
        if number in self._gathered:
            self._buffer_for(number, tensor)
            with self._lanes.compute_after([self._writable[number]]):
                super().store_rows(number, low, tensor)
        else:
            super().store_rows(number, low, tensor)

    def _allocate(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        buffer, self._writable[number] = self._lanes.allocate_rows(shape, dtype)
        return buffer

    def run_block(self, steps: Sequence[Tuple[int, int, int]], unused: Iterable[Sequence[int]]) -> None:
        """Launch a block, and return before it is done; arguments as :meth:`PieceHalf.run_block`.

        Raises:
            OutOfMemory, DeviceLost: the GPU failed.
        """
        with self._lock:
            pending, self._pending = self._pending, []
        with gpu_failures(), self._lanes.compute_after(pending):
            started = self._lanes.record_mark()
            self.run(steps, unused)
            self._blocks.append((started, self._lanes.record_mark()))

    def wait_blocks(self) -> None:
        """Wait for all blocks, of which there is at least one.

        Raises:
            OutOfMemory, DeviceLost: the GPU failed.
        """
        with gpu_failures():
            self._blocks[-1][1].synchronize()
        self._synchronised = len(self._blocks)

    def fetch_rows(self, number: int, low: int, high: int, blocks: int) -> torch.Tensor:
        """Copy rows [low, high) of a value to the host, after the first ``blocks`` blocks, which make them; waits.

        Raises:
            OutOfMemory, DeviceLost: the GPU failed.
        """

        def read_rows() -> torch.Tensor:
            return self.rows(number, low, high) if number in self.located.axes else self.whole(number)

        with self._lock:
            events = list(self._arrivals.get(number, ()))
        if blocks:
            events.append(self._blocks[blocks - 1][1])
        with gpu_failures():
            fetched = self._lanes.fetch_rows(read_rows, events)
        self._synchronised = max(self._synchronised, blocks)
        return fetched

    def device_seconds(self) -> float:
        """Return the device's seconds in the blocks that are known to be done."""
        return float(sum(started.elapsed_time(ended) for started, ended in self._blocks[: self._synchronised])) / 1e3
