"""What a listener sends: from any thread by a queue, on the listener's own at once, bounded by what peers read."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from typing import Any, Callable, Deque, List, Optional, Tuple

import zmq

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError
from edge_offload.link.estimate.estimator import SAMPLE_BYTES
from edge_offload.link.estimate.scheduling import ThreadCounts
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import Limits, Message
from edge_offload.link.transport.peers import COMPLAINTS_PER_S, Peer, Roster

log = logging.getLogger(__name__)


class Outgoing:
    """The way from a listener to its peers. Used by the listener's thread, but for :meth:`post_message`.

    Args:
        limits: bounds on one message.
        clock: monotonic seconds, for the times that a message tells.
        wakeup: wakes the listener's thread.
        counters: what happened, by reason; shared with the listener.
        counts: what threads here have waited for a processor; answers to what tells of the link's rate tell it.
    """

    def __init__(
        self, limits: Limits, clock: Callable[[], float], wakeup: Wakeup, counters: Counter[Any], counts: ThreadCounts
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._wakeup = wakeup
        self._counters = counters
        self._counts = counts
        self._outbox: Deque[Tuple[Peer, Message]] = deque()

    def open_socket(self, socket: zmq.Socket[Any], roster: Roster) -> None:
        """The listener has started: what is sent goes this way, to these peers."""
        self._socket = socket
        self._roster = roster

    def peers(self) -> List[Peer]:
        """Welcomed peers, now."""
        return self._roster.ready_peers()

    def post_message(self, peer: Peer, message: Message) -> None:
        """Have ``message`` sent; from any thread.

        Raises:
            BadInput: it cannot be sent.
        """
        # checked here so that the caller learns of a bad body; packed again with the time of sending
        header = messages.pack_header(message, self._limits)
        problem = messages.first_over([len(header) + 64, *(view.nbytes for view in message.buffers)], self._limits)
        if problem:
            raise BadInput(problem, remedy="send it in pieces")
        self._outbox.append((peer, message))
        self._wakeup.wake_thread()

    def flush_posted(self) -> None:
        """Send what was posted."""
        while self._outbox:
            peer, message = self._outbox.popleft()
            self.send_to_peer(peer, message)

    def send_to_peer(self, peer: Peer, message: Message) -> None:
        """Give ``message`` to libzmq now; a peer that has too much unread is cut, one that has gone gets nothing."""
        if not self._roster.is_reachable(peer):
            self._counters["dropped: receiver has gone"] += 1
            return
        if message.type in ("reply", "error"):
            bytes_up = peer.open_requests.pop(message.id, 0)
            if len(message.times) == 1:
                message.times = (message.times[0], self._clock())
            if message.type == "reply" and bytes_up + sum(view.nbytes for view in message.buffers) >= SAMPLE_BYTES:
                message.body = {**message.body, **self._counts.to_body(time.monotonic())}
        parts: List[Any] = [messages.pack_header(message, self._limits), *message.buffers]
        while peer.unsent and peer.unsent[0][0].done:
            peer.unsent.popleft()
        if sum(size for _, size in peer.unsent) > 2 * self._limits.max_message_bytes:
            self._roster.cut_peer(peer, "does not read its replies")
            return
        try:
            self._socket.send(peer.identity, zmq.SNDMORE | zmq.NOBLOCK)
            for index, part in enumerate(parts):
                flags = zmq.NOBLOCK | (zmq.SNDMORE if index < len(parts) - 1 else 0)
                # parts from 64 KiB on travel without being copied into libzmq
                if len(part) >= 64 << 10:
                    tracker = self._socket.send(part, flags, copy=False, track=True)
                    peer.unsent.append((tracker, len(part)))
                else:
                    self._socket.send(part, flags)
        except zmq.Again:
            self._roster.cut_peer(peer, "does not read its replies")
        except zmq.ZMQError as error:
            self._counters["dropped: receiver has gone"] += 1
            self._roster.lose_peer(peer, f"connection broke ({error.strerror})")
        if message.type == "refused":
            self._roster.lose_peer(peer, str(message.body.get("cause", "refused")))

    def refuse_peer(self, peer: Peer, error: EdgeOffloadError) -> None:
        """Turn a peer away, and tell it why."""
        self.send_to_peer(peer, Message("refused", peer.epoch, 0, "", messages.error_body(error)))

    def report_malformed(self, peer: Peer, id_: int, error: ProtocolError, epoch: Optional[int] = None) -> None:
        """Count a malformed message and tell its sender, but not for every one of a flood."""
        self._counters["malformed"] += 1
        now = time.monotonic()
        if len(peer.complaints) == COMPLAINTS_PER_S and now - peer.complaints[0] < 1.0:
            return
        peer.complaints.append(now)
        log.warning("link: dropped a message of %s: %s", peer.name, error)
        self.send_to_peer(
            peer, Message("error", peer.epoch if epoch is None else epoch, id_, "", messages.error_body(error))
        )
