"""One connection of the client, from dialling to its end: handshake, heartbeat, what its loss means.

A connection is alive while the peer is heard. A heartbeat that waits behind a large upload is no sign of death: its
time to be answered begins when the kernel reports it acknowledged by the next hop, and until then the upload itself
must make progress. When no segment comes any more, the path is examined (:mod:`edge_offload.link.transport.path`).
"""

from __future__ import annotations

import logging
import math
import struct
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import zmq
import zmq.utils.garbage  # its exit handler must be the older one, which runs later than those that close links

from edge_offload.errors import ProtocolError, Refused
from edge_offload.link.estimate.clock import PeerClock
from edge_offload.link.estimate.scheduling import Waits
from edge_offload.link.security.keys import trust_command
from edge_offload.link.sockets import descriptors
from edge_offload.link.sockets.descriptors import ARRIVAL_SAMPLE_S, UPLOAD_SAMPLE_S, ArrivalWatch, Deliveries
from edge_offload.link.sockets.sparingly import Sparingly
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Limits, Message, VersionMismatch
from edge_offload.link.transport.path import PROBE_S, SUSPECT_S, Probes, Suspicion, Verdict
from edge_offload.link.transport.terms import DEFAULT_TIMINGS, ConnectionLost, Ping, Target, Terms, Timings

__all__ = ["DEFAULT_TIMINGS", "ConnectionLost", "Dialled", "Target", "Terms", "Timings"]
rare = Sparingly(logging.getLogger(__name__))

_POLLIN = int(zmq.POLLIN)
#: Seconds between pings while somebody attends (:mod:`edge_offload.link.transport.attention`).
ATTENTIVE_S = 0.025


class Heartbeat:
    """Signs of life of one connection: answers to pings, and bytes that the kernel says have come or were acknowledged.

    Args:
        timings: patience.
        now: when the connection began.

    Attributes:
        received_s: when the peer was heard last.
        segments, segment_s: received by the kernel, and when; while none is to be acknowledged, now.
        delivered: bytes that have reached the next hop, as of the latest look.
        sampled_bytes: uploads of fewer bytes end between two samples; set by the owner.
    """

    def __init__(self, timings: Timings, now: float) -> None:
        self._timings = timings
        self.received_s = now
        self._beaten_s = self._pinged_s = -math.inf
        self._pings: Dict[int, Ping] = {}
        self._ping_id = self._heartbeats = 0
        self._given = self._acked_base = self._acked = self._received = 0
        self._acked_s = self._given_s = 0.0
        self.delivered = 0
        self.sampled_bytes = float(Deliveries.LEAST_BYTES)
        self.segments, self.segment_s = 0, now

    def start_counting(self, counters: Optional[descriptors.Counters]) -> None:
        """The welcome answers all that was sent before it: what is acknowledged now is where counting begins."""
        if counters is not None:
            self._acked_base = self._acked = counters.acked
            self._received = counters.received

    def count_given(self, size: int) -> None:
        """Count bytes given to ZeroMQ."""
        self._given += size
        self._given_s = time.monotonic()

    def read_progress(self) -> Tuple[int, int]:
        """Bytes given to ZeroMQ, and bytes that the next hop has acknowledged, since the welcome."""
        acked = self._acked - self._acked_base
        # on a kernel that does not count, nothing is ever under way
        return (self._given, acked) if self._acked else (0, 0)

    def quiet_since_s(self) -> float:
        """Since when a sign of life has been overdue (monotonic); inf if none is."""
        if not self._pings:
            return math.inf
        oldest = next(iter(self._pings.values()))
        return max(self.received_s, oldest.sent_s, self._acked_s if oldest.acked_s is None else oldest.acked_s)

    def due_s(self, now: float, busy: bool, attentive: bool) -> float:
        """Return when something is to be done, at the latest."""
        sample_s = now + 0.1 if busy or self._pings else math.inf  # else there is nothing whose progress could stop
        given, acked = self.read_progress()
        if given - acked >= self.sampled_bytes and now - self._given_s < 0.25:  # later it is sampled rarely
            sample_s = now + UPLOAD_SAMPLE_S
        return min(self._beat_due_s(busy), self._pinged_s + ATTENTIVE_S if attentive else math.inf, sample_s)

    def check_progress(self, now: float, counters: Optional[descriptors.Counters]) -> None:
        """Progress that the kernel reports counts as a sign of life of what is under way.

        Raises:
            ConnectionLost: one has been overdue for too long.
        """
        if counters is not None:
            self.delivered = counters.delivered
            if counters.received != self._received:
                self._received, self.received_s = counters.received, now
            if counters.acked != self._acked or self._acked_s == 0.0:
                self._acked, self._acked_s = counters.acked, now
            for ping in self._pings.values():
                if ping.acked_s is None and self._acked - self._acked_base >= ping.given:
                    ping.acked_s = now
        if now - self.quiet_since_s() > self._timings.silence_s:
            raise ConnectionLost(f"nothing heard for {now - self.received_s:.1f} s", over=True)

    def next_ping(self, now: float, busy: bool, attentive: bool) -> int:
        """The number of a ping to be sent now; 0: there is none."""
        if now < self._beat_due_s(busy) and not (attentive and now >= self._pinged_s + ATTENTIVE_S):
            return 0
        self._ping_id += 1
        return self._ping_id

    def mark_pinged(self, now: float, busy: bool) -> None:
        """Note that the ping has been sent."""
        heartbeat = now >= self._beat_due_s(busy)
        self._pings[self._ping_id] = Ping(now, self._given, heartbeat)
        self._pinged_s = now
        if heartbeat:
            self._heartbeats += 1
            self._beaten_s = now

    def take_pong(self, number: int) -> bool:
        """Take the answer to a ping; return whether it is for the clock, which needs no more of them."""
        ping = self._pings.pop(number, None)
        return ping is None or ping.heartbeat

    def _beat_due_s(self, busy: bool) -> float:
        if self._heartbeats < 5:  # the first few come quickly: the clock offset is wanted for the first replies
            return self._beaten_s + 0.02
        return self._beaten_s + (self._timings.heartbeat_s if busy else self._timings.idle_s)


class Dialled:
    """A fresh DEALER socket on its way to, or in conversation with, a server. Used by one thread only.

    Args:
        context, target: ZeroMQ's, and the server.
        hello, epoch: the first message, and the connection's number.
        timings, limits: patience, and bounds on one message.
        far: what the server's threads wait for a processor; pongs tell.

    Attributes:
        ready: whether the server has said welcome.
        welcome, terms: what it said then.
        clock: the server's.
        pulse: signs of life.
        arrivals: looks at what arrives.
    """

    def __init__(
        self, context: zmq.Context[Any], target: Target, hello: Dict[str, Any], epoch: int, timings: Timings,
        limits: Limits, far: Waits,
    ) -> None:  # fmt: skip
        self._target = target
        self.ready = False
        self.welcome: Dict[str, Any] = {}
        self.terms = Terms()
        self.clock, self.arrivals = PeerClock(), ArrivalWatch()
        self._started_s = time.monotonic()
        self.pulse = Heartbeat(timings, self._started_s)
        self._epoch, self._timings, self._limits, self._far = epoch, timings, limits, far
        self._tcp: Optional[descriptors.Connection] = None
        self._suspicion: Optional[Suspicion] = None
        # packed before there is a socket to clean up: the application's dict may be one that cannot travel
        self._greeting = messages.pack_header(Message("hello", epoch, 0, "", hello, (self._started_s,)), limits)
        socket: zmq.Socket[Any] = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.reconnect_ivl = -1
        socket.sndhwm = 0  # the client bounds what waits
        socket.maxmsgsize = limits.max_message_bytes
        socket.handshake_ivl = max(1, int(timings.handshake_s * 1e3))
        socket.connect_timeout = max(1, int(timings.connect_s * 1e3))
        socket.curve_serverkey = target.public.encode("ascii")
        socket.curve_publickey = target.pair.public.encode("ascii")
        socket.curve_secretkey = target.pair.secret.encode("ascii")
        self._socket = socket
        self._monitor: zmq.Socket[Any] = socket.get_monitor_socket()

    def __enter__(self) -> Dialled:
        try:
            endpoint = self._target.endpoint()
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
        self._clear_suspicion()
        if self._tcp is not None:
            self._tcp.release_counters()
        self.arrivals.close()

    @property
    def sockets(self) -> List[zmq.Socket[Any]]:
        """Sockets to be polled."""
        return [self._socket, self._monitor]

    def count_awaited(self, busy: bool) -> int:
        """Bytes that have arrived; 0 while no answer is awaited over a path long enough for looks at its arrival."""
        return self.arrivals.arrived if busy and self.clock.reading.rtt_s >= ARRIVAL_SAMPLE_S else 0

    def due_s(self, busy: bool, attentive: bool) -> float:
        """Return when :meth:`check_link` must be called next, at the latest; arguments as there."""
        now = time.monotonic()
        due_s = self.pulse.due_s(now, busy, attentive) if self.ready else min(self._deadline_s(), now + 0.1)
        if self.count_awaited(busy):
            due_s = min(due_s, self.arrivals.due_s(now))
        return min(due_s, now + PROBE_S) if self._suspicion else due_s

    def check_link(self, busy: bool, attentive: bool) -> None:
        """Send heartbeats and look at the timeouts.

        Args:
            busy: answers are awaited.
            attentive: somebody wants to know at once when the peer falls silent.

        Raises:
            ConnectionLost: one ran out.
        """
        now = time.monotonic()
        if not self.ready:
            if now > self._deadline_s():
                what = "no connection" if self._tcp is None else "no welcome"
                raise ConnectionLost(f"{what} within {now - self._started_s:.1f} s")
            return
        counters = self._read_counters()
        self.pulse.check_progress(now, counters)
        if counters is not None:
            self.arrivals.count_arrived(now, counters)
            self._check_path(now, counters)
        number = self.pulse.next_ping(now, busy, attentive)
        if number:
            self.send_message(
                messages.pack_header(Message("ping", self._epoch, number, "", {}, (time.monotonic(),))), []
            )
            self.pulse.mark_pinged(now, busy)

    def _check_path(self, now: float, counters: descriptors.Counters) -> None:
        if counters.segments != self.pulse.segments or not counters.unacked:
            self.pulse.segment_s = now
        self.pulse.segments, silent_s = counters.segments, now - self.pulse.segment_s
        if silent_s < SUSPECT_S or self._tcp is None:
            self._clear_suspicion()
            return
        self._suspicion = self._suspicion or Suspicion(Probes(self._tcp), self._timings.path_s)
        verdict = self._suspicion.judge_path(now, silent_s, counters)
        if verdict is Verdict.ALIVE:
            self.pulse.segment_s = now
            self._clear_suspicion()
        elif verdict is not Verdict.OPEN:
            cause, moved = f"{verdict.value}: nothing heard for {silent_s:.2f} s", verdict is Verdict.MOVED
            raise ConnectionLost(cause, over=not moved, moved=moved)

    def _clear_suspicion(self) -> None:
        if self._suspicion is not None:
            self._suspicion.close()
            self._suspicion = None

    def send_message(self, header: bytes, buffers: List[memoryview]) -> int:
        """Give one message to ZeroMQ; returns the bytes it takes on the wire.

        Raises:
            ConnectionLost: there is nobody to send to any more.
        """
        parts: List[Any] = [header, *buffers]
        try:
            for index, part in enumerate(parts):
                # NOBLOCK: once the connection has broken the socket has no peer, and would wait for one for ever
                flags = zmq.NOBLOCK | (zmq.SNDMORE if index < len(parts) - 1 else 0)
                self._socket.send(part, flags, copy=len(part) < 64 << 10)
        except zmq.Again:
            raise ConnectionLost("the connection broke") from None
        size = messages.wire_bytes([len(part) for part in parts])
        self.pulse.count_given(size)
        return size

    def receive_messages(self) -> Iterator[Tuple[Message, float, int]]:
        """Messages for the application (replies, errors, notifications), with time of arrival and bytes on the wire.

        Raises:
            ConnectionLost: the server turned us away, or the connection broke.
        """
        yield from self._read_messages()
        try:
            self._read_events()
        except ConnectionLost:
            # a refusal may have come in the same moment as the break: it is the better reason
            yield from self._read_messages()
            raise

    def _deadline_s(self) -> float:
        return self._started_s + (self._timings.connect_s if self._tcp is None else self._timings.handshake_s)

    def _read_messages(self) -> Iterator[Tuple[Message, float, int]]:
        while _has_message(self._socket):
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            now = time.monotonic()
            self.pulse.received_s = now
            sizes = [len(frame) for frame in frames]
            try:
                problem = messages.first_over(sizes, self._limits)
                if problem:
                    raise ProtocolError(problem)
                message = messages.unpack_header(frames[0].buffer, self._limits)
            except (ProtocolError, VersionMismatch) as error:
                if isinstance(error, VersionMismatch) and not self.ready:
                    raise ConnectionLost(str(error), refused=error) from error
                rare.warning("link: dropped a message of %s: %s", self._target.address, error)
                continue
            message.buffers = [frame.buffer for frame in frames[1:]]
            if message.type == "welcome" and message.epoch == self._epoch and not self.ready:
                self._take_welcome(message, now)
            elif message.type == "refused":
                refusal = messages.error_from(message.body)
                raise ConnectionLost(str(refusal), refused=refusal)
            elif message.type == "pong":
                self._take_pong(message, now)
            elif self.ready:
                yield message, now, messages.wire_bytes(sizes)

    def _take_welcome(self, message: Message, now: float) -> None:
        app = message.body.get("app")
        self.welcome = app if isinstance(app, dict) else {}
        self.terms = Terms.from_welcome(message.body)
        if len(message.times) == 4:
            self._add_clock_sample(message.times, now)
        self.ready = True
        self.pulse.start_counting(self._read_counters())

    def _take_pong(self, message: Message, now: float) -> None:
        for_clock = self.pulse.take_pong(message.id)
        if message.epoch == self._epoch and len(message.times) == 4:
            self._far.take_reported(self.clock.reading.to_local(message.times[2]), message.body)
            if for_clock:
                self._add_clock_sample(message.times, now)

    def _read_counters(self) -> Optional[descriptors.Counters]:
        return self._tcp.read_counters() if self._tcp is not None else None

    def _add_clock_sample(self, times: Tuple[float, ...], now: float) -> None:
        sent_s, server_s, answered_s, wall = times
        self.clock.add_sample(sent_s, server_s, answered_s, now, wall - (time.time() - time.monotonic()))

    def _read_events(self) -> None:
        while _has_message(self._monitor):
            event, _ = self._monitor.recv_multipart(zmq.NOBLOCK)
            kind, value = struct.unpack("=hi", event)
            if kind == zmq.EVENT_CONNECTED:
                self._started_s = time.monotonic()
                try:
                    self._tcp = descriptors.Connection(value)
                    self._tcp.hold_counters()
                    self.arrivals.watch_connection(value)
                    self._tcp.avoid_pacing()
                except OSError:
                    raise ConnectionLost("the connection broke at once") from None
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise ConnectionLost(
                    "key refused",
                    refused=Refused(
                        f"the server at {self._target.address} does not know this robot's key",
                        remedy=f"on the server run: {trust_command('NAME', self._target.pair.public)}",
                    ),
                )
            elif kind in (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL):
                counters = self._read_counters()
                # a ZMTP 3 peer sends 64 bytes before anything else
                greeted = counters is not None and counters.received >= 64
                raise ConnectionLost("the handshake broke off", hung_up=greeted)
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._tcp is not None:
                self._tcp.release_counters()
            elif kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
                raise ConnectionLost("the connection broke" if self._tcp is not None else "connection refused")


def _has_message(socket: zmq.Socket[Any]) -> bool:
    """Tell whether a message waits. zmq.Again for each empty read would cost more."""
    return bool(int(socket.get(zmq.EVENTS)) & _POLLIN)
