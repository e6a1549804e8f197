"""Recent frames by stamp, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, List, Optional, Tuple, TypeVar

from edge_offload.errors import BadInput

T = TypeVar("T")

LIMIT_BYTES = 64 << 20
"""Default limit of all frames in a ring."""

LIMIT_FRAMES = 64
"""Most frames in a ring: older results are of no use."""


class FrameRing(Generic[T]):
    """The newest frames by stamp or instant (ns). The oldest are evicted; a stamp that goes back clears the ring.

    Args:
        limit_bytes: limit of all frames together; the newest is stored whatever its size.
        limit_frames: most frames.

    Raises:
        BadInput: a limit that is not positive.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES, limit_frames: int = LIMIT_FRAMES) -> None:
        if limit_bytes < 1 or limit_frames < 1:
            raise BadInput(f"ring of {limit_bytes} bytes and {limit_frames} frames", remedy="both must be positive")
        self._limits = limit_bytes, limit_frames
        self._frames: OrderedDict[int, Tuple[T, int]] = OrderedDict()
        self.size = 0

    def put(self, stamp: int, frame: T, size: int) -> bool:
        """Store a frame of ``size`` bytes; false: its stamp went back, so that all others were removed.

        A frame of the same stamp is replaced.
        """
        follows = not self._frames or stamp >= self.newest
        if not follows:
            self.clear()
        self.size += size - self._frames.pop(stamp, (frame, 0))[1]
        self._frames[stamp] = (frame, size)
        while len(self._frames) > 1 and (self.size > self._limits[0] or len(self._frames) > self._limits[1]):
            self.size -= self._frames.popitem(last=False)[1][1]
        return follows

    def clear(self) -> None:
        """Remove all frames."""
        self._frames.clear()
        self.size = 0

    @property
    def newest(self) -> int:
        """Stamp of the newest frame, ns.

        Raises:
            BadInput: there is none.
        """
        if not self._frames:
            raise BadInput("the ring holds no frame")
        return next(reversed(self._frames))

    def get(self, stamp: int) -> Optional[T]:
        """Return the frame of this stamp; None: it is not stored."""
        return self._frames.get(stamp, (None, 0))[0]

    def stamps_between(self, after: int, until: int) -> List[int]:
        """Return the stamps above ``after`` up to ``until``, ascending."""
        return [stamp for stamp in self._frames if after < stamp <= until]

    def __len__(self) -> int:
        return len(self._frames)
