"""Who is connected and what they ask: the objects that a listener hands to the server application."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import zmq

from edge_offload.errors import BadInput
from edge_offload.link.transport import messages
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
    gone: bool = False
    since_s: float = 0.0
    heard_s: float = 0.0
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
        """Whether :meth:`reply` or :meth:`fail` was called."""
        return self._answered.locked()

    def reply(self, body: Optional[Dict[str, Any]] = None, buffers: Sequence[Any] = ()) -> None:
        """Answer. ``buffers`` (C-contiguous) must not be changed afterwards. A peer that has gone gets nothing.

        Raises:
            BadInput: the answer cannot be sent (the peer is told), or there was one already.
        """
        self._once()
        try:
            self._answer("reply", body or {}, messages.byte_views(buffers))
        except BadInput as error:
            self._answer("error", messages.error_body(error), [])
            raise

    def part(self, body: Dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        """Send something ahead of the answer, to a client that asked for it so (``on_part``).

        Raises:
            BadInput: it cannot be sent.
        """
        if not self.answered:
            self._answer("part", body, messages.byte_views(buffers))

    def fail(self, error: BaseException) -> None:
        """Answer with an error; the robot's Future raises its like."""
        self._once()
        self._answer("error", messages.error_body(error), [])

    def _answer(self, type_: str, body: Dict[str, Any], buffers: List[memoryview]) -> None:
        if self.wants_reply:
            self._post(self.peer, Message(type_, self.peer.epoch, self._id, "", body, (self.received_s,), buffers))

    def _once(self) -> None:
        if not self._answered.acquire(blocking=False):
            raise BadInput(f"the {self.kind} request was answered before", remedy="call reply or fail exactly once")
