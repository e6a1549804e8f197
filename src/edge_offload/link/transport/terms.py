"""Terms of a client's connection: its peer, time-outs, limits of the server, pings in flight, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

from edge_offload.errors import EdgeOffloadError
from edge_offload.link.security.keys import KeyPair
from edge_offload.link.transport.messages import Limits


@dataclass(frozen=True)
class Target:
    """A server.

    Attributes:
        address: as the user gave it.
        endpoint: looks up the numeric address.
        public: its key.
        pair: ours.
    """

    address: str
    endpoint: Callable[[], str]
    public: str
    pair: KeyPair


@dataclass(frozen=True)
class Timings:
    """Patience, in seconds.

    Attributes:
        connect_s: for the TCP connection.
        handshake_s: from there to the server's welcome (four round trips).
        heartbeat_s: between pings; they also measure the clock offset and the round trip.
        idle_s: the same while no request waits; longer than ``heartbeat_s``, it spares a robot that computes by itself.
        silence_s: without a sign of life before the connection is given up.
        path_s: the same while the path itself is dead: the peer's kernel does not answer new connections either.
        backoff_cap_s: longest pause between two attempts.
    """

    connect_s: float = 0.5
    handshake_s: float = 1.5
    heartbeat_s: float = 0.25
    idle_s: float = 0.25
    silence_s: float = 1.0
    path_s: float = 0.2
    backoff_cap_s: float = 0.5


DEFAULT_TIMINGS = Timings()


@dataclass(frozen=True)
class Terms:
    """Bounds of the server: on one message, and on requests that wait for an answer (count and bytes)."""

    message: Optional[Limits] = None
    requests: int = 1 << 30
    bytes: int = 1 << 62

    @staticmethod
    def from_welcome(body: Dict[str, Any]) -> Terms:
        """Parse the body of a welcome; what is absent or absurd is no bound."""
        numbers = {name: value for name, value in body.items() if type(value) is int and value > 0}
        message = Limits(numbers.get("max_message_bytes", 1 << 62), max_parts=numbers.get("max_parts", 1 << 30))
        return Terms(message, numbers.get("max_open_requests", 1 << 30), numbers.get("max_open_bytes", 1 << 62))


@dataclass
class Ping:
    """A ping in flight.

    Attributes:
        sent_s: time of sending (monotonic seconds).
        given: bytes given to ZeroMQ up to it.
        heartbeat: whether its answer is a sample of the server's clock.
        acked_s: time of the next hop's acknowledgement; None before.
    """

    sent_s: float
    given: int
    heartbeat: bool
    acked_s: Optional[float] = None


class ConnectionLost(Exception):
    """The connection is over; ``refused`` is set if the server said so.

    ``hung_up``: the server greeted, read our side of the key exchange and hung up without a word. That is what a server
    with another key does; but also one that was killed at that moment, so once is no proof.

    ``over``: the server is silent or was left on purpose, so that another one is to be dialled first.

    ``moved``: this robot has another address, so that the same server is to be dialled at once.
    """

    def __init__(
        self, reason: str, refused: Optional[EdgeOffloadError] = None, hung_up: bool = False, over: bool = False,
        moved: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(reason)
        self.over, self.moved = over, moved
        self.hung_up = hung_up
        self.reason = reason
        self.refused = refused
