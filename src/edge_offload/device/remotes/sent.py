"""Messages on the way to the server, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional

from edge_offload.device.remotes.ahead import InputsAhead
from edge_offload.ir.trace.calls import Buffer
from edge_offload.link.transport.replies import Reply
from edge_offload.protocol import payloads
from edge_offload.protocol.arriving import PendingAnswer


@dataclass
class SentMessage:
    """A message that has not been answered: enough to send it again.

    Attributes:
        number: of the session's messages.
        buffers, coded: what it consists of, and which of them are coded.
        retain: whether its buffers are likely to come again.
        give_up_s: when it is not sent again any more (monotonic seconds).
        answer: what its sender waits for.
        attempt, parts: times that it was sent; parts of the answer received by the latest.
        ahead: inputs that were sent before it.
    """

    number: int
    buffers: List[Buffer]
    coded: List[payloads.Coded]
    retain: bool
    give_up_s: float
    answer: PendingAnswer = field(default_factory=PendingAnswer)
    attempt: int = 0
    parts: int = 0
    ahead: Optional[InputsAhead] = None


@dataclass
class Weights:
    """Transfer of the buffers that are likely to come again (bytes)."""

    sent: int = 0
    cached: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0


@dataclass
class TimeSpent:
    """Seconds since the last :meth:`reset`, over all messages; the two ways are off by at most ``clock_error_s``.

    Of ``server_s``, ``compute_s`` is what the session took to run the messages, without codecs and queues. Of
    ``encode_s`` and ``uplink_s``, ``ahead_s`` passed before the message was submitted (:meth:`LinkRemote.send_ahead`).
    """

    encode_s: float = 0.0
    uplink_s: float = 0.0
    server_s: float = 0.0
    compute_s: float = 0.0
    downlink_s: float = 0.0
    decode_s: float = 0.0
    ahead_s: float = 0.0
    clock_error_s: float = 0.0

    def reset(self) -> None:
        """Count from here."""
        self.encode_s = self.uplink_s = self.server_s = self.compute_s = 0.0
        self.downlink_s = self.decode_s = self.ahead_s = self.clock_error_s = 0.0

    def add_reply(self, reply: Reply, ahead: Optional[InputsAhead]) -> None:
        """Add the times of a message, and of the inputs that were sent before it."""
        transfer = reply.transfer
        self.uplink_s += transfer.uplink_s
        self.server_s += max(0.0, transfer.server_sent_s - transfer.server_received_s)
        compute_s = reply.body.get("compute_s", 0.0)
        self.compute_s += compute_s if isinstance(compute_s, float) and 0 <= compute_s < 1e6 else 0.0
        self.downlink_s += transfer.downlink_s
        self.clock_error_s = max(self.clock_error_s, transfer.clock_error_s)
        if ahead is not None:
            self.encode_s += ahead.encode_s
            self.uplink_s += ahead.uplink_s()
            self.ahead_s += ahead.ahead_s()
