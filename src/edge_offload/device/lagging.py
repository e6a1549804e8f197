"""Streams and events of a device whose work lags: a test mode, in which a missing copy, event or wait is noticed.

A GPU does later what a program asks of it; this process computes the virtual device's calls as they are made, so that a
program that forgot to wait is right all the same. With :data:`CHOICE` set, ``edge-offload exec --mode local`` does
what a GPU may do later as late as it may (native/cpp/streams.h), and whoever does not wait finds poison.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional

import torch

from edge_offload.errors import BadInput

#: Environment variable: 1 has calls lag as long as they may; a greater number is the seed of orders at random.
CHOICE = "EDGE_OFFLOAD_ASYNC"
_native: Any = None


class LaggingStream:
    """A stream with a queue of its own; the default one is number 0."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: Optional[int] = None, **_: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.device_index = 0
        self.priority = priority
        self.stream_id = self.cuda_stream = _native.new_stream() if number is None else number

    def synchronize(self) -> None:
        """Wait for what was issued here."""
        _native.wait_for_stream(self.stream_id)

    def query(self) -> bool:
        """Returns True: work is done as soon as somebody asks, and not before."""
        self.synchronize()
        return True

    def wait_event(self, event: LaggingEvent) -> None:
        """Orders what is issued from now on behind the event."""
        event.wait(self)

    def wait_stream(self, stream: LaggingStream) -> None:
        """Orders what is issued from now on behind the other stream's work so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Optional[LaggingEvent] = None) -> LaggingEvent:
        """Records an event, a new one if none is given."""
        event = event if event is not None else LaggingEvent()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaggingStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class LaggingEvent:
    """A place in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._mark: Any = None

    def record(self, stream: Optional[LaggingStream] = None) -> None:
        """Records a place behind the stream's work so far."""
        self._mark = _native.mark(_native.current_stream() if stream is None else stream.stream_id)

    def wait(self, stream: Optional[LaggingStream] = None) -> None:
        """Orders what the stream gets from now on behind this event; one that was not recorded is past."""
        if self._mark is not None:
            _native.follow(_native.current_stream() if stream is None else stream.stream_id, self._mark)

    def query(self) -> bool:
        """Returns True: work is done as soon as somebody asks, and not before."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Wait for it."""
        if self._mark is not None:
            self._mark.wait()

    def elapsed_time(self, end: LaggingEvent) -> float:
        """Milliseconds to a later event.

        Raises:
            RuntimeError: one of them was not recorded, has no time, or is not past yet.
        """
        for event in (self, end):
            if event._mark is None or not event._timed:
                raise RuntimeError("Both events must be created with enable_timing=True and recorded")
            if not event._mark.passed:
                raise RuntimeError("CUDA error: device not ready")
        return float(end._mark.seconds - self._mark.seconds) * 1e3


class StreamContext:
    """``with torch.cuda.stream(one):`` in this thread; None changes nothing."""

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
    """Have the calls of the device lag if the environment says so; before anything is on it.

    Raises:
        BadInput: it says something else.
    """
    global _native
    text = os.environ.get(CHOICE, "") or "0"
    if not text.isdecimal():
        raise BadInput(f"{CHOICE}={text}", remedy="1, or another number for an order at random; 0 for none of it")
    if int(text):
        native.lag(0 if text == "1" else int(text) % (1 << 31))
        _native = native


def is_lagging() -> bool:
    """True if the calls of the device lag."""
    return _native is not None


def cuda_functions() -> Dict[str, Callable[..., Any]]:
    """Functions that replace those of ``torch.cuda``."""
    return {
        "current_stream": lambda device=None: LaggingStream(number=_native.current_stream()),
        "default_stream": lambda device=None: LaggingStream(number=0),
        "stream": StreamContext,
        "set_stream": lambda stream: _native.use_stream(stream.stream_id),
    }
