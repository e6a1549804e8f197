"""Signs of life of a connection, for who waits for a result and wants to know at once that the link has stopped.

A heartbeat four times a second tells soon enough that a connection is dead. While somebody attends, pings go out every
:data:`~edge_offload.link.transport.connection.ATTENTIVE_S` seconds, a hundred bytes each way.
"""

from __future__ import annotations

import math


class Attention:
    """Progress of a link, for one who waits. The link's thread writes, any thread reads.

    Attributes:
        longest_s: for how long at most a sign of life was overdue that came in the end (seconds).
        given, acked: bytes given to the connection, and acknowledged by the next hop, since it was made.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.given = self.acked = 0
        self._since_s = math.inf

    def note_overdue(self, now: float, since_s: float, given: int, acked: int) -> None:
        """A sign of life has been overdue ``since_s`` (monotonic; inf: none is)."""
        if since_s > self._since_s:
            self.longest_s = max(self.longest_s, min(now, since_s) - self._since_s)
        self._since_s, self.given, self.acked = since_s, given, acked

    def quiet_s(self, now: float) -> float:
        """Return how long a sign of life has been overdue, seconds; 0 if none is."""
        return max(0.0, now - self._since_s)
