"""Descriptors that threads poll: connections that ZeroMQ owns, with their bytes as the kernel counts them; wake-ups."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, Optional, Tuple

# struct tcp_info (linux/tcp.h): tcpi_unacked at 24, tcpi_rtt and tcpi_rttvar (us) at 68, u64 tcpi_bytes_acked and
# tcpi_bytes_received at 120 since Linux 4.1, tcpi_segs_in at 140 since 4.2
_LEAST_BYTES, _INFO_BYTES = 136, 144


@dataclass(frozen=True)
class Counters:
    """What the kernel counts since the connection began.

    Attributes:
        acked: bytes that the far end has acknowledged.
        received: bytes received in order.
        segments: segments received, empty and repeated ones included; 0 where the kernel does not count.
        unacked: segments sent and not acknowledged yet.
        rtt_s, rtt_deviation_s: smoothed round trip between the kernels, and its mean deviation (seconds).
    """

    acked: int
    received: int
    segments: int = 0
    unacked: int = 0
    rtt_s: float = 0.0
    rtt_deviation_s: float = 0.0


class Connection:
    """A borrowed connection, known by descriptor *and* inode.

    The owner may close the descriptor at any moment and the kernel hands its number out again. So each look works on a
    duplicate whose inode is compared first; no look ever touches a stranger's socket, and none keeps ours open.
    """

    def __init__(self, descriptor: int) -> None:
        """Raises OSError if the descriptor is not open any more."""
        self.descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino
        self._held: Optional[socket.socket] = None

    def hold(self) -> None:
        """Keep the connection's counters readable after its owner closes it, until :meth:`release`."""
        self._held = self._duplicate()

    def release(self) -> None:
        """End :meth:`hold`: from now on the owner's close is the end."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def counters(self) -> Optional[Counters]:
        """None if the connection is gone or the kernel does not count."""
        duplicate = self._held.dup() if self._held is not None else self._duplicate()
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
        unacked, rtt_us, deviation_us, segments = struct.unpack_from("=24xI40xII64xI", info)
        return Counters(acked, received, segments, unacked, rtt_us / 1e6, deviation_us / 1e6)

    def ends(self) -> Optional[Tuple[int, Any, Any]]:
        """Address family, this end's socket address and the far end's; None if the connection is gone."""
        duplicate = self._held.dup() if self._held is not None else self._duplicate()
        if duplicate is None:
            return None
        with duplicate:
            try:
                return int(duplicate.family), duplicate.getsockname(), duplicate.getpeername()
            except OSError:
                return None

    def shutdown(self) -> bool:
        """Break the connection; its owner notices by itself. False if it was gone already."""
        duplicate = self._duplicate()
        if duplicate is None:
            return False
        with duplicate:
            try:
                duplicate.shutdown(socket.SHUT_RDWR)
            except OSError:
                return False
        return True

    def _duplicate(self) -> Optional[socket.socket]:
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
    """A pipe whose reading end is polled. Wakes between two :meth:`clear` calls merge into one."""

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

    def clear(self) -> None:
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
