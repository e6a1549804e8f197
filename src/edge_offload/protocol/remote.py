"""How the robot's half reaches an executor, wherever that is."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from edge_offload.errors import LinkLost
from edge_offload.ir.trace.calls import Buffer
from edge_offload.protocol.arriving import Arriving

#: Kinds of the requests that a server answers for virtual devices.
RUN, STAGE, HAVE, PUT, RESUME, END, SCHEMAS = (
    "device.run", "device.stage", "device.have", "device.put", "device.resume", "device.end", "device.schemas",
)  # fmt: skip


class SessionLost(LinkLost):
    """There is a server, but it knows nothing of the session: what the program had on the device is not there."""


class SessionEnded(SessionLost):
    """The session refused a message or its GPU failed: the cause says which. What it holds counts no more."""


class Remote:
    """Sends messages in order; each answer arrives in a Future, perhaps in parts.

    Attributes:
        bytes_up, bytes_down, messages: what has travelled.
        refused: operators that are others where it leads, each with the reason.
        facts: what the device there is (:func:`edge_offload.execute.devices.device_facts`); empty when it is not known.
        comes_back: whether there may be another session when this one is lost (:meth:`renew`).
    """

    comes_back = False

    def __init__(self) -> None:
        self.bytes_up = self.bytes_down = self.messages = 0
        self.refused: Mapping[str, str] = {}
        self.facts: Mapping[str, Any] = {}

    def submit(self, buffers: Sequence[Buffer], keep: bool = False) -> Arriving:
        """Send one message (see :mod:`edge_offload.protocol.messages`); the Future may fail with LinkLost.

        ``keep``: what its buffers hold (weights) is likely to be sent again when the program next starts.

        Raises:
            LinkLost: there is nobody to send it to.
        """
        raise LinkLost("the virtual device has no server yet")

    def renew(self) -> None:
        """After SessionLost: go on with a session that knows nothing.

        Raises:
            EdgeOffloadError: that cannot be.
        """
        raise LinkLost("there is no other session")

    def is_back(self) -> bool:
        """Whether, after it was lost, :meth:`renew` has something to go on with."""
        return False

    def close(self) -> None:
        """End the session."""
