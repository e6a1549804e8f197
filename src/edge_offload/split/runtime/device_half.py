"""One side's values on a GPU: they stay there, and only the rows of a transfer are copied, in either direction."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import torch

from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.lanes import CopyStreams
from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.runtime.half import PieceHalf


class DeviceHalf(PieceHalf):
    """Like :class:`PieceHalf`, with blocks that are given to the device and not waited for.

    Args:
        located: the sequence and its axes.
        shared: what both sides have, on the device.
        gathered: values that come in several pieces -> all the rows that will come.
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
        self._writable: Dict[int, Any] = {}
        self._pending: List[Any] = []
        self._arrivals: Dict[int, List[Any]] = {}
        self._blocks: List[Tuple[Any, Any]] = []
        self._synchronised = 0

    def take_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Start copying the rows to the device."""
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
        """Add rows while a block is computed."""
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
        """Launch a block, and return before it is done."""
        with self._lock:
            pending, self._pending = self._pending, []
        with gpu_failures(), self._lanes.compute_after(pending):
            started = self._lanes.record_mark()
            self.run(steps, unused)
            self._blocks.append((started, self._lanes.record_mark()))

    def wait_blocks(self) -> None:
        """Wait for all blocks."""
        with gpu_failures():
            self._blocks[-1][1].synchronize()
        self._synchronised = len(self._blocks)

    def fetch_rows(self, number: int, low: int, high: int, blocks: int) -> torch.Tensor:
        """Copy rows to the host, behind the blocks that make them."""

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
        """Return seconds of the blocks that were waited for."""
        return float(sum(started.elapsed_time(ended) for started, ended in self._blocks[: self._synchronised])) / 1e3
