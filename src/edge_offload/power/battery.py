"""How long a battery lasts in each mode: what is left in it over what the robot computer draws there on average."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Mapping, Protocol

from edge_offload.mode import Mode

_PER_CENT_FROM = 2.0
"""No share is so large: from there on the driver writes per cent."""


class FrameCost(Protocol):
    """A frame's latency (seconds) and energy (joules), such as :class:`edge_offload.manager.forecast.Forecast`."""

    @property
    def latency_s(self) -> float:
        """Seconds."""

    @property
    def energy_j(self) -> float:
        """Joules of the robot."""


@dataclass(frozen=True)
class Battery:
    """Contents of a ``sensor_msgs/BatteryState``.

    Attributes:
        share: of its capacity, 0 to 1; nan if unknown.
        watt_hours: left in it; nan if unknown.
    """

    share: float = math.nan
    watt_hours: float = math.nan

    @staticmethod
    def of(
        percentage: float, charge: float, capacity: float, design_capacity: float, voltage: float, percent: bool = False
    ) -> Battery:
        """From the fields of the message (ampere hours and volts; nan: not measured).

        With ``percent`` the driver writes ``percentage`` as 0 to 100, though the message's is 0 to 1.
        """
        most = 1000.0  # more is in thousandths (mAh), or nonsense: not known
        full = next((value for value in (capacity, design_capacity) if 0 < value <= most), math.nan)
        marked = any(math.isnan(value) for value in (charge, capacity, design_capacity, voltage))
        # drivers that do not write nan leave 0 in what they do not measure
        # a good battery may hold 10 % more than its data sheet says
        charge = charge if 0 < charge <= min(most, full * 1.1 if full > 0 else math.inf) else math.nan
        charged = min(charge / full, 1.0)
        share = _share(percentage, charged, percent, zero=marked)
        left = charge if math.isfinite(charge) else share * full
        # more is in thousandths (mV), or nonsense: not known
        watt_hours = left * voltage if 0 < voltage <= 1000.0 else math.nan
        return Battery(share, watt_hours)

    def hours(self, forecasts: Mapping[Mode, FrameCost]) -> Dict[Mode, float]:
        """Hours left by mode, when frame follows frame; without modes of which energy or latency is not known.

        What else the robot draws, its motors above all, is not in it.
        """
        found = {}
        for mode, forecast in forecasts.items():
            hours = self.watt_hours * forecast.latency_s / forecast.energy_j if forecast.energy_j > 0 else math.nan
            if math.isfinite(hours):
                found[mode] = hours
        return found

    def words(self, forecasts: Mapping[Mode, FrameCost]) -> str:
        """For people: ``62 %, 31 Wh; local 2.4 h, replay 6.8 h (frame after frame)``."""
        known = [f"{self.share:.0%}"] if math.isfinite(self.share) else []
        known += [f"{self.watt_hours:.0f} Wh"] if math.isfinite(self.watt_hours) else []
        hours = ", ".join(f"{mode} {value:.1f} h" for mode, value in self.hours(forecasts).items())
        return (", ".join(known) or "nothing known of it") + (f"; {hours} (frame after frame)" if hours else "")


class BatteryReader:
    """Reads the messages of one battery, and remembers whether its driver writes per cent instead of a share."""

    def __init__(self) -> None:
        self._percent = False

    def read(
        self, percentage: float, charge: float, capacity: float, design_capacity: float, voltage: float
    ) -> Battery:
        """What a message says (see :meth:`Battery.of`)."""
        self._percent = self._percent or _PER_CENT_FROM < percentage <= 100
        return Battery.of(percentage, charge, capacity, design_capacity, voltage, self._percent)


def _share(percentage: float, charged: float, percent: bool, zero: bool) -> float:
    """``percentage`` as a share from 0 to 1, whichever of both it is; else ``charged``, the share of the ampere hours.

    Negative is how drivers write unknown (-1 of MAVLink is -0.01), and 0 may be what nobody wrote (unless ``zero``).
    """
    if percentage == 0 and zero:
        return 0.0
    if not 0 < percentage <= 100:
        return charged
    if percent or percentage > _PER_CENT_FROM:
        return percentage / 100
    if percentage > 1:
        # up to 2 it may be a full battery or an empty one: ampere hours tell, if there are any
        return charged
    if math.isfinite(charged):
        return min((percentage, percentage / 100), key=lambda share: abs(share - charged))
    return percentage
