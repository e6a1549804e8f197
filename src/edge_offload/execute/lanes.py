"""Copies to and from a GPU: page-locked memory, copy streams, and the events that order them.

Every copy, event and wait of a divided inference on CUDA is here, in :mod:`edge_offload.execute.clocks` or in
:mod:`edge_offload.split.runtime.device_half`;
``tests/split/runtime/test_device_half.py`` takes out each of them and expects a wrong result.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterable, Iterator, Sequence, Tuple

import torch


class CopyStreams:
    """Three streams of one device: one computes, one uploads rows, one downloads them. Thread-safe.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._compute, self._upload, self._download = (torch.cuda.Stream(device) for _ in range(3))

    @contextlib.contextmanager
    def compute_after(self, behind: Iterable[Any] = ()) -> Iterator[None]:
        """Runs the calls made inside after these events; the caller does not wait."""
        with torch.cuda.stream(self._compute):
            for event in behind:
                self._compute.wait_event(event)
            yield

    def record_mark(self) -> Any:
        """An event behind what has been given to be computed so far; two of them say how long that took."""
        return self._compute.record_event(torch.cuda.Event(enable_timing=True))

    def allocate_rows(self, shape: Sequence[int], dtype: torch.dtype) -> Tuple[torch.Tensor, Any]:
        """Memory of the device for rows that come, and the event from which on others may write to it."""
        with torch.cuda.stream(self._upload):
            made = torch.empty(tuple(shape), dtype=dtype, device=self.device)
            made.record_stream(self._compute)
            return made, self._upload.record_event()

    def send_rows(self, rows: torch.Tensor, to: torch.Tensor) -> Any:
        """Copy rows of the host to memory made by :meth:`allocate_rows`; the event behind which they are there."""
        locked = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        locked.copy_(rows)
        with torch.cuda.stream(self._upload):
            to.copy_(locked, non_blocking=True)
            return self._upload.record_event()

    def fetch_rows(self, rows: Callable[[], torch.Tensor], behind: Iterable[Any]) -> torch.Tensor:
        """Rows of the device on the host, once the events are past; waits for them."""
        with torch.cuda.stream(self._download):
            for event in behind:
                self._download.wait_event(event)
            source = rows()
            locked = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            locked.copy_(source, non_blocking=True)
            copied = self._download.record_event()
        copied.synchronize()
        return locked
