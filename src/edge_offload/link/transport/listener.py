"""The server's end of the link: one thread that owns a ROUTER socket and never blocks.

``welcome`` and ``handle`` run on that thread and must return at once: hand work to a worker and answer later with
:meth:`Request.reply` or :meth:`Request.fail`, from any thread, exactly once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import zmq

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Refused
from edge_offload.link.estimate.scheduling import ThreadCounts
from edge_offload.link.security.keys import KeyStore, is_loopback, join_address, split_address
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.sockets.lookup import resolve_endpoints
from edge_offload.link.transport import messages
from edge_offload.link.transport.fronts import DRAIN
from edge_offload.link.transport.gate import AllowList, Bounds, Gate
from edge_offload.link.transport.messages import DEFAULT_LIMITS, PROBE, Limits, Message, VersionMismatch
from edge_offload.link.transport.outgoing import Outgoing
from edge_offload.link.transport.peers import Peer, Request, Roster
from edge_offload.link.transport.prober import answer_probe

log = logging.getLogger(__name__)

DEFAULT_BOUNDS = Bounds()
Welcome = Callable[[Peer, Dict[str, Any]], Dict[str, Any]]


def open_bytes(limits: Limits, bounds: Bounds) -> int:
    """Bytes of requests of one peer that may wait for an answer."""
    return limits.max_message_bytes + (4 << 20) if bounds.open_bytes is None else bounds.open_bytes


class Reception:
    """Takes what peers say: hello, heartbeats, requests. Used by the listener's thread.

    Args:
        welcome, handle: as :class:`Listener`.
        limits: bounds on one message.
        bounds: what peers may take.
        clock: monotonic seconds.
        outgoing: the way to peers.
        counts: what threads here have waited for a processor.
        counters: what happened, by reason; shared with the listener.
    """

    def __init__(
        self, welcome: Welcome, handle: Callable[[Request], None], limits: Limits, bounds: Bounds,
        clock: Callable[[], float], outgoing: Outgoing, counts: ThreadCounts, counters: Counter[Any],
    ) -> None:  # fmt: skip
        self._welcome, self._handle_request = welcome, handle
        self._limits, self._bounds = limits, bounds
        self._most_open_bytes = open_bytes(limits, bounds)
        self._clock = clock
        self._outgoing = outgoing
        self._counts, self._counters = counts, counters
        self._instance = os.urandom(8).hex()

    def enter_thread(self) -> None:
        """This is the listener's thread."""
        self._counts.find_threads()

    def take_frames(self, peer: Peer, frames: List[zmq.Frame]) -> None:
        """One message of a peer: routing id, header, payload."""
        received_s = self._clock()
        peer.received_s = time.monotonic()
        sizes = [len(frame) for frame in frames[1:]]
        try:
            problem = messages.first_over(sizes, self._limits)
            if problem:
                raise ProtocolError(problem)
            message = messages.unpack_header(frames[1].buffer, self._limits)
        except VersionMismatch as error:
            if peer.ready:  # it spoke our version before
                self._outgoing.report_malformed(peer, 0, ProtocolError(error.cause))
            else:
                self._counters["refused: version"] += 1
                self._outgoing.refuse_peer(peer, error)
            return
        except ProtocolError as error:
            self._outgoing.report_malformed(peer, 0, error)
            return
        message.buffers = [frame.buffer for frame in frames[2:]]
        if message.type == "hello":
            self._take_hello(peer, message, received_s)
        elif message.type not in ("request", "notify", "ping"):
            self._outgoing.report_malformed(peer, message.id, ProtocolError(f"a client does not send {message.type}"))
        elif not peer.ready or message.epoch != peer.epoch:
            self._outgoing.report_malformed(peer, message.id, ProtocolError("say hello first"), message.epoch)
        elif message.type == "ping":
            self._answer_ping(peer, message, received_s)
        else:
            self._dispatch_message(peer, message, received_s, messages.wire_bytes(sizes))

    def _take_hello(self, peer: Peer, message: Message, received_s: float) -> None:
        app, session = message.body.get("app"), message.body.get("session")
        if peer.ready or not isinstance(app, dict) or not isinstance(session, str) or not 1 <= len(session) <= 64:
            self._outgoing.report_malformed(peer, 0, ProtocolError("malformed or repeated hello"), message.epoch)
            return
        peer.hello, peer.session, peer.epoch = app, session, message.epoch
        try:
            if sum(other.key == peer.key for other in self._outgoing.peers()) >= self._bounds.connections_per_robot:
                raise Refused(
                    f"full: this robot has {self._bounds.connections_per_robot} connections", remedy="close one of them"
                )
            answer = self._welcome(peer, app)
        except EdgeOffloadError as error:
            self._counters["refused: by the server"] += 1
            self._outgoing.refuse_peer(peer, error)
            return
        except Exception as error:
            # the application's bug must not take the link down with it
            log.exception("link: welcome() failed")
            self._outgoing.refuse_peer(peer, Refused(f"the server failed to answer hello: {type(error).__name__}"))
            return
        peer.ready = True
        body = {
            "app": answer,
            "server": self._instance,
            "lease_s": self._bounds.peer_timeout_s,
            "max_message_bytes": self._limits.max_message_bytes,
            "max_parts": self._limits.max_parts,
            "max_open_requests": self._bounds.open_requests,
            "max_open_bytes": self._most_open_bytes,
        }
        self._outgoing.send_to_peer(
            peer, Message("welcome", peer.epoch, 0, "", body, self._clock_times(message, received_s))
        )

    def _answer_ping(self, peer: Peer, message: Message, received_s: float) -> None:
        if len(message.times) != 1:
            self._outgoing.report_malformed(peer, message.id, ProtocolError("malformed ping"))
            return
        times = self._clock_times(message, received_s)
        self._outgoing.send_to_peer(
            peer, Message("pong", peer.epoch, message.id, "", self._counts.to_body(received_s), times)
        )

    def _clock_times(self, message: Message, received_s: float) -> Tuple[float, ...]:
        """Return the times of an exchange: client's send, our receive and send, and our wall - monotonic."""
        if len(message.times) != 1:
            return ()
        now = self._clock()
        return message.times[0], received_s, now, time.time() - now

    def _dispatch_message(self, peer: Peer, message: Message, received_s: float, bytes_up: int) -> None:
        request = Request(peer, message, received_s, bytes_up, self._outgoing.post_message)
        if message.type == "request":
            if message.id in peer.open_requests:
                self._outgoing.report_malformed(peer, 0, ProtocolError("request id used twice"))
                return
            pending_bytes = sum(peer.open_requests.values()) + bytes_up
            if len(peer.open_requests) >= self._bounds.open_requests or pending_bytes > self._most_open_bytes:
                self._counters["refused: full"] += 1
                full = Refused("full: too many requests of this robot wait for an answer", remedy="wait for replies")
                self._outgoing.send_to_peer(
                    peer, Message("error", peer.epoch, message.id, "", messages.error_body(full), (received_s,))
                )
                return
            peer.open_requests[message.id] = bytes_up
        self._counters[message.type] += 1
        if request.kind == PROBE:
            answer_probe(request)
            return
        try:
            self._handle_request(request)
        except Exception as error:
            # the request failed, the server lives
            log.exception("link: handling %s of %s failed", request.kind, peer.name)
            if not request.answered:
                request.fail(error)


class Listener:
    """Accepts robots on a TCP address (CURVE, allow-list, bounded sizes) and hands their requests to ``handle``.

    Args:
        bind: ``tcp://host:port``; port 0 takes a free one (see :attr:`address`).
        welcome: called with (peer, hello dict); its dict goes back to the client. Raise
            :class:`~edge_offload.errors.Refused` to turn the peer away with a reason.
        handle: called with every :class:`Request` of a welcomed peer.
        on_gone: called with (peer, reason) when a welcomed peer's connection is over.
        keys: key directory; the default one if None.
        limits: bounds on one message.
        bounds: what peers may take.
        clock: monotonic seconds (tests shift it).
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        *,
        welcome: Welcome,
        handle: Callable[[Request], None],
        on_gone: Optional[Callable[[Peer, str], None]] = None,
        keys: Optional[KeyStore] = None,
        limits: Limits = DEFAULT_LIMITS,
        bounds: Bounds = DEFAULT_BOUNDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters: Counter[Any] = Counter()
        self._bind = bind
        self._on_gone = on_gone
        self._keys = keys if keys is not None else KeyStore()
        self._limits, self._bounds = limits, bounds
        self._stop = threading.Event()
        self._wakeup = Wakeup()
        counts = ThreadCounts()
        self._outgoing = Outgoing(limits, clock, self._wakeup, self.counters, counts)
        self._reception = Reception(welcome, handle, limits, bounds, clock, self._outgoing, counts, self.counters)
        self._address = ""
        self._thread: Optional[threading.Thread] = None

    @property
    def address(self) -> str:
        """``tcp://host:port`` really bound."""
        return self._address

    def start(self) -> Listener:
        """Bind and serve.

        Raises:
            BadInput: the address cannot be bound, or others can reach it and there are no keys made on purpose.
        """
        host, port = split_address(self._bind)
        pair = self._keys.server_pair(host)
        loopback = is_loopback(host)
        if loopback:
            self._keys.ensure_pair("client")
        context: zmq.Context[Any] = zmq.Context(io_threads=2)
        self._socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.curve_server = True
        self._socket.curve_secretkey = pair.secret.encode("ascii")
        self._socket.curve_publickey = pair.public.encode("ascii")
        self._socket.zap_domain = b"edge_offload"
        self._socket.router_mandatory = True
        self._socket.maxmsgsize = self._limits.max_message_bytes
        self._socket.handshake_ivl = int(self._bounds.hello_timeout_s * 1e3)
        self._socket.backlog = 128
        where = _bind_endpoint(host, port)
        self._socket.ipv6 = "[" in where
        most_bytes = max(self._limits.max_message_bytes, open_bytes(self._limits, self._bounds))
        allow = AllowList(self._keys, loopback)
        self._gate = Gate(context, self._socket, allow, self._bounds, most_bytes, self.counters)
        self._roster = Roster(self._gate, self._on_gone, self._bounds, self.counters)
        self._outgoing.open_socket(self._socket, self._roster)
        try:
            self._socket.bind(where)
        except zmq.ZMQError as error:
            self._socket.disable_monitor()
            self._gate.close()
            context.destroy(linger=0)
            local = error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL)
            remedy = "give an address of this machine" if local else "choose another port, or stop who uses it"
            raise BadInput(f"cannot listen on {self._bind}: {error.strerror}", remedy=remedy) from error
        endpoint = self._socket.last_endpoint
        self._address = endpoint.decode("ascii") if isinstance(endpoint, bytes) else str(endpoint)
        self._gate.start()
        self._thread = threading.Thread(target=self._serve, args=(context,), name="edge_offload-listener", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving; connections break, ``on_gone`` is called for every peer."""
        if self._thread is None:
            return
        self._stop.set()
        self._wakeup.wake_thread()
        self._thread.join()
        self._thread = None

    def __enter__(self) -> Listener:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def peers(self) -> List[Peer]:
        """Welcomed peers, now."""
        return self._roster.ready_peers() if self._thread is not None else []

    def notify(self, peer: Peer, kind: str, body: Optional[Dict[str, Any]] = None, buffers: Sequence[Any] = ()) -> None:
        """Send a peer something that it did not ask for; nothing happens if it has gone.

        Raises:
            BadInput: it cannot be sent.
        """
        message = Message("notify", peer.epoch, 0, messages.check_name(kind), body or {})
        message.buffers = messages.byte_views(buffers)
        self._outgoing.post_message(peer, message)

    def drain(self) -> None:
        """Tell every peer that another server is to be used; those that have no other stay until the end."""
        for peer in self.peers():
            self.notify(peer, DRAIN)

    # ------------------------------------------------------------------ the listener's thread

    def _serve(self, context: zmq.Context[Any]) -> None:
        self._reception.enter_thread()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakeup.descriptor, zmq.POLLIN)
        swept_s = 0.0
        try:
            while not self._stop.is_set():
                poller.poll(100 if len(self._roster) else 1000)
                self._wakeup.clear_wakeups()
                self._outgoing.flush_posted()
                self._drain_peers()
                now = time.monotonic()
                if now - swept_s >= 0.1:
                    swept_s = now
                    self._roster.sweep_peers()
        finally:
            self._roster.clear_peers("the server stops")
            # first: an event for a monitor that nobody holds the other end of would block libzmq's own thread
            self._socket.disable_monitor()
            self._gate.close()
            self._socket.close(0)
            context.destroy(linger=0)

    def _drain_peers(self) -> None:
        for _ in range(256):  # come back to replies and timeouts even under a flood
            try:
                frames = self._receive_frames()
            except zmq.Again:
                return
            if frames is not None:
                peer = self._roster.find_sender(frames[0].bytes, _read_property(frames[1], "User-Id"))
                if peer is not None:
                    self._reception.take_frames(peer, frames)
                self._outgoing.flush_posted()

    def _receive_frames(self) -> Optional[List[zmq.Frame]]:
        """One whole message; one of too many parts is taken off the socket part by part and None is returned."""
        frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        frames: List[zmq.Frame] = [frame]
        size = parts = 0
        while frame.more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            parts += 1
            size += messages.wire_bytes([len(frame)])
            if parts <= self._limits.max_parts + 1:
                frames.append(frame)
        if len(frames) < 2:
            return None
        user = _read_property(frames[1], "User-Id")
        self._gate.mark_delivered(user, frames[1].get(zmq.SRCFD), size)
        if parts > self._limits.max_parts + 1:
            peer = self._roster.find_sender(frames[0].bytes, user)
            if peer is not None:
                self._outgoing.report_malformed(peer, 0, ProtocolError(f"message of {parts - 1} payload parts"))
            return None
        return frames


def _read_property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""


def _bind_endpoint(host: str, port: int) -> str:
    """Endpoint that ZeroMQ binds to: a name with only IPv6 addresses as a number, all else as it stands."""
    with contextlib.suppress(OSError):
        # it may also be the name of an interface, or *
        number = resolve_endpoints(host, port or 1)[0].rpartition(":")[0]
        if "[" in number:
            return f"{number}:{port or '*'}"
    return f"tcp://{join_address(host, port or '*')}"
