"""Descriptors that threads poll: connections that ZeroMQ owns, with their bytes as the kernel counts them; wake-ups."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

# struct tcp_info (linux/tcp.h): tcpi_snd_mss at 16, tcpi_unacked at 24, tcpi_rtt and tcpi_rttvar (us) at 68,
# tcpi_total_retrans at 100, u64 tcpi_bytes_acked and tcpi_bytes_received at 120 since Linux 4.1, tcpi_segs_out and
# tcpi_segs_in at 136 since 4.2, tcpi_min_rtt at 148, tcpi_delivered at 192 since 4.18
_LEAST_BYTES, _INFO_BYTES = 136, 196
_INFO = struct.Struct("=16xI4xI40xII24xI32xII4xI40xI")
#: A connection loses segments at random when it has sent some again in so many episodes, so far apart (seconds), this
#: share of all (``bench levels --congestion reno``: frames of packet_loss_1 and packet_loss_3).
EPISODES, EPISODE_S, LOSS_SHARE = 4, 0.5, 0.003
#: BBR takes the shortest round trip for the usual one: not where that is less than this share of it
#: (``bench levels``: frames of packet_jitter_20).
STEADY_SHARE = 0.25
PACED = b"bbr"


@dataclass(frozen=True)
class Counters:
    """Counters of the kernel since the connection began.

    Attributes:
        acked: bytes that the far end has acknowledged.
        received: bytes received in order.
        segments: segments received, empty and repeated ones included; 0 where the kernel does not count.
        unacked: segments sent and not acknowledged yet.
        rtt_s, rtt_deviation_s: smoothed round trip between the kernels, and its mean deviation (seconds).
        delivered: bytes of segments that have reached the far end, those behind a hole included.
    """

    acked: int
    received: int
    segments: int = 0
    unacked: int = 0
    rtt_s: float = 0.0
    rtt_deviation_s: float = 0.0
    delivered: int = 0


class Deliveries:
    """Bytes that have reached the far end, look by look, while an upload is under way.

    Their pace is the link's whatever the delay is, and whenever the threads of the two ends have looked.
    """

    #: A run of looks says something from so many bytes and seconds on; a longer gap than this ends it: TCP waited, not
    #: the link (``bench levels``: error).
    LEAST_BYTES, LEAST_S, GAP_S = 16 << 10, 3e-3, 0.01
    #: Looks that are stored.
    MOST = 1000

    def __init__(self) -> None:
        self._samples: List[Tuple[float, int, int]] = []

    def add_sample(self, now: float, remaining: int, delivered: int) -> None:
        """Add the bytes that were not acknowledged yet at ``now`` (seconds), and those delivered in all."""
        if remaining or (self._samples and self._samples[-1][1]):
            self._samples.append((now, remaining, delivered))
            del self._samples[: -self.MOST]

    def take_runs(self, end_s: float) -> Tuple[float, float, float]:
        """Remove the looks up to ``end_s``; returns the bytes and seconds of their runs, and when nothing remained.

        inf stands for: something did at each look.
        """
        samples = [sample for sample in self._samples if sample[0] <= end_s]
        del self._samples[: len(samples)]
        samples = list(itertools.dropwhile(lambda look: not look[1], samples))
        runs: List[List[Tuple[float, int]]] = [[]]
        for (before_s, _, before), (now, remaining, delivered) in zip(samples, samples[1:]):
            if not remaining or now - before_s > self.GAP_S:
                runs.append([])
            elif runs[-1] and now - runs[-1][-1][0] > self.GAP_S:
                runs[-1].pop()  # it had stopped by then
                runs.append([])
            elif delivered > before:
                runs[-1].append((now, delivered))
        spans = [(run[-1][1] - run[0][1], run[-1][0] - run[0][0]) for run in runs if run]
        spans = [span for span in spans if span[0] >= self.LEAST_BYTES and span[1] >= self.LEAST_S]
        done_s = next((now for now, remaining, _ in samples if not remaining), math.inf)
        return float(sum(size for size, _ in spans)), sum(seconds for _, seconds in spans), done_s


class Connection:
    """A borrowed connection, known by descriptor *and* inode.

    The owner may close the descriptor at any moment and the kernel hands its number out again. So each look works on a
    duplicate whose inode is compared first; no look ever touches a stranger's socket, and none keeps ours open.
    """

    def __init__(self, descriptor: int) -> None:
        """Raises OSError if the descriptor is not open any more."""
        self.descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino
        self._duplicated: Optional[socket.socket] = None
        self._episode_s = -math.inf
        self._episodes = self._retransmitted = 0

    def hold_counters(self) -> None:
        """Keep the connection's counters readable after its owner closes it, until :meth:`release_counters`."""
        self._duplicated = self._duplicate_socket()

    def release_counters(self) -> None:
        """End :meth:`hold_counters`: from now on the owner's close is the end."""
        if self._duplicated is not None:
            self._duplicated.close()
            self._duplicated = None

    def read_counters(self) -> Optional[Counters]:
        """None if the connection is gone or the kernel does not count."""
        duplicate = self._duplicated.dup() if self._duplicated is not None else self._duplicate_socket()
        if duplicate is None:
            return None
        with duplicate:
            try:
                info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            except OSError:
                return None
        if len(info) < _LEAST_BYTES:
            return None
        acked, received = struct.unpack_from("=QQ", info, 120)
        if len(info) < _INFO_BYTES:
            return Counters(acked, received)
        size, unacked, rtt_us, deviation_us, resent, sent, segments, shortest_us, delivered = _INFO.unpack_from(info)
        if resent > self._retransmitted:
            self.note_losses(time.monotonic(), resent, sent, shortest_us >= STEADY_SHARE * rtt_us)
        return Counters(acked, received, segments, unacked, rtt_us / 1e6, deviation_us / 1e6, size * delivered)

    def note_losses(self, now: float, retransmitted: int, sent: int, steady: bool) -> None:
        """Have the kernel send by what arrives (BBR), once segments are lost at random: other ways slow down at each.

        Where this process may not use it, nothing changes.

        Args:
            now: seconds, monotonic.
            retransmitted: segments sent again so far.
            sent: segments sent so far.
            steady: whether round trips are alike.
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


class Wakeup:
    """A pipe whose reading end is polled. Wakes between two :meth:`clear_wakeups` calls merge into one."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._pending = False

    def wake(self) -> None:
        """Make :attr:`descriptor` readable."""
        if self._pending:
            return
        self._pending = True
        with contextlib.suppress(BlockingIOError):  # full: it is readable already
            os.write(self._write, b"w")

    def clear_wakeups(self) -> None:
        """Call before looking at the work, so that work added during the look wakes again."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.descriptor, 64)) == 64:
                pass
        # after the read: the other way round, a wake in between would be eaten and every later one be taken for merged
        self._pending = False

    def close(self) -> None:
        """Close both ends; no wake may follow."""
        os.close(self.descriptor)
        os.close(self._write)
