"""Fallback from a GPU to the CPU, and the pauses before the GPU is used again."""

from __future__ import annotations

import math
import time

from edge_offload.errors import EdgeOffloadError

#: Seconds before a GPU whose memory ran out is used again: the first pause, which doubles every time, and the longest.
PAUSE_S, MOST_PAUSE_S = 2.0, 60.0


class CpuFallback:
    """Fallback from a GPU to the CPU: for a while after its memory ran out, for good after it was lost.

    Args:
        device: name of the GPU, such as ``cuda:0``.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._reason = ""
        self._pause_s = PAUSE_S
        self._until_s = 0.0

    def stands_in(self, now_s: float) -> str:
        """Return the reason of the fallback at ``now_s`` (monotonic seconds); empty: the GPU computes."""
        return self._reason if now_s < self._until_s else ""

    def note_failure(self, error: EdgeOffloadError, for_good: bool) -> str:
        """Start the fallback after a failure of the GPU; return its reason."""
        self._until_s = math.inf if for_good else time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
        self._reason = f"computed on the CPU in place of {self._device}: {error}"
        return self._reason

    def note_success(self) -> None:
        """Start from the first pause again: the GPU has computed."""
        self._pause_s = PAUSE_S
