"""Clocks of computing: this thread's, or the GPU's events."""

from __future__ import annotations

import contextlib
import time
from typing import Any, ContextManager, Protocol

import torch


class Clock(Protocol):
    """Marks and the seconds between them."""

    def timed_stream(self) -> ContextManager[Any]:
        """Context in which the timed calls are made."""

    def record_mark(self) -> Any:
        """Records a mark behind the calls made so far."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another; waits until both are past."""


class HostClock:
    """Clock of a CPU, which has computed when a call returns.

    With one torch thread this is the thread's processor time, else wall time.
    """

    def timed_stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def record_mark(self) -> float:
        return busy_clock()

    def seconds_between(self, start: float, end: float) -> float:
        return end - start


class DeviceClock:
    """CUDA events in a stream of its own.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def timed_stream(self) -> ContextManager[Any]:
        context: ContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def record_mark(self) -> Any:
        return self._stream.record_event(torch.cuda.Event(enable_timing=True))

    def seconds_between(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()


def busy_clock() -> float:
    """Seconds of work that an emulated slowdown multiplies, without waits for the interpreter or for a core."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()
