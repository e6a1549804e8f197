"""Interval and batch of one robot, as if all others were like it (3.4.4, Step 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from edge_offload.errors import BadInput
from edge_offload.server.promises.latencies import Latencies

#: No robot waits longer than this many frames for its next turn, however still its scene is.
MAX_INTERVAL = 60
_NEAR = 1e-9


@dataclass(frozen=True)
class Wish:
    """What a robot was promised, and what it says of itself.

    Attributes:
        bound: accuracy that sharing the server may cost it, over having the server alone.
        slope: accuracy that it loses for each frame that a result is older.
        frame_interval: time between two of its frames, in the unit of the latencies.
        up: from the capture of a frame to its arrival, as late as nearly all come.
        down: from the end of a batch to the result's use.
        batch: the largest batch that is exact enough for it.
        usual: as ``up``, of a usual frame: so long it takes where nobody waits for those that come late; None: as long.
    """

    bound: float
    slope: float
    frame_interval: float
    up: float = 0.0
    down: float = 0.0
    batch: int = 1
    usual: Optional[float] = None

    def __post_init__(self) -> None:
        for name, least in (
            ("bound", True),
            ("slope", False),
            ("frame_interval", True),
            ("up", False),
            ("down", False),
            ("usual", False),
        ):
            value = getattr(self, name)
            if name == "usual" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise BadInput(f"{name} is {value!r}", remedy="give a finite number")
            if value < 0 or (least and value == 0):
                raise BadInput(f"{name} is {value}", remedy="give a number above 0" if least else "0 is the least")
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise BadInput(f"batch is {self.batch!r}", remedy="1 is the least")

    def age(self, service: float, up: Optional[float] = None) -> int:
        """Frames from a capture to the use of its result, if the server takes ``service``."""
        return max(1, math.ceil(((self.up if up is None else up) + service + self.down) / self.frame_interval - _NEAR))

    def planned_stride(self, service: float, interval: int) -> float:
        """How old a result is on average, in frames, if batches begin at any time.

        The newest frame there is half an interval old when its batch begins, and its result is used with the next frame
        that is taken, half an interval later: one frame more than what sending and computing take.
        """
        return (self.up + service + self.down) / self.frame_interval + 1 + (interval - 1) / 2

    def reference_stride(self, latencies: Latencies) -> float:
        """How old it is for the robot alone on this server: batch 1, the next frame when the last result has come.

        Nothing waits there: strides ``age`` to ``2 * age - 1``.
        """
        alone = self.age(latencies.batch(1), self.usual)
        return alone + (alone - 1) / 2

    def drop(self, mean_stride: float, latencies: Latencies) -> float:
        """What results of that mean age cost over the reference; never below 0."""
        return max(0.0, self.slope * (mean_stride - self.reference_stride(latencies)))


@dataclass(frozen=True)
class Settings:
    """Frames from request to request, and the largest batch that its promise allows."""

    interval: int
    batch: int


def settle(wish: Wish, latencies: Latencies) -> Settings:
    """What lets a server hold most robots of this kind: the greatest ``(batch / latency) * interval`` in the bound.

    The smaller batch wins where two are equal. A bound that nothing keeps gets what comes nearest: every frame, alone.
    """
    best, most = Settings(1, 1), -math.inf
    for batch in range(1, min(wish.batch, latencies.largest) + 1):
        room = MAX_INTERVAL + 1.0
        if wish.slope > 0:
            spare = wish.bound / wish.slope + wish.reference_stride(latencies)
            room = min(room, 2 * (spare - wish.planned_stride(latencies.batch(batch), 1)) + 1 + _NEAR)
        interval = min(MAX_INTERVAL, math.floor(room))
        held = batch / latencies.batch(batch) * interval
        if interval >= 1 and held > most * (1 + _NEAR):
            best, most = Settings(interval, batch), held
    return best
