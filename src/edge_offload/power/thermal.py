"""Temperature of the robot, its throttling, and its mode of power, from the kernel and nvpmodel (Jetson)."""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
from typing import Dict, Iterator, Tuple, Union

_ZONES = pathlib.Path("/sys/class/thermal")
#: Kinds of cooling devices that slow what computes: "cpufreq-cpu0", "gpu-throttle-alert", "CPU-balanced", "Processor".
_SLOWS = re.compile("cpu|gpu|devfreq|throttle|balanced|processor", re.IGNORECASE)


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


def throttling(zones: Union[str, pathlib.Path] = _ZONES) -> str:
    """What slows this machine because it is too hot, in words; empty: nothing does, or nothing tells."""
    slowed = [f"{kind} {state} of {most}" for kind, state, most in _cooling(zones) if state > 0 and _SLOWS.search(kind)]
    return f"this machine is hot and computes more slowly: {', '.join(slowed)}" if slowed else ""


def board_values(root: Union[str, pathlib.Path] = "/") -> Dict[str, str]:
    """Figures that jetson_stats shows, by name: ``nvpmodel`` (mode of power), ``fan`` (steps); none elsewhere."""
    values, root = {}, pathlib.Path(root)
    with contextlib.suppress(OSError):
        found = re.match(r"pmode:(\d+)", (root / "var/lib/nvpmodel/status").read_text(errors="replace"))
        if found:
            number = int(found.group(1))
            values["nvpmodel"] = f"mode {number}"
            modes = (root / "etc/nvpmodel.conf").read_text(errors="replace")
            name = re.search(rf"^\s*<\s*POWER_MODEL\s+ID={number}\s+NAME=([^\s>]+)", modes, re.MULTILINE)
            values["nvpmodel"] += f" {name.group(1)}" if name else ""
    fans = [f"{state} of {most}" for kind, state, most in _cooling(root / "sys/class/thermal") if "fan" in kind.lower()]
    return {**values, "fan": ", ".join(fans)} if fans else values


def _cooling(zones: Union[str, pathlib.Path]) -> Iterator[Tuple[str, int, int]]:
    """Kind, state and highest state of each cooling device that can be read; state 0: it does nothing."""
    for folder in sorted(pathlib.Path(zones).glob("cooling_device*")):
        with contextlib.suppress(OSError, ValueError):
            kind, state, most = ((folder / name).read_text() for name in ("type", "cur_state", "max_state"))
            yield kind.strip(), int(state), int(most)


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
