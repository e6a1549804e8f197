"""Tells a dead path from a connection whose kernel waits to send again: by the answers to new connections.

After a loss TCP may be silent for some tenths of a second, and twice as long after the next one, over a path that is
well. The first packet of a new connection does not wait for that, and the peer's kernel answers it however busy the
server is. So a connection over which nothing comes is suspected, new ones are opened beside it, and a path is dead when
none of them is answered either. The route shows whether the robot has another address, and the old one is of no use.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import select
import socket
import struct
from typing import Any, List

from edge_offload.link.sockets.descriptors import Connection, Counters

#: Seconds without any segment, while one is to be acknowledged, after which the route is looked at (``bench levels``:
#: moved).
SUSPECT_S = 0.03
#: Seconds between two new connections, or this share of the longest round trip; so many must stay without an answer
#: (``bench levels``: noticed, false).
PROBE_S, PROBE_SHARE, PROBES = 0.02, 0.2, 3
_ANSWERS = (0, errno.ECONNREFUSED, errno.ECONNRESET)


class Verdict(enum.Enum):
    """Verdict on a suspected path."""

    OPEN = "nothing yet"
    ALIVE = "packets pass"
    DEAD = "no packet passes"
    MOVED = "this robot has another address"


class Probes:
    """New connections to the same peer, closed as soon as its kernel has answered.

    Args:
        tcp: the connection that is suspected.
    """

    def __init__(self, tcp: Connection) -> None:
        self._ends = tcp.read_ends()
        self._sockets: List[socket.socket] = []

    @property
    def has_moved(self) -> bool:
        """Tell whether new connections begin at another address of this machine than the suspected one did."""
        if self._ends is None:
            return False
        family, near, far = self._ends
        with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            try:
                datagrams.connect(far)  # sends nothing
            except OSError:
                return False  # there is no route now: dead for the time being
            return bool(datagrams.getsockname()[0] != near[0])

    def send_probe(self) -> None:
        """Open one more."""
        if self._ends is None:
            return
        probe = socket.socket(self._ends[0], socket.SOCK_STREAM)
        probe.setblocking(False)
        # it leaves nothing behind, here or at the peer
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            if probe.connect_ex(self._ends[2]) in (0, errno.EINPROGRESS):
                self._sockets.append(probe)
                return
        probe.close()

    def was_answered(self) -> bool:
        """Tell whether the peer has answered one, if only by refusing it."""
        poll = select.poll()
        for probe in self._sockets:
            poll.register(probe, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(0)}
        return any(
            probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS
            for probe in self._sockets
            if probe.fileno() in ready
        )

    def close(self) -> None:
        """Close all."""
        for probe in self._sockets:
            probe.close()
        self._sockets = []


class Suspicion:
    """One silence of a connection, until it ends or the path is known to be dead. One thread at a time.

    Args:
        probes: new connections.
        dead_s: seconds of silence after which a path may be dead.
    """

    def __init__(self, probes: Any, dead_s: float) -> None:
        self._probes, self._dead_s = probes, dead_s
        self._sent: List[float] = []

    def judge_path(self, now: float, silent_s: float, counters: Counters) -> Verdict:
        """Send what is due and look at what came.

        Args:
            now: seconds, monotonic.
            silent_s: for how long no segment has come.
            counters: with the round trip before the silence.
        """
        if self._probes.has_moved:
            return Verdict.MOVED
        if self._sent and self._probes.was_answered():
            return Verdict.ALIVE
        timeout_s = counters.rtt_s + 2 * counters.rtt_deviation_s
        enough = len(self._sent) >= PROBES and now - self._sent[0] >= timeout_s
        if enough and silent_s >= self._dead_s:
            return Verdict.DEAD
        due = not self._sent or now - self._sent[-1] >= max(PROBE_S, PROBE_SHARE * timeout_s)
        if due and silent_s >= max(2 * SUSPECT_S, counters.rtt_s):
            self._probes.send_probe()
            self._sent.append(now)
        return Verdict.OPEN

    def close(self) -> None:
        """The silence has ended, or the connection."""
        self._probes.close()
