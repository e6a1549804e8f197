"""When a client's thread looks at an answer that arrives: at its first data, and then from time to time."""

from __future__ import annotations

import math
import time
from typing import Any, Optional

import zmq

from edge_offload.link.sockets.descriptors import ARRIVAL_SAMPLE_S, ArrivalWatch, Deliveries


class Arrivals:
    """Data of one connection that arrive, by the kernel's counts. Used by one thread.

    Attributes:
        arrived: bytes so far.
    """

    def __init__(self) -> None:
        self.arrived = 0
        self._arrived_s = -math.inf
        self._watch: Optional[ArrivalWatch] = None

    def watch_connection(self, descriptor: int) -> None:
        """The connection is made."""
        self._watch = ArrivalWatch(descriptor)

    def wake_at_data(self, poller: zmq.Poller, awaited: bool) -> None:
        """Have ``poller`` wake its thread at the first data of an answer."""
        if self._watch is not None:
            waits = awaited and math.isinf(self.due_s(time.monotonic()))
            if waits:
                self._watch.clear_arrivals()
            poller.register(self._watch.descriptor, zmq.POLLIN if waits else 0)

    def count_arrived(self, now: float, counters: Any) -> None:
        """Take in a look of the kernel's :class:`~edge_offload.link.sockets.descriptors.Counters`."""
        if counters.arrived != self.arrived:
            self.arrived, self._arrived_s = counters.arrived, now

    def due_s(self, now: float) -> float:
        """Return when the next look is due; inf while no data have arrived of late."""
        return now + ARRIVAL_SAMPLE_S if now - self._arrived_s < Deliveries.GAP * ARRIVAL_SAMPLE_S else math.inf

    def close(self) -> None:
        """The connection is over."""
        if self._watch is not None:
            self._watch.close()
