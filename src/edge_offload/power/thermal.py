"""How hot the robot is, where the kernel tells: /sys/class/thermal."""

from __future__ import annotations

import math
import pathlib
from typing import Union

_ZONES = pathlib.Path("/sys/class/thermal")


def hottest_celsius(zones: Union[str, pathlib.Path] = _ZONES) -> float:
    """The highest temperature of all thermal zones (degrees Celsius); nan where there are none that can be read.

    Zones that are switched off read as an error or as something no robot is: both are left out.
    """
    found = []
    for path in sorted(pathlib.Path(zones).glob("thermal_zone*/temp")):
        try:
            celsius = int(path.read_text(encoding="ascii")) / 1000
        except (OSError, ValueError):
            continue
        if -50 < celsius < 200:
            found.append(celsius)
    return max(found, default=math.nan)


class HeatGuard:
    """Whether the robot is too hot: from ``limit`` on, until it has cooled by ``COOLER``."""

    #: Degrees by which it must cool.
    COOLER = 5.0

    def __init__(self) -> None:
        self.hot = False

    def step(self, celsius: float, limit: float) -> bool:
        """``limit`` 0: there is none. A temperature that is not known is not too high."""
        if not limit or math.isnan(celsius):
            self.hot = False
        elif celsius >= limit:
            self.hot = True
        elif celsius < limit - self.COOLER:
            self.hot = False
        return self.hot
