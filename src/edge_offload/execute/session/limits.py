"""What one session of the virtual device may hold, and bring back in one answer."""

from __future__ import annotations

from dataclasses import dataclass

from edge_offload.errors import BadInput, OutOfMemory


@dataclass(frozen=True)
class SessionLimits:
    """Most bytes and storages that it may hold, calls, segments and words of a segment that it may define."""

    storage_bytes: int = 8 << 30
    storages: int = 1_000_000
    operators: int = 1_000_000
    segments: int = 1_000_000
    segment_codes: int = 1 << 20

    def check_room(self, allocated: int, more: int) -> None:
        """Raise OutOfMemory if a session that holds so many bytes may not hold so many more."""
        if more < 0 or allocated + more > self.storage_bytes:
            raise OutOfMemory(
                f"CUDA out of memory. Tried to allocate {more} bytes beside {allocated}, where the server lets a "
                f"program hold {self.storage_bytes >> 20} MiB",
                remedy="free tensors, or give the program more: edge-offload serve --device-memory-mb (edge_offload)",
            )

    def check_answer(self, size: int) -> None:
        """Raise BadInput if one answer would bring back too much: a tensor may be larger than its storage."""
        if size > self.storage_bytes:
            raise BadInput(
                f"one answer would bring back more than {self.storage_bytes >> 20} MiB",
                remedy="read less at once, or raise the server's memory limit per session",
            )
