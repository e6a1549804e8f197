"""One side's values during one inference: rows that come in pieces and in any order, freed when nobody needs them."""

from __future__ import annotations

import threading
from typing import Dict, List, Mapping, Tuple

import torch

from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.check import add, covers
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.reference import Half


class PieceHalf(Half):
    """Like the reference's half, but rows that come in several pieces are put into one buffer as they come.

    :meth:`put` may run on several threads at once, and beside :meth:`rows` of other rows: a side computes its own rows
    of a value while the other side's come in. Nothing that was handed out is moved or overwritten.

    Args:
        located: the sequence and its axes.
        shared: what both sides have.
        gathered: values that come in several pieces -> all the rows that will come.
    """

    def __init__(self, located: LocalityMap, shared: Mapping[int, torch.Tensor], gathered: Mapping[int, Range]) -> None:
        super().__init__(located, shared)
        self._gathered = gathered
        self._buffers: Dict[int, Tuple[int, torch.Tensor]] = {}
        self._here: Dict[int, List[Range]] = {}
        self._lock = threading.Lock()

    def put(self, number: int, low: int, tensor: torch.Tensor) -> None:
        """See :class:`Half`."""
        hull = self._gathered.get(number)
        if hull is None:
            super().put(number, low, tensor)
            return
        axis = self.located.axes[number]
        with self._lock:  # two threads must not make a buffer each, nor lose what the other notes
            if number not in self._buffers:
                shape = list(tensor.shape)
                shape[axis] = hull[1] - hull[0]
                self._buffers[number] = (hull[0], torch.empty(shape, dtype=tensor.dtype))
            start, buffer = self._buffers[number]
        buffer.narrow(axis, low - start, tensor.shape[axis]).copy_(tensor)
        with self._lock:
            add(self._here, number, (low, low + tensor.shape[axis]))

    def rows(self, number: int, low: int, high: int) -> torch.Tensor:
        """See :class:`Half`."""
        if number in self._buffers and covers(self._here[number], (low, high)):
            start, buffer = self._buffers[number]
            return buffer.narrow(self.located.axes[number], low - start, high - low)
        return super().rows(number, low, high)

    def has(self, number: int, low: int, high: int) -> bool:
        """See :class:`Half`."""
        return (number in self._here and covers(self._here[number], (low, high))) or super().has(number, low, high)

    def forget(self, number: int) -> None:
        """See :class:`Half`."""
        self.pieces.pop(number, None)
        self._buffers.pop(number, None)
        self._here.pop(number, None)
