"""One side's values during one inference: rows that come in pieces and in any order, freed when nobody needs them."""

from __future__ import annotations

import threading
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.check import add_rows, covers
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.reference import HOST, SideValues


class PieceHalf(SideValues):
    """Like the reference's half, but rows that come in several pieces are put into one buffer as they come.

    :meth:`store_rows` may run on several threads at once, and beside :meth:`rows` of other rows: a side computes its
    own rows of a value while the other side's come in. Nothing that was handed out is moved or overwritten.

    Args:
        located: the sequence and its axes.
        shared: what both sides have.
        gathered: values that come in several pieces -> all the rows that will come.
        device: where the values are.
    """

    def __init__(
        self,
        located: LocalityMap,
        shared: Mapping[int, torch.Tensor],
        gathered: Mapping[int, Range],
        device: torch.device = HOST,
    ) -> None:
        super().__init__(located, shared, device)
        self._gathered = gathered
        self._buffers: Dict[int, Tuple[int, torch.Tensor]] = {}
        self._present: Dict[int, List[Range]] = {}
        self._lock = threading.Lock()

    def store_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Add rows, in the value's buffer if it has one."""
        hull = self._gathered.get(number)
        if hull is None:
            super().store_rows(number, low, tensor)
            return
        start, buffer = self._buffer_for(number, tensor)
        axis = self.located.axes[number]
        buffer.narrow(axis, low - start, tensor.shape[axis]).copy_(tensor)
        self._record_rows(number, low, tensor)

    def take_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """Add rows from the other side, on the host."""
        self.store_rows(number, low, tensor)

    def run_block(self, steps: Sequence[Tuple[int, int, int]], unused: Iterable[Sequence[int]]) -> None:
        """Compute the next block of steps; arguments as :meth:`run`."""
        self.run(steps, unused)

    def wait_blocks(self) -> None:
        """Wait for all blocks."""

    def fetch_rows(self, number: int, low: int, high: int, blocks: int) -> torch.Tensor:
        """Return rows [low, high) of a value, or all of one without rows, on the host.

        The first ``blocks`` make them.
        """
        return self.rows(number, low, high) if number in self.located.axes else self.whole(number)

    def device_seconds(self) -> Optional[float]:
        """Return seconds measured by the device so far; None if these are the caller's own time."""
        return None

    def _buffer_for(self, number: int, tensor: torch.Tensor) -> Tuple[int, torch.Tensor]:
        """Return the buffer for all rows of a value, and its first row."""
        low, high = self._gathered[number]
        with self._lock:  # two threads must not make a buffer each, nor lose what the other notes
            if number not in self._buffers:
                shape = list(tensor.shape)
                shape[self.located.axes[number]] = high - low
                self._buffers[number] = (low, self._allocate(number, shape, tensor.dtype))
            return self._buffers[number]

    def _allocate(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def _record_rows(self, number: int, low: int, tensor: torch.Tensor) -> None:
        with self._lock:
            add_rows(self._present, number, (low, low + tensor.shape[self.located.axes[number]]))

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        """Return rows [low, high), from the buffer if it has them."""
        if number in self._buffers and covers(self._present[number], (low, high)):
            start, buffer = self._buffers[number]
            return buffer.narrow(self.located.axes[number], low - start, high - low)
        return super().rows(number, low, high)

    def has_rows(self, number: int, low: int, high: int) -> bool:
        """True if all of these rows are present."""
        return (number in self._present and covers(self._present[number], (low, high))) or super().has_rows(
            number, low, high
        )

    def free_value(self, number: int) -> None:
        """Free a value."""
        self.pieces.pop(number, None)
        self._buffers.pop(number, None)
        self._present.pop(number, None)
