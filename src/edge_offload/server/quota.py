"""What the virtual devices of a server may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceQuota:
    """What virtual devices may take.

    Attributes:
        sessions: programs that may have a device here at once.
        sessions_per_robot: of which so many may be of one robot.
        storage_bytes: tensors of one session.
        storages: their number.
        segments: segments, and distinct calls, that one session may define before it has to forget some.
        staged_bytes: buffers of one session that wait for their message.
        message_s: seconds that one message may compute.
        lease_s: seconds that the session of a broken connection is kept.
    """

    sessions: int = 8
    sessions_per_robot: int = 4
    storage_bytes: int = 4 << 30
    storages: int = 1_000_000
    segments: int = 1_000_000
    staged_bytes: int = 256 << 20
    message_s: float = 120.0
    lease_s: float = 30.0
