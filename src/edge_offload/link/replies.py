"""What a client gets back: replies with the timing of their transfer, and the states of the link."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Dict, List


class LinkState(enum.Enum):
    """Where the link stands; the cause is :attr:`Client.cause`."""

    CONNECTING = "connecting"
    READY = "ready"
    REFUSED = "refused"
    LOST = "lost"
    CLOSED = "closed"


@dataclass(frozen=True)
class Transfer:
    """When and how large one request and its reply were. Seconds on this machine's monotonic clock.

    Attributes:
        queued_s: :meth:`Client.request` was called.
        sent_s: the link's thread gave the message to ZeroMQ.
        server_received_s, server_sent_s: the whole request was there; the reply was given to ZeroMQ there. Mapped with
            the clock offset, off by at most ``clock_error_s``.
        received_s: the whole reply was here.
        clock_error_s: bound on the error of the two server times, s.
        bytes_up, bytes_down: what the two messages took on the TCP connection, headers and encryption included.
        waited_up_s, waited_down_s: for which threads of either end waited for a processor meanwhile, at most: so much
            of the duration may not have been the link's.
    """

    queued_s: float
    sent_s: float
    server_received_s: float
    server_sent_s: float
    received_s: float
    clock_error_s: float
    bytes_up: int
    bytes_down: int
    waited_up_s: float = 0.0
    waited_down_s: float = 0.0

    @property
    def uplink_s(self) -> float:
        """Duration of the way up, s (never negative; off by at most ``clock_error_s``)."""
        return max(0.0, self.server_received_s - self.sent_s)

    @property
    def downlink_s(self) -> float:
        """Duration of the way down, s (never negative; off by at most ``clock_error_s``)."""
        return max(0.0, self.received_s - self.server_sent_s)


@dataclass(frozen=True)
class Reply:
    """The server's answer: ``body`` dict, ``buffers`` as views of the received memory, and the :class:`Transfer`."""

    body: Dict[str, Any]
    buffers: List[memoryview]
    transfer: Transfer
