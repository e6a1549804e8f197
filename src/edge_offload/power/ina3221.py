"""Current monitors of Jetson boards, read through sysfs: INA3221, and the INA238 at the input of an AGX Thor.

They are hwmon devices since JetPack 5, iio devices in JetPack 4.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Union

from edge_offload.errors import BadInput
from edge_offload.power.boards import UNUSED, total_rails
from edge_offload.power.source import PowerSource

_CHANNELS = (1, 2, 3)


@dataclass(frozen=True)
class Rail:
    """One supply rail: its name and how to read it in watts."""

    name: str
    read: Callable[[], float]


class Ina3221(PowerSource):
    """What the board draws: the rail of its input, or the sum of its supplies (see :mod:`edge_offload.power.boards`).

    Args:
        root: root of the file system; tests pass a made-up tree.
        rails: names of the rails to sum; by default those of :func:`boards.total_rails`.

    Raises:
        BadInput: no INA3221 here, one of its rails cannot be read, or a rail asked for is missing.
        NoTotal: the rails do not add up to what the board draws.
    """

    def __init__(self, root: Union[str, pathlib.Path] = "/", rails: Optional[Sequence[str]] = None) -> None:
        found = find_rails(root)
        if not found:
            raise BadInput("no INA3221 rail under /sys/bus/i2c/drivers/ina3221*", remedy="Jetson boards have one")
        if rails is None:
            rails = total_rails(found)
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
    """Rails of every INA3221 and INA238 under ``root`` by name, without channels that are switched off or have none."""
    found: List[Rail] = []
    for driver in sorted(pathlib.Path(root).glob("sys/bus/i2c/drivers/ina3221*")):
        for directory in sorted(driver.glob("*/hwmon/hwmon*")):
            found += _hwmon_rails(directory)
        for directory in sorted(driver.glob("*/iio:device*")):
            found += _iio_rails(directory)
    inputs = sorted(pathlib.Path(root).glob("sys/bus/i2c/drivers/ina238*/*/hwmon/hwmon*"))
    found += [_input_rail(directory, alone=len(inputs) == 1) for directory in inputs]
    rails: Dict[str, Rail] = {}
    for rail in found:
        if rail.name not in UNUSED:
            rails.setdefault(rail.name, rail)
    return rails


def _hwmon_rails(directory: pathlib.Path) -> List[Rail]:
    rails = []
    for channel in _CHANNELS:
        voltage, current = directory / f"in{channel}_input", directory / f"curr{channel}_input"
        name = _text(directory / f"in{channel}_label")
        enabled = _text(directory / f"in{channel}_enable") != "0"
        if name not in UNUSED and enabled and voltage.exists() and current.exists():
            rails.append(Rail(name, _product(voltage, current)))
    return rails


def _iio_rails(directory: pathlib.Path) -> List[Rail]:
    rails = []
    for channel in (index - 1 for index in _CHANNELS):
        power = directory / f"in_power{channel}_input"
        name = _text(directory / f"rail_name_{channel}")
        if name not in UNUSED and power.exists():
            rails.append(Rail(name, _milliwatts(power)))
    return rails


def _input_rail(directory: pathlib.Path, alone: bool) -> Rail:
    """The one channel of an INA238. Without a label it is VIN, if it is ``alone``: NVIDIA forum 366461."""
    labels = (_text(directory / name) for name in ("label", "in1_label", "power1_label", "curr1_label"))
    name = next((label for label in labels if label), "VIN" if alone else "")
    power = directory / "power1_input"
    # Linux, hwmon/ina238: power in microwatts, bus voltage is in1 (in0 is the shunt's)
    product = _product(directory / "in1_input", directory / "curr1_input")
    return Rail(name, (lambda: _number(power) * 1e-6) if power.exists() else product)


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
