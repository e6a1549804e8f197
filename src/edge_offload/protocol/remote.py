"""Interface through which the virtual device reaches an executor, in this process or on a server."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from edge_offload.errors import LinkLost
from edge_offload.ir.trace.calls import Buffer
from edge_offload.protocol.arriving import PendingAnswer

#: Kinds of the requests that a server answers for virtual devices.
RUN, STAGE, AHEAD, HAVE, PUT, RESUME, END, SCHEMAS = (
    "device.run", "device.stage", "device.ahead", "device.have", "device.put", "device.resume", "device.end",
    "device.schemas",
)  # fmt: skip


class SessionLost(LinkLost):
    """The server has no such session: the program's storages on the device are lost."""


class SessionEnded(SessionLost):
    """The session rejected a message or its GPU failed, as the cause says. Its storages are no longer valid."""


class Remote:
    """Sends messages in order; each answer arrives in a Future, in one or several parts.

    Attributes:
        bytes_up, bytes_down, messages: totals sent and received.
        refused: operators whose schema differs at the executor, each with the reason.
        facts: description of the device (:func:`edge_offload.execute.devices.device_facts`); empty: unknown.
        renewable: a lost session can be replaced by a new one (:meth:`renew`).
    """

    renewable = False

    def __init__(self) -> None:
        self.bytes_up = self.bytes_down = self.messages = 0
        self.refused: Mapping[str, str] = {}
        self.facts: Mapping[str, Any] = {}

    def submit(self, buffers: Sequence[Buffer], reusable: bool = False) -> PendingAnswer:
        """Send one message (see :mod:`edge_offload.protocol.messages`); the Future may fail with LinkLost.

        ``reusable``: its buffers (weights) are likely to be sent again at the program's next start.

        Raises:
            LinkLost: there is no connection.
        """
        raise LinkLost("the virtual device has no server yet")

    def send_ahead(self, inputs: Sequence[Buffer]) -> None:
        """Send an inference's inputs before its turn, so that the message that contains them has a short way.

        Nothing is sent where that gains nothing. A lost connection is reported by :meth:`submit`.
        """

    def renew(self) -> None:
        """Open an empty session after SessionLost.

        Raises:
            EdgeOffloadError: none can be opened.
        """
        raise LinkLost("there is no other session")

    def can_renew(self) -> bool:
        """Return whether :meth:`renew` would find a server, after the session was lost."""
        return False

    def close(self) -> None:
        """End the session."""
