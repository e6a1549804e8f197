"""Streams and events of a test mode in which work lags, so that a missing copy, event or wait shows.

A GPU works asynchronously. This process normally computes the virtual device's calls at once, so a program with a
missing wait is correct all the same. With :data:`LAG_VARIABLE` set, ``edge-offload exec --mode local`` delays work for
as long as a GPU may delay it (native/cpp/streams.h). A program that does not wait then reads poison.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional

import torch

from edge_offload.errors import BadInput

#: Environment variable: 1 delays calls for as long as possible; a greater number is the seed of random orders.
LAG_VARIABLE = "EDGE_OFFLOAD_ASYNC"
_native: Any = None


class LaggingStream:
    """A stream with a queue of its own; the default one is number 0."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: Optional[int] = None, **_: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.device_index = 0
        self.priority = priority
        self.stream_id = self.cuda_stream = _native.new_stream() if number is None else number

    def synchronize(self) -> None:
        """Wait for all work issued on this stream."""
        _native.wait_for_stream(self.stream_id)

    def query(self) -> bool:
        """Return True: a query makes the work run."""
        self.synchronize()
        return True

    def wait_event(self, event: LaggingEvent) -> None:
        """Order work issued from now on after the event."""
        event.wait(self)

    def wait_stream(self, stream: LaggingStream) -> None:
        """Order work issued from now on after the other stream's work so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Optional[LaggingEvent] = None) -> LaggingEvent:
        """Record an event; by default a new one."""
        event = event if event is not None else LaggingEvent()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaggingStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class LaggingEvent:
    """Event: a place in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._mark: Any = None

    def record(self, stream: Optional[LaggingStream] = None) -> None:
        """Record the place after the stream's work so far."""
        self._mark = _native.mark(_native.current_stream() if stream is None else stream.stream_id)

    def wait(self, stream: Optional[LaggingStream] = None) -> None:
        """Order the stream's later work after this event; an event that was not recorded has passed."""
        if self._mark is not None:
            _native.follow(_native.current_stream() if stream is None else stream.stream_id, self._mark)

    def query(self) -> bool:
        """Return True: a query makes the work run."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait for the event."""
        if self._mark is not None:
            self._mark.wait()

    def elapsed_time(self, end: LaggingEvent) -> float:
        """Return the milliseconds to a later event.

        Raises:
            RuntimeError: one of them was not recorded, has no timing, or has not passed yet.
        """
        for event in (self, end):
            if event._mark is None or not event._timed:
                raise RuntimeError("Both events must be created with enable_timing=True and recorded")
            if not event._mark.passed:
                raise RuntimeError("CUDA error: device not ready")
        return float(end._mark.seconds - self._mark.seconds) * 1e3


class StreamContext:
    """Context of ``with torch.cuda.stream(one):`` in this thread; None changes nothing."""

    def __init__(self, stream: Optional[LaggingStream]) -> None:
        self.stream = stream
        self._before = 0

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before = _native.use_stream(self.stream.stream_id)

    def __exit__(self, *_: Any) -> None:
        if self.stream is not None:
            _native.use_stream(self._before)


def start_lagging(native: Any) -> None:
    """Make the calls of the device lag if :data:`LAG_VARIABLE` is set; call it before the first tensor.

    Raises:
        BadInput: the variable is no number.
    """
    global _native
    text = os.environ.get(LAG_VARIABLE, "") or "0"
    if not text.isdecimal():
        raise BadInput(
            f"{LAG_VARIABLE}={text}", remedy="set 1, or another number for a random order; 0 switches it off"
        )
    if int(text):
        native.lag(0 if text == "1" else int(text) % (1 << 31))
        _native = native


def is_lagging() -> bool:
    """Return True if the calls of the device lag."""
    return _native is not None


def cuda_functions() -> Dict[str, Callable[..., Any]]:
    """Return functions that replace those of ``torch.cuda``."""
    return {
        "current_stream": lambda device=None: LaggingStream(number=_native.current_stream()),
        "default_stream": lambda device=None: LaggingStream(number=0),
        "stream": StreamContext,
        "set_stream": lambda stream: _native.use_stream(stream.stream_id),
    }
