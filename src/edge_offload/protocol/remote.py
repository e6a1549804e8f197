"""How the robot's half reaches an executor: one small protocol, wherever that is."""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

from edge_offload.errors import LinkLost
from edge_offload.ir.trace.calls import Buffer
from edge_offload.protocol.arriving import Arriving


class SessionLost(LinkLost):
    """There is a server, but it knows nothing of the session: what the program had on the device is not there."""


class Remote(Protocol):
    """Sends messages in order; each answer arrives in a Future, perhaps in parts.

    ``bytes_up`` and ``bytes_down`` count what travels.

    ``refused``: operators that are others where it leads, each with the reason. ``facts``: what the device there is
    (:func:`edge_offload.execute.devices.facts`); empty when it is not known.
    """

    bytes_up: int
    bytes_down: int
    messages: int
    refused: Mapping[str, str]
    facts: Mapping[str, Any]

    def submit(self, buffers: Sequence[Buffer], keep: bool = False) -> Arriving:
        """Send one message (see :mod:`edge_offload.protocol.messages`); the Future may fail with LinkLost.

        ``keep``: what its buffers hold (weights) is likely to be sent again when the program next starts.
        """
        ...

    def renew(self) -> None:
        """After Forgotten: go on with a session that knows nothing.

        Raises:
            EdgeOffloadError: that cannot be.
        """
        ...

    def close(self) -> None:
        """End the session."""
        ...
