"""Measures how long the threads that move bytes waited for a processor, so that estimates of the link leave that out.

Threads time a transfer. On a busy machine they run late, and measure more than the link took. Linux counts for every
thread how long it was runnable without a processor (``schedstat``). For the machine it counts how long a hypervisor
gave its processors to others (steal). The server sends its counts with its responses.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import threading
from bisect import bisect_left
from typing import Any, Dict, List, Optional, Tuple

#: libzmq's threads that read and write the sockets.
MOVERS = "ZMQbg/IO"
#: Least seconds between two readings of the kernel's counts; a reading takes some 50 us.
SAMPLE_S = 4e-3
#: Seconds for which samples are retained.
HISTORY_S = 6.0
#: Steal time in the machine's line of ``/proc/stat``, in steps of 10 ms.
_STEAL = re.compile(r"cpu(?:\s+\d+){7}\s+(\d+)\b")
#: Key of a message's body for the waits of its sender so far: [seconds, timeslices].
WAITED = "_waited"
#: From this delay of a wake-up on (seconds) a machine is called busy.
BUSY_S = 5e-3


class Waits:
    """Time that one end has waited for its processors, sample by sample.

    One thread at a time, but for :attr:`typical_s`.
    """

    def __init__(self) -> None:
        self._samples: List[Tuple[float, float, int]] = []
        self._mean = (0.0, 0.0)  # recent seconds and timeslices

    def add_sample(self, now: float, seconds: float, timeslices: int) -> None:
        """Add the totals at ``now``: seconds that its threads have waited, and timeslices that they have received."""
        samples = self._samples
        if samples:
            since_s, before_s, before = samples[-1]
            if now < since_s:
                return
            if seconds < before_s or timeslices < before:
                samples.clear()  # another process counts from the beginning
            else:
                fade = math.exp((since_s - now) / 3.0)  # seconds over which the mean is taken
                mean_s, mean = self._mean
                self._mean = (fade * mean_s + seconds - before_s, fade * mean + timeslices - before)
        if samples and now - samples[0][0] > 2 * HISTORY_S:
            del samples[: bisect_left(samples, (now - HISTORY_S, 0.0, 0))]
        samples.append((now, seconds, timeslices))

    def take_reported(self, now: float, body: Dict[str, Any]) -> None:
        """Remove the totals from the body of a peer's message and add them; implausible ones are ignored."""
        waited = body.pop(WAITED, None)
        if not isinstance(waited, list) or [type(item) for item in waited] != [float, int] or not math.isfinite(now):
            return
        if 0 <= waited[0] < 1e9 and 0 <= waited[1] < 1 << 53:
            self.add_sample(now, waited[0], waited[1])

    def is_due(self, now: float) -> bool:
        """Tell whether the latest sample is older than :data:`SAMPLE_S`."""
        return not self._samples or now - self._samples[-1][0] >= SAMPLE_S

    def waited_between(self, begin: float, end: float) -> float:
        """Return the seconds waited from ``begin`` to ``end``, at most, between the samples around them."""
        samples = self._samples
        if not samples or end <= begin:
            return 0.0
        first = max(0, bisect_left(samples, (begin, math.inf, 0)) - 1)
        last = min(len(samples) - 1, bisect_left(samples, (end, 0.0, 0)))
        return max(0.0, samples[last][1] - samples[first][1])

    @property
    def typical_s(self) -> float:
        """Recent mean wait for a timeslice (seconds); 0 before the second sample."""
        seconds, timeslices = self._mean
        return seconds / timeslices if timeslices > 0 else 0.0


class ThreadCounts:
    """Counts of the kernel: for the calling thread, for libzmq's threads of this process, and the machine's steal time.

    Args:
        proc: mount point of procfs.
        cores: processors of the machine.
    """

    def __init__(self, proc: pathlib.Path = pathlib.Path("/proc"), cores: Optional[int] = None) -> None:
        self._tasks, self._machine = f"{proc}/self/task", f"{proc}/stat"
        self._cores = cores or os.cpu_count() or 1
        self._threads: Dict[int, Tuple[int, int]] = {}
        self._own_thread = 0
        self._steal: Optional[int] = None
        self._steal_looked_s = self._reported_s = -math.inf
        self._seconds, self._timeslices = 0.0, 0

    def find_threads(self) -> None:
        """List the threads that count; call it after the first socket, with which libzmq starts its threads."""
        self._own_thread = threading.get_native_id()
        threads = {self._own_thread}
        with contextlib.suppress(OSError):
            for name in os.listdir(self._tasks):
                if (_read_text(f"{self._tasks}/{name}/comm") or "").startswith(MOVERS):
                    threads.add(int(name))
        self._threads = {thread: count for thread, count in self._threads.items() if thread in threads}
        for thread in threads - set(self._threads):
            count = self._read_counts(thread)
            if count is not None:
                self._threads[thread] = count

    def count_total(self, now: float) -> Tuple[float, int]:
        """Return seconds waited and timeslices received since the first call; zeros where the kernel does not count."""
        for thread, before in self._threads.items():
            count = self._read_counts(thread)
            if count is not None:
                self._seconds += max(0, count[0] - before[0]) / 1e9
                self._timeslices += max(0, count[1] - before[1])
                self._threads[thread] = count
        if self._threads and now - self._steal_looked_s >= 0.1:  # the kernel counts in steps of 10 ms
            self._steal_looked_s = now
            stolen = _STEAL.match(_read_text(self._machine) or "")
            if stolen:
                steal = int(stolen.group(1))
                if self._steal is not None:
                    self._seconds += max(0, steal - self._steal) / 100 / self._cores
                self._steal = steal
        return self._seconds, self._timeslices

    def to_body(self, now: float) -> Dict[str, Any]:
        """Return a message's report of them (see :meth:`Waits.take_reported`), no older than :data:`SAMPLE_S`."""
        if now - self._reported_s >= SAMPLE_S:
            self._reported_s = now
            self.count_total(now)
        return {WAITED: [self._seconds, self._timeslices]}

    def is_stuck(self) -> bool:
        """Tell whether one of libzmq's threads is runnable now and waits for a processor."""
        for thread in self._threads:
            if thread != self._own_thread:
                fields = (_read_text(f"{self._tasks}/{thread}/stat") or "").rpartition(")")[2].split(None, 1)
                if fields and fields[0] == "R":
                    return True
        return False

    def _read_counts(self, thread: int) -> Optional[Tuple[int, int]]:
        """Return nanoseconds waited, and timeslices received; None: the thread has ended, or is not counted."""
        try:
            _, waited_ns, timeslices = map(int, (_read_text(f"{self._tasks}/{thread}/schedstat") or "").split())
        except ValueError:
            return None
        return waited_ns, timeslices


class BothEnds:
    """Waits of both ends of a link for their processors.

    Attributes:
        far: waits of the other end, from its messages.
    """

    def __init__(self) -> None:
        self._near, self.far, self._counts = Waits(), Waits(), ThreadCounts()

    def find_threads(self) -> None:
        """List the threads that move this end's bytes; the caller is one of them."""
        self._counts.find_threads()

    def take_sample(self, now: float) -> bool:
        """Take a sample of this end's waits if one is due; return whether it was."""
        due = self._near.is_due(now)
        if due:
            self._near.add_sample(now, *self._counts.count_total(now))
        return due

    def waited_between(self, begin: float, end: float) -> float:
        """Return an upper bound of the seconds that both ends waited from ``begin`` to ``end``."""
        return self._near.waited_between(begin, end) + self.far.waited_between(begin, end)

    def under_way(self, begin: float, end: float) -> float:
        """Return :meth:`waited_between` for a transfer in flight: all of the time if a thread of this end waits now."""
        return end - begin if self._counts.is_stuck() else self.waited_between(begin, end)

    @property
    def typical_s(self) -> Tuple[float, float]:
        """Recent mean waits for a timeslice on this end and on the other (seconds); 0 if not measured."""
        return self._near.typical_s, self.far.typical_s


def _read_text(path: str) -> Optional[str]:
    """Return the first 512 bytes of a file; None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 512).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def describe_waits(robot_s: float, server_s: float) -> str:
    """Describe the load of both ends' processors by the mean waits for a timeslice (seconds)."""
    late = [(name, delay_s) for name, delay_s in (("robot", robot_s), ("server", server_s)) if delay_s >= BUSY_S]
    if not late:
        return "not busy"
    delays = " and ".join(f"{delay_s * 1e3:.0f} ms on the {name}" for name, delay_s in late)
    return f"busy: scheduling delay {delays}; it is told apart from the link, forecasts scatter more"
