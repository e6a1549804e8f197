"""INA3221 current monitors of Jetson boards, read through sysfs (hwmon of JetPack 5 and 6, iio of JetPack 4)."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

from edge_offload.errors import BadInput
from edge_offload.power.source import PowerSource

TOTAL_RAILS: Tuple[str, ...] = ("VDD_IN", "POM_5V_IN")
"""Rails that carry the whole module's input. Where there is one, the other rails are parts of it."""

_CHANNELS = (1, 2, 3)
_UNUSED = ("", "NC", "N/C")


@dataclass(frozen=True)
class Rail:
    """One supply rail: its name and how to read it in watts."""

    name: str
    read: Callable[[], float]


class Ina3221(PowerSource):
    """Power of the module's input rail, or the sum of all rails on boards that do not monitor their input.

    Args:
        root: root of the file system; tests pass a made-up tree.
        rails: names of the rails to sum; by default the first of :data:`TOTAL_RAILS` present, else every rail.

    Raises:
        BadInput: no INA3221 here, none of its rails can be read, or a rail asked for is missing.
    """

    def __init__(self, root: Union[str, pathlib.Path] = "/", rails: Optional[Sequence[str]] = None) -> None:
        found = find_rails(root)
        if not found:
            raise BadInput("no INA3221 rail under /sys/bus/i2c/drivers/ina3221*", remedy="Jetson boards have one")
        if rails is None:
            total = [name for name in TOTAL_RAILS if name in found]
            rails = total[:1] or sorted(found)
        missing = [name for name in rails if name not in found]
        if missing:
            raise BadInput(f"INA3221 has no rail {', '.join(missing)}", remedy=f"rails: {', '.join(sorted(found))}")
        self._rails = [found[name] for name in rails]
        self.name = "ina3221 " + "+".join(rails)
        try:
            self.watts()
        except OSError as error:
            raise BadInput(f"{self.name} cannot be read: {error}", remedy="check the permissions of sysfs") from error

    def watts(self) -> float:
        """Power now, in watts."""
        return sum(rail.read() for rail in self._rails)

    def rails(self) -> Dict[str, float]:
        """Watts of each rail that makes up the total."""
        return {rail.name: rail.read() for rail in self._rails}


def find_rails(root: Union[str, pathlib.Path] = "/") -> Dict[str, Rail]:
    """Rails of every INA3221 under ``root``, by name. Channels without a name, or switched off, are left out."""
    found: List[Rail] = []
    for driver in sorted(pathlib.Path(root).glob("sys/bus/i2c/drivers/ina3221*")):
        for directory in sorted(driver.glob("*/hwmon/hwmon*")):
            found += _hwmon_rails(directory)
        for directory in sorted(driver.glob("*/iio:device*")):
            found += _iio_rails(directory)
    rails: Dict[str, Rail] = {}
    for rail in found:
        rails.setdefault(rail.name, rail)
    return rails


def _hwmon_rails(directory: pathlib.Path) -> List[Rail]:
    rails = []
    for channel in _CHANNELS:
        voltage, current = directory / f"in{channel}_input", directory / f"curr{channel}_input"
        name = _text(directory / f"in{channel}_label")
        enabled = _text(directory / f"in{channel}_enable") != "0"
        if name not in _UNUSED and enabled and voltage.exists() and current.exists():
            rails.append(Rail(name, _product(voltage, current)))
    return rails


def _iio_rails(directory: pathlib.Path) -> List[Rail]:
    rails = []
    for channel in (index - 1 for index in _CHANNELS):
        power = directory / f"in_power{channel}_input"
        name = _text(directory / f"rail_name_{channel}")
        if name not in _UNUSED and power.exists():
            rails.append(Rail(name, _milliwatts(power)))
    return rails


def _product(voltage: pathlib.Path, current: pathlib.Path) -> Callable[[], float]:
    """Watts from a file of millivolts and a file of milliamperes."""
    return lambda: _number(voltage) * _number(current) * 1e-6


def _milliwatts(power: pathlib.Path) -> Callable[[], float]:
    return lambda: _number(power) * 1e-3


def _number(path: pathlib.Path) -> float:
    text = path.read_text(encoding="ascii", errors="replace").strip()
    try:
        return float(text)
    except ValueError:
        raise OSError(f"{path} holds {text[:40]!r}, not a number") from None


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
