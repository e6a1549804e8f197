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
        self._behind: List[Any] = []
        self._came: Dict[int, List[Any]] = {}
        self._blocks: List[Tuple[Any, Any]] = []
        self._known = 0

    def take(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Start copying the rows to the device."""
        with gpu_failures():
            if number in self._gathered:
                start, buffer = self._buffer(number, tensor)
                axis = self.located.axes[number]
                to = buffer.narrow(axis, low - start, tensor.shape[axis])
            else:
                to, _ = self._lanes.allocate_rows(tensor.shape, tensor.dtype)
            event = self._lanes.send_rows(tensor, to)
        with self._lock:
            self._behind.append(event)
            self._came.setdefault(number, []).append(event)
        if number in self._gathered:
            self._note(number, low, tensor)
        else:
            super().store_rows(number, low, to)

    def store_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Add rows while a block is computed."""
        if number in self._gathered:
            self._buffer(number, tensor)
            with self._lanes.compute_after([self._writable[number]]):
                super().store_rows(number, low, tensor)
        else:
            super().store_rows(number, low, tensor)

    def _room(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        made, self._writable[number] = self._lanes.allocate_rows(shape, dtype)
        return made

    def advance(self, steps: Sequence[Tuple[int, int, int]], unused: Iterable[Sequence[int]]) -> None:
        """Launch a block, and return before it is done."""
        with self._lock:
            behind, self._behind = self._behind, []
        with gpu_failures(), self._lanes.compute_after(behind):
            began = self._lanes.record_mark()
            self.run(steps, unused)
            self._blocks.append((began, self._lanes.record_mark()))

    def catch_up(self) -> None:
        """Wait for all blocks."""
        with gpu_failures():
            self._blocks[-1][1].synchronize()
        self._known = len(self._blocks)

    def fetch(self, number: int, low: int, high: int, blocks: int) -> torch.Tensor:
        """Copy rows to the host, behind the blocks that make them."""

        def rows() -> torch.Tensor:
            return self.rows(number, low, high) if number in self.located.axes else self.whole(number)

        with self._lock:
            behind = list(self._came.get(number, ()))
        if blocks:
            behind.append(self._blocks[blocks - 1][1])
        with gpu_failures():
            found = self._lanes.fetch_rows(rows, behind)
        self._known = max(self._known, blocks)
        return found

    def seconds(self) -> float:
        """Return seconds of the blocks that were waited for."""
        return float(sum(began.elapsed_time(ended) for began, ended in self._blocks[: self._known])) / 1e3
