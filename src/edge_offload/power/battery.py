"""How long the battery lasts: energy taken out, and hours left at a given power."""

from __future__ import annotations

import math

from edge_offload.errors import BadInput

DEFAULT_CAPACITY_WH = 21.6
JOULES_PER_WH = 3600.0


class Battery:
    """A battery of ``capacity_wh`` watt-hours, ``charge`` (0 to 1) full at the start. An estimate: no gauge is read.

    Raises:
        BadInput: capacity not positive, or charge not within 0 to 1.
    """

    def __init__(self, capacity_wh: float = DEFAULT_CAPACITY_WH, charge: float = 1.0) -> None:
        if not (math.isfinite(capacity_wh) and capacity_wh > 0):
            raise BadInput(f"battery capacity is {capacity_wh} Wh", remedy="give a positive number")
        if not 0.0 <= charge <= 1.0:
            raise BadInput(f"battery charge is {charge}", remedy="give a number from 0 to 1")
        self.capacity_j = capacity_wh * JOULES_PER_WH
        self.remaining_j = self.capacity_j * charge

    def drain(self, joules: float) -> None:
        """Take ``joules`` out (not below empty).

        Raises:
            BadInput: ``joules`` is negative or not finite.
        """
        if not (math.isfinite(joules) and joules >= 0):
            raise BadInput(f"cannot drain {joules} J")
        self.remaining_j = max(0.0, self.remaining_j - joules)

    @property
    def charge(self) -> float:
        """Fraction left, 0 to 1."""
        return self.remaining_j / self.capacity_j

    def remaining_hours(self, watts: float) -> float:
        """Hours left at ``watts``; infinity when nothing is drawn.

        Raises:
            BadInput: ``watts`` is negative or not a number.
        """
        if not watts >= 0:
            raise BadInput(f"power is {watts} W")
        return math.inf if watts == 0 else self.remaining_j / watts / JOULES_PER_WH
