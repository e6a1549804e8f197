"""Temperature of the robot from /sys/class/thermal, and the limit above which it throttles its work."""

from __future__ import annotations

import math
import pathlib
from typing import Union

_ZONES = pathlib.Path("/sys/class/thermal")


def hottest_celsius(zones: Union[str, pathlib.Path] = _ZONES) -> float:
    """Return the highest temperature of all thermal zones, degrees Celsius; nan where none is readable.

    Disabled zones give an error or a value outside -50 to 200 °C, and are skipped.
    """
    temperatures = []
    for path in sorted(pathlib.Path(zones).glob("thermal_zone*/temp")):
        try:
            celsius = int(path.read_text(encoding="ascii")) / 1000
        except (OSError, ValueError):
            continue
        if -50 < celsius < 200:
            temperatures.append(celsius)
    return max(temperatures, default=math.nan)


class HeatGuard:
    """Overheating flag with hysteresis: set at ``limit``, cleared ``COOLER`` degrees below it."""

    #: Degrees Celsius of hysteresis.
    COOLER = 5.0

    def __init__(self) -> None:
        self.hot = False

    def step(self, celsius: float, limit: float) -> bool:
        """Update and return the flag; false where ``limit`` is 0 (none) or the temperature is nan (unknown)."""
        if not limit or math.isnan(celsius):
            self.hot = False
        elif celsius >= limit:
            self.hot = True
        elif celsius < limit - self.COOLER:
            self.hot = False
        return self.hot
