"""Who is connected to a listener: peers by handshake and by routing id, and when each of them is gone.

Used by the listener's thread; :meth:`Roster.ready` may be called by any.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any, Callable, Dict, List, Optional

from edge_offload.link.transport.gate import Gate
from edge_offload.link.transport.peers import Peer

log = logging.getLogger(__name__)


class Roster:
    """The peers of one listener.

    Args:
        gate: knows the key behind a handshake, and whether its connection lives.
        gone: called with (peer, reason) when a welcomed peer's connection is over.
        peer_timeout_s, hello_timeout_s: as :class:`~edge_offload.link.transport.listener.Listener`.
        counters: what happened, by reason; shared with the listener.
    """

    def __init__(
        self,
        gate: Gate,
        gone: Optional[Callable[[Peer, str], None]],
        peer_timeout_s: float,
        hello_timeout_s: float,
        counters: Counter[Any],
    ) -> None:
        self._gate = gate
        self._gone = gone
        self._peer_timeout_s = peer_timeout_s
        self._hello_timeout_s = hello_timeout_s
        self._counters = counters
        self._peers: Dict[str, Peer] = {}
        self._by_identity: Dict[bytes, Peer] = {}

    def ready(self) -> List[Peer]:
        """Welcomed peers, now."""
        return [peer for peer in list(self._peers.values()) if peer.ready]

    def reachable(self, peer: Peer) -> bool:
        """Whether a message sent to its routing id would be this peer's."""
        return not peer.gone and self._by_identity.get(peer.identity) is peer

    def sender(self, identity: bytes, user: str) -> Optional[Peer]:
        """The peer that a message came from, entered at its first one; None if it is not to be listened to."""
        peer = self._peers.get(user)
        if peer is not None:
            return peer if peer.identity == identity else None
        known = self._gate.identity(user)
        if known is None:
            self._counters["dropped: sender has gone"] += 1
            return None
        peer = Peer(name=known[1], key=known[0], identity=identity, user=user)
        peer.since_s = peer.heard_s = time.monotonic()
        if len(identity) != 5 or identity[0] != 0:
            # a routing id of one's own choosing could be the one of a robot that has just left: its replies go astray
            self._gate.cut(user, "routing id set by the peer")
            return None
        self._peers[user] = peer
        self._by_identity[identity] = peer
        return peer

    def sweep(self) -> None:
        """Let go of those whose connection or lease is over, or who never said hello."""
        now = time.monotonic()
        for peer in list(self._peers.values()):
            quiet_s = self._gate.quiet_s(peer.user)
            if quiet_s is None:
                self.lose(peer, "disconnected")
            elif not peer.ready and now - peer.since_s > self._hello_timeout_s:
                self.cut(peer, "no hello in time")
            elif peer.ready and min(quiet_s, now - peer.heard_s) > self._peer_timeout_s:
                self.cut(peer, "lease ran out", f"nothing heard for {self._peer_timeout_s:g} s")

    def cut(self, peer: Peer, reason: str, told: str = "") -> None:
        """Break the connection of a peer; ``gone`` is told the second reason, where it is another."""
        self._gate.cut(peer.user, reason)
        self.lose(peer, told or reason)

    def lose(self, peer: Peer, reason: str) -> None:
        """The peer is gone."""
        if peer.gone:
            return
        peer.gone = True
        self._peers.pop(peer.user, None)
        if self._by_identity.get(peer.identity) is peer:
            del self._by_identity[peer.identity]
        peer.open_requests.clear()
        if peer.ready and self._gone is not None:
            try:
                self._gone(peer, reason)
            except Exception:
                # the application's bug must not take the link down with it
                log.exception("link: gone() failed")

    def clear(self, reason: str) -> None:
        """Everybody is gone."""
        for peer in list(self._peers.values()):
            self.lose(peer, reason)
