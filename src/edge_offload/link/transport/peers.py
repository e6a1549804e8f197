"""Who is connected to a listener and what they ask: peers, their requests, and when each of them is gone."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import zmq

from edge_offload.errors import BadInput, ProtocolError
from edge_offload.link.transport import messages
from edge_offload.link.transport.gate import Bounds, Gate
from edge_offload.link.transport.messages import Message

# how often a peer is told that it sends rubbish
COMPLAINTS_PER_S = 10


@dataclass(eq=False)
class Peer:
    """One connection of one robot; a reconnect is a new Peer.

    Attributes:
        name: the robot's name on the allow-list.
        key: its public key.
        session: random words that the client keeps over reconnects: resume by this, together with ``key``.
        epoch: the connection, drawn by the client.
        hello: the dict that the application on the robot sent.
    """

    name: str
    key: str
    session: str = ""
    epoch: int = 0
    hello: Dict[str, Any] = field(default_factory=dict)
    identity: bytes = b""
    user: str = ""
    ready: bool = False
    disconnected: bool = False
    since_s: float = 0.0
    received_s: float = 0.0
    open_requests: Dict[int, int] = field(default_factory=dict)  # id -> payload bytes held by the application
    unsent: Deque[Tuple[zmq.MessageTracker, int]] = field(default_factory=deque)
    complaints: Deque[float] = field(default_factory=lambda: deque(maxlen=COMPLAINTS_PER_S))


class Request:
    """One request (or notification) of a peer.

    Attributes:
        peer: who asks.
        kind: what for.
        body: small facts.
        buffers: payload parts, views of the received memory.
        received_s: when the whole message was there, on this machine's monotonic clock.
        bytes_up: bytes that the message took on the wire.
        wants_reply: False for a notification.
    """

    def __init__(
        self, peer: Peer, message: Message, received_s: float, bytes_up: int, post: Callable[[Peer, Message], None]
    ) -> None:
        self.peer = peer
        self.kind = message.name
        self.body = message.body
        self.buffers: List[memoryview] = message.buffers
        self.received_s = received_s
        self.bytes_up = bytes_up
        self.wants_reply = message.type == "request"
        self._id = message.id
        self._post = post
        self._answered = threading.Lock()

    @property
    def answered(self) -> bool:
        """Tell whether :meth:`reply` or :meth:`fail` was called."""
        return self._answered.locked()

    @property
    def downlink(self) -> Optional[float]:
        """Bytes per second that the link carries to the peer, by its estimate; None: unknown.

        Raises:
            ProtocolError: it is none.
        """
        rate = self.body.get("downlink")
        if rate is not None and not (type(rate) is float and 0 < rate < 1e15):
            raise ProtocolError("downlink is a number of bytes per second")
        return rate

    def reply(self, body: Optional[Dict[str, Any]] = None, buffers: Sequence[Any] = ()) -> None:
        """Answer. ``buffers`` (C-contiguous) must not be changed afterwards. A peer that has gone gets nothing.

        Raises:
            BadInput: the answer cannot be sent (the peer is told), or there was one already.
        """
        self._mark_answered()
        try:
            self._send_answer("reply", body or {}, messages.byte_views(buffers))
        except BadInput as error:
            self._send_answer("error", messages.error_body(error), [])
            raise

    def part(self, body: Dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        """Send something ahead of the answer, to a client that asked for it so (``on_part``).

        Raises:
            BadInput: it cannot be sent.
        """
        if not self.answered:
            self._send_answer("part", body, messages.byte_views(buffers))

    def fail(self, error: BaseException) -> None:
        """Answer with an error; the robot's Future raises its like."""
        self._mark_answered()
        self._send_answer("error", messages.error_body(error), [])

    def _send_answer(self, type_: str, body: Dict[str, Any], buffers: List[memoryview]) -> None:
        if self.wants_reply:
            self._post(self.peer, Message(type_, self.peer.epoch, self._id, "", body, (self.received_s,), buffers))

    def _mark_answered(self) -> None:
        if not self._answered.acquire(blocking=False):
            raise BadInput(f"the {self.kind} request was answered before", remedy="call reply or fail exactly once")


log = logging.getLogger(__name__)


class Roster:
    """The peers of one listener.

    Args:
        gate: knows the key behind a handshake, and whether its connection lives.
        on_gone: called with (peer, reason) when a welcomed peer's connection is over.
        bounds: when a peer is gone.
        counters: what happened, by reason; shared with the listener.
    """

    def __init__(
        self, gate: Gate, on_gone: Optional[Callable[[Peer, str], None]], bounds: Bounds, counters: Counter[Any]
    ) -> None:
        self._gate = gate
        self._on_gone = on_gone
        self._bounds = bounds
        self._counters = counters
        self._peers: Dict[str, Peer] = {}
        self._by_identity: Dict[bytes, Peer] = {}

    def ready_peers(self) -> List[Peer]:
        """Welcomed peers, now."""
        return [peer for peer in list(self._peers.values()) if peer.ready]

    def is_reachable(self, peer: Peer) -> bool:
        """Tell whether a message sent to its routing id would be this peer's."""
        return not peer.disconnected and self._by_identity.get(peer.identity) is peer

    def find_sender(self, identity: bytes, user: str) -> Optional[Peer]:
        """The peer that a message came from, entered at its first one; None if it is not to be listened to."""
        peer = self._peers.get(user)
        if peer is not None:
            return peer if peer.identity == identity else None
        identity_name = self._gate.identify_peer(user)
        if identity_name is None:
            self._counters["dropped: sender has gone"] += 1
            return None
        peer = Peer(name=identity_name[1], key=identity_name[0], identity=identity, user=user)
        peer.since_s = peer.received_s = time.monotonic()
        if len(identity) != 5 or identity[0] != 0:
            # a routing id of one's own choosing could be the one of a robot that has just left: its replies go astray
            self._gate.cut_connection(user, "routing id set by the peer")
            return None
        self._peers[user] = peer
        self._by_identity[identity] = peer
        return peer

    def __len__(self) -> int:
        return len(self._peers)

    def sweep_peers(self) -> None:
        """Let go of those whose connection or lease is over, or who never said hello."""
        now = time.monotonic()
        for peer in list(self._peers.values()):
            quiet_s = self._gate.quiet_s(peer.user)
            if quiet_s is None:
                self.lose_peer(peer, "disconnected")
            elif not peer.ready and now - peer.since_s > self._bounds.hello_timeout_s:
                self.cut_peer(peer, "no hello in time")
            elif peer.ready and min(quiet_s, now - peer.received_s) > self._bounds.peer_timeout_s:
                self.cut_peer(peer, "lease ran out", f"nothing heard for {self._bounds.peer_timeout_s:g} s")

    def cut_peer(self, peer: Peer, reason: str, notified: str = "") -> None:
        """Break the connection of a peer; ``on_gone`` gets ``notified``, where it is another reason."""
        self._gate.cut_connection(peer.user, reason)
        self.lose_peer(peer, notified or reason)

    def lose_peer(self, peer: Peer, reason: str) -> None:
        """The peer is gone."""
        if peer.disconnected:
            return
        peer.disconnected = True
        self._peers.pop(peer.user, None)
        if self._by_identity.get(peer.identity) is peer:
            del self._by_identity[peer.identity]
        peer.open_requests.clear()
        if peer.ready and self._on_gone is not None:
            try:
                self._on_gone(peer, reason)
            except Exception:
                # the application's bug must not take the link down with it
                log.exception("link: gone() failed")

    def clear_peers(self, reason: str) -> None:
        """Everybody is gone."""
        for peer in list(self._peers.values()):
            self.lose_peer(peer, reason)
