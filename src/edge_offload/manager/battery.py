"""How long a battery lasts in each mode: what is left in it over what the robot computer draws there on average."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Mapping

from edge_offload.manager.forecast import Forecast
from edge_offload.mode import Mode


@dataclass(frozen=True)
class Battery:
    """What ``sensor_msgs/BatteryState`` says.

    Attributes:
        share: of its capacity, 0 to 1; nan if unknown.
        watt_hours: left in it; nan if unknown.
    """

    share: float = math.nan
    watt_hours: float = math.nan

    @staticmethod
    def of(percentage: float, charge: float, capacity: float, design_capacity: float, voltage: float) -> Battery:
        """From the fields of the message (ampere hours and volts; nan: not measured)."""
        full = next((value for value in (capacity, design_capacity) if math.isfinite(value) and value > 0), math.nan)
        share = percentage if 0 <= percentage <= 1 else charge / full
        left = charge if math.isfinite(charge) and charge >= 0 else share * full
        watt_hours = left * voltage if voltage > 0 else math.nan
        return Battery(share if 0 <= share <= 1 else math.nan, watt_hours)

    def hours(self, forecasts: Mapping[Mode, Forecast]) -> Dict[Mode, float]:
        """Hours left by mode, when frame follows frame; without modes of which energy or latency is not known.

        What else the robot draws, its motors above all, is not in it.
        """
        found = {}
        for mode, forecast in forecasts.items():
            hours = self.watt_hours * forecast.latency_s / forecast.energy_j if forecast.energy_j > 0 else math.nan
            if math.isfinite(hours):
                found[mode] = hours
        return found

    def words(self, forecasts: Mapping[Mode, Forecast]) -> str:
        """For people: ``62 %, 31 Wh; local 2.4 h, replay 6.8 h (frame after frame)``."""
        known = [f"{self.share:.0%}"] if math.isfinite(self.share) else []
        known += [f"{self.watt_hours:.0f} Wh"] if math.isfinite(self.watt_hours) else []
        hours = ", ".join(f"{mode} {value:.1f} h" for mode, value in self.hours(forecasts).items())
        return (", ".join(known) or "nothing known of it") + (f"; {hours} (frame after frame)" if hours else "")
