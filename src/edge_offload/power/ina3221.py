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
    """Power of a board: its input rail, or the sum of its supply rails (see :mod:`edge_offload.power.boards`).

    Args:
        root: root of the file system; tests pass an artificial tree.
        rails: names of the rails to sum; by default those of :func:`boards.total_rails`.

    Raises:
        BadInput: no INA3221, or a rail is missing or not readable.
        NoTotal: the sum of the rails is not the board's power.
    """

    def __init__(self, root: Union[str, pathlib.Path] = "/", rails: Optional[Sequence[str]] = None) -> None:
        present = find_rails(root)
        if not present:
            raise BadInput("no INA3221 rail under /sys/bus/i2c/drivers/ina3221*", remedy="Jetson boards have one")
        if rails is None:
            rails = total_rails(present)
        missing = [name for name in rails if name not in present]
        if missing:
            raise BadInput(f"INA3221 has no rail {', '.join(missing)}", remedy=f"rails: {', '.join(sorted(present))}")
        self._rails = [present[name] for name in rails]
        self.name = "ina3221 " + "+".join(rails)
        try:
            self.watts()
        except OSError as error:
            raise BadInput(f"{self.name} cannot be read: {error}", remedy="check the permissions of sysfs") from error

    def watts(self) -> float:
        """Return the current sum of the rails, watts.

        Raises:
            OSError: a rail is not readable.
        """
        return sum(rail.read() for rail in self._rails)


def find_rails(root: Union[str, pathlib.Path] = "/") -> Dict[str, Rail]:
    """Find the enabled, named rails of every INA3221 and INA238 under ``root``, by name; the first of equal names."""
    candidates: List[Rail] = []
    for driver in sorted(pathlib.Path(root).glob("sys/bus/i2c/drivers/ina3221*")):
        for directory in sorted(driver.glob("*/hwmon/hwmon*")):
            candidates += _hwmon_rails(directory)
        for directory in sorted(driver.glob("*/iio:device*")):
            candidates += _iio_rails(directory)
    inputs = sorted(pathlib.Path(root).glob("sys/bus/i2c/drivers/ina238*/*/hwmon/hwmon*"))
    candidates += [_input_rail(directory, only_monitor=len(inputs) == 1) for directory in inputs]
    rails: Dict[str, Rail] = {}
    for rail in candidates:
        if rail.name not in UNUSED:
            rails.setdefault(rail.name, rail)
    return rails


def _hwmon_rails(directory: pathlib.Path) -> List[Rail]:
    rails = []
    for channel in _CHANNELS:
        voltage, current = directory / f"in{channel}_input", directory / f"curr{channel}_input"
        name = _read_text(directory / f"in{channel}_label")
        enabled = _read_text(directory / f"in{channel}_enable") != "0"
        if name not in UNUSED and enabled and voltage.exists() and current.exists():
            rails.append(Rail(name, _power_reader(voltage, current)))
    return rails


def _iio_rails(directory: pathlib.Path) -> List[Rail]:
    rails = []
    for channel in (index - 1 for index in _CHANNELS):  # iio counts channels from 0
        power = directory / f"in_power{channel}_input"
        name = _read_text(directory / f"rail_name_{channel}")
        if name not in UNUSED and power.exists():
            rails.append(Rail(name, _milliwatt_reader(power)))
    return rails


def _input_rail(directory: pathlib.Path, only_monitor: bool) -> Rail:
    """Return the rail of an INA238. A single INA238 without a label measures VIN (NVIDIA forum 366461)."""
    labels = (_read_text(directory / name) for name in ("label", "in1_label", "power1_label", "curr1_label"))
    name = next((label for label in labels if label), "VIN" if only_monitor else "")
    power = directory / "power1_input"
    # Linux, hwmon/ina238: power in microwatts, bus voltage is in1 (in0 is the shunt's)
    product = _power_reader(directory / "in1_input", directory / "curr1_input")
    return Rail(name, (lambda: _read_number(power) * 1e-6) if power.exists() else product)


def _power_reader(voltage: pathlib.Path, current: pathlib.Path) -> Callable[[], float]:
    """Make a reader of watts from a file of millivolts and a file of milliamperes."""
    return lambda: _read_number(voltage) * _read_number(current) * 1e-6


def _milliwatt_reader(power: pathlib.Path) -> Callable[[], float]:
    return lambda: _read_number(power) * 1e-3


def _read_number(path: pathlib.Path) -> float:
    """Return the number in a file of sysfs; raise OSError if it is not readable or holds none."""
    text = path.read_text(encoding="ascii", errors="replace").strip()
    try:
        return float(text)
    except ValueError:
        raise OSError(f"{path} holds {text[:40]!r}, not a number") from None


def _read_text(path: pathlib.Path) -> str:
    """Return the text of a file of sysfs; empty if it is not readable."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
