"""Descriptors that threads poll: TCP connections that ZeroMQ owns, with the kernel's counters of them, and wake-ups."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Deque, List, NamedTuple, Optional, Tuple

# struct tcp_info (linux/tcp.h): tcpi_snd_mss and tcpi_rcv_mss at 16, tcpi_unacked at 24, tcpi_rtt and tcpi_rttvar (us)
# at 68, tcpi_total_retrans at 100, u64 tcpi_bytes_acked and tcpi_bytes_received at 120 since Linux 4.1, tcpi_segs_out
# and tcpi_segs_in at 136 since 4.2, tcpi_min_rtt and tcpi_data_segs_in at 148, tcpi_delivered at 192 since 4.18
_INFO = struct.Struct("=16xIII40xII24xI32xII4xII36xI")
#: Seconds between two samples of an upload in flight, and of arriving data (``bench levels``: error).
UPLOAD_SAMPLE_S, ARRIVAL_SAMPLE_S = 4e-3, 1e-3
#: When losses count as random: in so many episodes of retransmissions, so many seconds apart, at least this share of
#: all segments was sent again (``bench levels --congestion reno``: frames of packet_loss_1 and packet_loss_3).
EPISODES, EPISODE_S, LOSS_SHARE = 4, 0.5, 0.003
#: BBR assumes that the shortest round trip is the usual one. It is not used where the shortest is less than this share
#: of the smoothed one (``bench levels``: frames of packet_jitter_20).
STEADY_SHARE = 0.25
#: Congestion control for random losses, and before them; sockets take these names.
PACED, UNPACED = b"bbr", b"reno"


@dataclass(frozen=True)
class Counters:
    """Counters of the kernel since the connection began.

    Attributes:
        acked: bytes that the far end has acknowledged.
        received: bytes received in order.
        segments: segments received, empty and repeated ones included; 0 where the kernel does not count.
        unacked: segments sent and not acknowledged yet.
        rtt_s, rtt_deviation_s: smoothed round trip between the kernels, and its mean deviation (seconds).
        delivered: bytes that have reached the far end, those behind a lost segment included; segments times their size.
        arrived: the same of this end.
    """

    acked: int
    received: int
    segments: int = 0
    unacked: int = 0
    rtt_s: float = 0.0
    rtt_deviation_s: float = 0.0
    delivered: int = 0
    arrived: int = 0


class Runs(NamedTuple):
    """Bytes that were delivered one after the other.

    Attributes:
        size, seconds: bytes, and for how long they were delivered.
        paused_s: seconds of it in which none was; TCP may have sent none.
        done_s: time of the first sample without remaining bytes; inf: there is none.
    """

    size: float
    seconds: float
    paused_s: float
    done_s: float


class Deliveries:
    """Samples of the bytes that have reached the receiving end while a transfer is under way.

    Their rate is the link's. It depends neither on the delay nor on when the threads of the two ends ran.

    Args:
        sample_s: seconds between two samples. A gap of :data:`GAP` times as many ends a run: in a gap TCP sent nothing,
            whatever the link could carry (``bench levels``: error).
    """

    #: A run of samples counts from so many bytes and seconds on.
    LEAST_BYTES, LEAST_S, GAP = 16 << 10, 2e-3, 2.5
    #: So many bytes are more than the segments of pings, which count as full ones.
    STEP_BYTES = 4 << 10
    #: Samples that are stored at most, and rates of which the scatter is measured.
    MOST, SCATTERED = 1000, 9

    def __init__(self, sample_s: float) -> None:
        self._samples: List[Tuple[float, int, int]] = []
        self._gap_s = self.GAP * sample_s
        self._logs: Deque[float] = deque(maxlen=self.SCATTERED)

    @property
    def scatter(self) -> float:
        """Median difference of successive rates' logarithms; inf before there are some."""
        logs = list(self._logs)
        steps = sorted(abs(after - before) for before, after in zip(logs, logs[1:]))
        return steps[len(steps) // 2] if len(steps) >= 3 else math.inf

    def add_sample(self, now: float, remaining: int, delivered: int) -> None:
        """Add a sample while a transfer is under way, and the first one after it.

        Args:
            now: seconds, monotonic.
            remaining: bytes that are not acknowledged yet, or whether some are awaited.
            delivered: bytes delivered since the connection began.
        """
        if remaining or (self._samples and self._samples[-1][1]):
            self._samples.append((now, remaining, delivered))
            del self._samples[: -self.MOST]

    def take_runs(self, end_s: float) -> Runs:
        """Remove the samples up to ``end_s``, and sum up their runs.

        A run ends at a gap. It consists of the samples at which :data:`STEP_BYTES` more had arrived than before.
        """
        samples = [sample for sample in self._samples if sample[0] <= end_s]
        del self._samples[: len(samples)]
        samples = list(itertools.dropwhile(lambda sample: not sample[1], samples))
        runs: List[List[Tuple[float, int, float]]] = [[]]
        since_s, counted = samples[0][::2] if samples else (0.0, 0)
        paused_s = 0.0
        for (before_s, _, before), (now, remaining, delivered) in zip(samples, samples[1:]):
            more = delivered - counted >= self.STEP_BYTES
            paused_s += now - before_s if delivered == before else 0.0
            if not remaining or now - before_s > self._gap_s:
                runs.append([])
            elif runs[-1] and now - runs[-1][-1][0] > self._gap_s:
                runs[-1].pop()  # the gap had begun before that sample
                runs.append([])
            elif more:
                runs[-1].append((now, delivered, paused_s))
            if more or now - since_s > self._gap_s:
                since_s, counted = now, delivered
        ends = [(run[0], run[-1]) for run in runs if run]
        spans = [
            (last[1] - first[1], last[0] - first[0], last[2] - first[2])
            for first, last in ends
            if last[1] - first[1] >= self.LEAST_BYTES and last[0] - first[0] >= self.LEAST_S
        ]
        done_s = next((now for now, remaining, _ in samples if not remaining), math.inf)
        size, seconds, paused_s = (float(sum(each)) for each in zip(*spans)) if spans else (0.0, 0.0, 0.0)
        if size:
            self._logs.append(math.log(size / seconds))
        return Runs(size, seconds, paused_s, done_s)


class Connection:
    """A TCP connection that ZeroMQ owns, identified by descriptor *and* inode.

    The owner may close the descriptor at any time, and the kernel may then give its number to another file. So each
    method works on a duplicate, after a check of its inode. Only :meth:`hold_counters` keeps a duplicate open.
    """

    def __init__(self, descriptor: int) -> None:
        """Raises OSError if the descriptor is not open."""
        self.descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino
        self._duplicated: Optional[socket.socket] = None
        self._episode_s = -math.inf
        self._episodes = self._retransmitted = 0

    def hold_counters(self) -> None:
        """Keep the connection's counters readable after its owner closes it, until :meth:`release_counters`."""
        self._duplicated = self._duplicate_socket()

    def release_counters(self) -> None:
        """End :meth:`hold_counters`: the connection closes when its owner closes it."""
        if self._duplicated is not None:
            self._duplicated.close()
            self._duplicated = None

    def read_counters(self) -> Optional[Counters]:
        """Return the kernel's counters; None if the connection is gone or the kernel has none."""
        duplicate = self._duplicated.dup() if self._duplicated is not None else self._duplicate_socket()
        if duplicate is None:
            return None
        with duplicate:
            try:
                info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            except OSError:
                return None
        if len(info) < 136:  # bytes that acked and received need
            return None
        acked, received = struct.unpack_from("=QQ", info, 120)
        if len(info) < _INFO.size:
            return Counters(acked, received)
        (size, far_size, unacked, rtt_us, deviation_us, resent, sent, segments, shortest_us, data_segments, delivered
         ) = _INFO.unpack_from(info)  # fmt: skip
        if resent > self._retransmitted:
            self.note_losses(time.monotonic(), resent, sent, shortest_us >= STEADY_SHARE * rtt_us)
        times = rtt_us / 1e6, deviation_us / 1e6
        return Counters(acked, received, segments, unacked, *times, size * delivered, far_size * data_segments)

    def avoid_pacing(self) -> None:
        """Replace BBR where it is the kernel's choice, until losses call for it (:meth:`note_losses`).

        It paces a frame by how fast earlier ones arrived, at most 2.9 times a frame per round trip, and every ten
        seconds it sends next to nothing (``bench levels``: frames and error of packet_70).
        """
        duplicate = self._duplicate_socket()
        if duplicate is not None:
            with duplicate, contextlib.suppress(OSError):
                if duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(PACED):
                    duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)

    def note_losses(self, now: float, retransmitted: int, sent: int, steady: bool) -> None:
        """Switch to BBR once segments are lost at random: other congestion controls slow down at each loss.

        Nothing changes where this process may not use BBR.

        Args:
            now: seconds, monotonic.
            retransmitted: segments sent again so far.
            sent: segments sent so far.
            steady: whether round trips vary little (:data:`STEADY_SHARE`).
        """
        self._retransmitted = retransmitted
        if now - self._episode_s < EPISODE_S:
            return
        self._episode_s, self._episodes = now, self._episodes + 1
        if self._episodes < EPISODES or not steady or retransmitted < LOSS_SHARE * sent:
            return
        duplicate = self._duplicate_socket()
        if duplicate is not None:
            with duplicate, contextlib.suppress(OSError):
                duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, PACED)

    def read_ends(self) -> Optional[Tuple[int, Any, Any]]:
        """Address family, this end's socket address and the far end's; None if the connection is gone."""
        duplicate = self._duplicated.dup() if self._duplicated is not None else self._duplicate_socket()
        if duplicate is None:
            return None
        with duplicate:
            try:
                return int(duplicate.family), duplicate.getsockname(), duplicate.getpeername()
            except OSError:
                return None

    def break_connection(self) -> bool:
        """Break the connection; its owner notices by itself. False if it was gone already."""
        duplicate = self._duplicate_socket()
        if duplicate is None:
            return False
        with duplicate:
            try:
                duplicate.shutdown(socket.SHUT_RDWR)
            except OSError:
                return False
        return True

    def _duplicate_socket(self) -> Optional[socket.socket]:
        try:
            copy = os.dup(self.descriptor)
        except OSError:
            return None
        try:
            if os.fstat(copy).st_ino == self._inode:
                return socket.socket(fileno=copy)
        except OSError:
            pass
        os.close(copy)
        return None


class ArrivalWatch:
    """Times at which data arrive on a connection, by the kernel's counters. Used by one thread.

    Attributes:
        descriptor: readable once data have arrived; -1 before :meth:`watch_connection`.
        arrived: bytes so far.
    """

    def __init__(self) -> None:
        self.descriptor, self.arrived = -1, 0
        self._arrived_s = -math.inf
        self._epoll: Optional[select.epoll] = None

    def watch_connection(self, descriptor: int) -> None:
        """Start watching a connection; closing its descriptor ends the watch."""
        self._epoll = select.epoll()
        self.descriptor = self._epoll.fileno()
        # edge-triggered: libzmq reads the data before this is polled, and the socket is nearly always writable
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def wake_at_data(self, poller: Any, awaited: bool) -> None:
        """Register with ``poller`` for the first data of an awaited answer; later data are sampled (:meth:`due_s`)."""
        if self._epoll is not None:
            waits = awaited and math.isinf(self.due_s(time.monotonic()))
            if waits:
                self._epoll.poll(0)
            poller.register(self.descriptor, select.POLLIN if waits else 0)

    def count_arrived(self, now: float, counters: Counters) -> None:
        """Record the bytes that had arrived ``now`` (monotonic seconds)."""
        if counters.arrived != self.arrived:
            self.arrived, self._arrived_s = counters.arrived, now

    def due_s(self, now: float) -> float:
        """Return when the next sample is due (monotonic seconds); inf if no data have arrived recently."""
        return now + ARRIVAL_SAMPLE_S if now - self._arrived_s < Deliveries.GAP * ARRIVAL_SAMPLE_S else math.inf

    def close(self) -> None:
        """Stop watching."""
        if self._epoll is not None:
            self._epoll.close()


class Wakeup:
    """A pipe whose reading end is polled. Wakes between two :meth:`clear_wakeups` calls merge into one."""

    def __init__(self) -> None:
        self._reader, self._writer = (os.fdopen(end, mode, 0) for end, mode in zip(os.pipe(), ("rb", "wb")))
        self.descriptor = self._reader.fileno()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._writer.fileno(), False)
        self._pending = False

    def wake_thread(self) -> None:
        """Make :attr:`descriptor` readable."""
        if self._pending:
            return
        self._pending = True
        self._writer.write(b"w")  # none is written if it is full: it is readable already

    def clear_wakeups(self) -> None:
        """Empty the pipe. Call it before checking for work, so that work added meanwhile wakes the thread again."""
        while len(self._reader.read(64) or b"") == 64:
            pass
        # after the read: otherwise the byte of a wake in between would be read, and later wakes would write none
        self._pending = False

    def close(self) -> None:
        """Close both ends; no wake may follow."""
        self._reader.close()
        self._writer.close()

    __del__ = close
