"""What computing takes, by the clock of who computes: this thread's, or the GPU's own events."""

from __future__ import annotations

import contextlib
import time
from typing import Any, ContextManager, Protocol

import torch


class Clock(Protocol):
    """Marks and the seconds between them."""

    def within(self) -> ContextManager[Any]:
        """What is timed is called inside."""

    def mark(self) -> Any:
        """Now, behind what has been called so far."""

    def seconds(self, began: Any, ended: Any) -> float:
        """From one mark to another; waits until that is past."""


class HostClock:
    """Of a CPU, which has computed when a call returns.

    Of one thread it is the time that it computed: not what it waited for the interpreter or for a core.
    """

    def within(self) -> ContextManager[Any]:
        """See :class:`Clock`."""
        return contextlib.nullcontext()

    def mark(self) -> float:
        """See :class:`Clock`."""
        return busy_clock()

    def seconds(self, began: float, ended: float) -> float:
        """See :class:`Clock`."""
        return ended - began


class DeviceClock:
    """CUDA events in a stream of its own.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def within(self) -> ContextManager[Any]:
        """See :class:`Clock`."""
        context: ContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def mark(self) -> Any:
        """See :class:`Clock`."""
        return self._stream.record_event(torch.cuda.Event(enable_timing=True))

    def seconds(self, began: Any, ended: Any) -> float:
        """See :class:`Clock`."""
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()


def busy_clock() -> float:
    """Seconds of work that an emulated slowdown multiplies: not the waiting for the interpreter or for a core."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()
