"""One connection of the client, from dialling to its end: handshake, heartbeat, what its loss means.

A connection is alive while the peer is heard. A heartbeat that waits behind a large upload is no sign of death: its
time to be answered begins when the kernel reports it acknowledged by the next hop, and until then the upload itself
must make progress.
"""

from __future__ import annotations

import logging
import math
import struct
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import zmq
import zmq.utils.garbage  # its exit handler must be the older one, which runs later than those that close links

from edge_offload.errors import EdgeOffloadError, ProtocolError, Refused
from edge_offload.link.estimate.clock import PeerClock
from edge_offload.link.estimate.scheduling import Waits
from edge_offload.link.security.keys import KeyPair, trust_command
from edge_offload.link.sockets import descriptors
from edge_offload.link.sockets.sparingly import Sparingly
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Limits, Message, VersionMismatch

rare = Sparingly(logging.getLogger(__name__))

ZERO_COPY_BYTES = 64 << 10
# what a ZMTP 3 peer sends before anything else
GREETING_BYTES = 64


@dataclass(frozen=True)
class Timings:
    """Patience, in seconds.

    Attributes:
        connect_s: for the TCP connection.
        handshake_s: from there to the server's welcome (four round trips).
        heartbeat_s: between pings; they also measure the clock offset and the round trip.
        idle_s: the same while no request waits; longer than ``heartbeat_s``, it spares a robot that computes by itself.
        silence_s: without a sign of life before the connection is given up.
        backoff_cap_s: longest pause between two attempts.
    """

    connect_s: float = 0.5
    handshake_s: float = 1.5
    heartbeat_s: float = 0.25
    idle_s: float = 0.25
    silence_s: float = 1.0
    backoff_cap_s: float = 0.5


DEFAULT_TIMINGS = Timings()
#: Seconds between pings while somebody attends (:mod:`edge_offload.link.transport.attention`).
ATTENTIVE_S = 0.025


@dataclass(frozen=True)
class Terms:
    """What the server takes: the bounds on one message, and on requests that wait for an answer (count and bytes)."""

    message: Optional[Limits] = None
    requests: int = 1 << 30
    bytes: int = 1 << 62

    @staticmethod
    def of(body: Dict[str, Any]) -> Terms:
        """From the body of a welcome; what is absent or absurd is taken as no bound."""
        told = {name: value for name, value in body.items() if type(value) is int and value > 0}
        message = Limits(told.get("max_message_bytes", 1 << 62), max_parts=told.get("max_parts", 1 << 30))
        return Terms(message, told.get("max_open_requests", 1 << 30), told.get("max_open_bytes", 1 << 62))


class ConnectionLost(Exception):
    """The connection is over; ``refused`` is set if the server said so.

    ``hung_up``: the server greeted, read our side of the key exchange and hung up without a word. That is what a server
    with another key does; but also one that was killed at that moment, so once is no proof.

    ``over``: the server is silent or was left on purpose, so that another one is to be dialled first.
    """

    def __init__(
        self, reason: str, refused: Optional[EdgeOffloadError] = None, hung_up: bool = False, over: bool = False
    ) -> None:
        super().__init__(reason)
        self.over = over
        self.hung_up = hung_up
        self.reason = reason
        self.refused = refused


@dataclass
class _Ping:
    """A ping without an answer yet.

    When it was sent, bytes given to ZeroMQ up to it, whether it is a heartbeat (whose answer tells the clock), when the
    next hop had it.
    """

    sent_s: float
    given: int
    heartbeat: bool
    acked_s: Optional[float] = None


class Dialled:
    """A fresh DEALER socket on its way to, or in conversation with, a server. Used by one thread only.

    ``endpoint`` looks up the numeric address of the server at ``address``.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        endpoint: Callable[[], str],
        *,
        pair: KeyPair,
        server_public: str,
        hello: Dict[str, Any],
        epoch: int,
        timings: Timings,
        limits: Limits,
        far: Waits,
    ) -> None:
        self.address, self._endpoint = address, endpoint
        self.ready = False
        self.welcome: Dict[str, Any] = {}
        self.terms = Terms()
        self.clock = PeerClock()
        #: Whether somebody wants to know at once when the peer falls silent.
        self.attentive = False
        self._epoch = epoch
        self._timings = timings
        self._limits = limits
        self._far = far
        self._pair = pair
        self._tcp: Optional[descriptors.Connection] = None
        self._began_s = self._heard_s = time.monotonic()
        self._beaten_s = self._pinged_s = -math.inf
        self._pings: Dict[int, _Ping] = {}
        self._ping_id = self._heartbeats = 0
        self._given = 0
        self._acked_base = 0
        self._acked = 0
        self._received = 0
        self._acked_s = 0.0
        # packed before there is a socket to clean up: the application's dict may be one that cannot travel
        greeting = messages.pack_header(Message("hello", epoch, 0, "", hello, (self._began_s,)), limits)
        socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.reconnect_ivl = -1
        socket.sndhwm = 0  # the client bounds what waits
        socket.maxmsgsize = limits.max_message_bytes
        socket.handshake_ivl = max(1, int(timings.handshake_s * 1e3))
        socket.connect_timeout = max(1, int(timings.connect_s * 1e3))
        socket.curve_serverkey = server_public.encode("ascii")
        socket.curve_publickey = pair.public.encode("ascii")
        socket.curve_secretkey = pair.secret.encode("ascii")
        self._socket = socket
        self._monitor: zmq.Socket[Any] = socket.get_monitor_socket()
        self.sockets = [self._socket, self._monitor]
        self._greeting = greeting

    def __enter__(self) -> Dialled:
        try:
            endpoint = self._endpoint()
            self._socket.ipv6 = "[" in endpoint
            self._socket.connect(endpoint)
            # fits the empty queue and leaves as soon as the handshake is through; NOBLOCK, because an attempt that has
            # failed already leaves no queue behind
            self._socket.send(self._greeting, zmq.NOBLOCK)
        except (OSError, zmq.ZMQError) as error:
            self.__exit__()
            raise ConnectionLost(f"cannot connect: {error.strerror}") from error
        return self

    def __exit__(self, *_: Any) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        if self._tcp is not None:
            self._tcp.release()

    def due_s(self, busy: bool) -> float:
        """When :meth:`check` must be called next, at the latest; ``busy``: answers are awaited."""
        now = time.monotonic()
        if not self.ready:
            return min(self._deadline_s(), now + 0.1)
        look_s = now + 0.1 if busy or self._pings else math.inf  # else there is nothing whose progress could stop
        return min(self._beat_due_s(busy), self._pinged_s + ATTENTIVE_S if self.attentive else math.inf, look_s)

    def send(self, header: bytes, buffers: List[memoryview]) -> int:
        """Give one message to ZeroMQ; returns the bytes it takes on the wire.

        Raises:
            ConnectionLost: there is nobody to send to any more.
        """
        parts: List[Any] = [header, *buffers]
        try:
            for index, part in enumerate(parts):
                # NOBLOCK: once the connection has broken the socket has no peer, and would wait for one for ever
                flags = zmq.NOBLOCK | (zmq.SNDMORE if index < len(parts) - 1 else 0)
                self._socket.send(part, flags, copy=len(part) < ZERO_COPY_BYTES)
        except zmq.Again:
            raise ConnectionLost("the connection broke") from None
        size = messages.wire_bytes([len(part) for part in parts])
        self._given += size
        return size

    def progress(self) -> Tuple[int, int]:
        """Bytes given to ZeroMQ, and bytes that the next hop has acknowledged, since the welcome."""
        acked = self._acked - self._acked_base
        # on a kernel that does not count, nothing is ever under way
        return (self._given, acked) if self._acked else (0, 0)

    def receive(self) -> Iterator[Tuple[Message, float, int]]:
        """Messages for the application (replies, errors, notifications), with time of arrival and bytes on the wire.

        Raises:
            ConnectionLost: the server turned us away, or the connection broke.
        """
        yield from self._messages()
        try:
            self._events()
        except ConnectionLost:
            # a refusal may have come in the same moment as the break: it is the better reason
            yield from self._messages()
            raise

    def check(self, busy: bool) -> None:
        """Send heartbeats and look at the timeouts; ``busy``: answers are awaited.

        Raises:
            ConnectionLost: one ran out.
        """
        now = time.monotonic()
        if not self.ready:
            if now > self._deadline_s():
                what = "no connection" if self._tcp is None else "no welcome"
                raise ConnectionLost(f"{what} within {now - self._began_s:.1f} s")
            return
        self._probe(now)
        if now - self.quiet_since_s() > self._timings.silence_s:
            raise ConnectionLost(f"nothing heard for {now - self._heard_s:.1f} s", over=True)
        if now >= self._beat_due_s(busy):
            self._ping(now, heartbeat=True)
        elif self.attentive and now >= self._pinged_s + ATTENTIVE_S:
            self._ping(now, heartbeat=False)

    def quiet_since_s(self) -> float:
        """Since when a sign of life has been overdue (monotonic); inf if none is."""
        if not self._pings:
            return math.inf
        oldest = next(iter(self._pings.values()))
        return max(self._heard_s, oldest.sent_s, self._acked_s if oldest.acked_s is None else oldest.acked_s)

    def _beat_due_s(self, busy: bool) -> float:
        if self._heartbeats < 5:  # the first few come quickly: the clock offset is wanted for the first replies
            return self._beaten_s + 0.02
        return self._beaten_s + (self._timings.heartbeat_s if busy else self._timings.idle_s)

    def _deadline_s(self) -> float:
        return self._began_s + (self._timings.connect_s if self._tcp is None else self._timings.handshake_s)

    def _messages(self) -> Iterator[Tuple[Message, float, int]]:
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            now = time.monotonic()
            self._heard_s = now
            sizes = [len(frame) for frame in frames]
            try:
                problem = messages.first_over(sizes, self._limits)
                if problem:
                    raise ProtocolError(problem)
                message = messages.unpack_header(frames[0].buffer, self._limits)
            except (ProtocolError, VersionMismatch) as error:
                if isinstance(error, VersionMismatch) and not self.ready:
                    raise ConnectionLost(str(error), refused=error) from error
                rare.warning("link: dropped a message of %s: %s", self.address, error)
                continue
            message.buffers = [frame.buffer for frame in frames[1:]]
            if message.type == "welcome" and message.epoch == self._epoch and not self.ready:
                self._welcomed(message, now)
            elif message.type == "refused":
                refusal = messages.error_from(message.body)
                raise ConnectionLost(str(refusal), refused=refusal)
            elif message.type == "pong":
                self._ponged(message, now)
            elif self.ready:
                yield message, now, messages.wire_bytes(sizes)

    def _welcomed(self, message: Message, now: float) -> None:
        app = message.body.get("app")
        self.welcome = app if isinstance(app, dict) else {}
        self.terms = Terms.of(message.body)
        if len(message.times) == 4:
            self._learn(message.times, now)
        self.ready = True
        counters = self._tcp.counters() if self._tcp is not None else None
        if counters is not None:
            # the welcome answers all that was sent before it: what is acknowledged now is where counting begins
            self._acked_base = self._acked = counters.acked
            self._received = counters.received

    def _ping(self, now: float, heartbeat: bool) -> None:
        self._ping_id += 1
        header = messages.pack_header(Message("ping", self._epoch, self._ping_id, "", {}, (time.monotonic(),)))
        self.send(header, [])
        self._pings[self._ping_id] = _Ping(now, self._given, heartbeat)
        self._pinged_s = now
        if heartbeat:
            self._heartbeats += 1
            self._beaten_s = now

    def _ponged(self, message: Message, now: float) -> None:
        ping = self._pings.pop(message.id, None)
        if message.epoch == self._epoch and len(message.times) == 4:
            self._far.told(self.clock.reading.to_local(message.times[2]), message.body)
        # those in between would only make the proofs of the clock many
        if message.epoch == self._epoch and len(message.times) == 4 and (ping is None or ping.heartbeat):
            self._learn(message.times, now)

    def _learn(self, times: Tuple[float, ...], now: float) -> None:
        sent_s, there_s, answered_s, wall = times
        self.clock.sample(sent_s, there_s, answered_s, now, wall - (time.time() - time.monotonic()))

    def _probe(self, now: float) -> None:
        """Progress that the kernel reports counts as a sign of life of what is under way."""
        counters = self._tcp.counters() if self._tcp is not None else None
        if counters is None:
            return
        if counters.received != self._received:
            self._received, self._heard_s = counters.received, now
        if counters.acked != self._acked or self._acked_s == 0.0:
            self._acked, self._acked_s = counters.acked, now
        for ping in self._pings.values():
            if ping.acked_s is None and self._acked - self._acked_base >= ping.given:
                ping.acked_s = now

    def _events(self) -> None:
        while True:
            try:
                event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind, value = struct.unpack("=hi", event)
            if kind == zmq.EVENT_CONNECTED:
                self._began_s = time.monotonic()
                try:
                    self._tcp = descriptors.Connection(value)
                    self._tcp.hold()
                except OSError:
                    raise ConnectionLost("the connection broke at once") from None
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise ConnectionLost(
                    "key refused",
                    refused=Refused(
                        f"the server at {self.address} does not know this robot's key",
                        remedy=f"on the server run: {trust_command('NAME', self._pair.public)}",
                    ),
                )
            elif kind in (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
                counters = self._tcp.counters() if self._tcp is not None else None
                greeted = counters is not None and counters.received >= GREETING_BYTES
                raise ConnectionLost("the handshake broke off", hung_up=greeted)
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._tcp is not None:
                self._tcp.release()
            elif kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
                raise ConnectionLost("the connection broke" if self._tcp is not None else "connection refused")
