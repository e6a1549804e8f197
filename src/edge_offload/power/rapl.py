"""RAPL energy counters of Intel and AMD processors, read through the powercap tree of sysfs."""

from __future__ import annotations

import pathlib
import threading
import time
from typing import Callable, List, Optional, Tuple, Union

from edge_offload.errors import BadInput
from edge_offload.power.source import EnergyCounter


class Zone:
    """One RAPL zone: a counter in microjoules that wraps round at ``max_energy_range_uj``.

    It must be read at least once per wrap-around (262 kJ on common processors: more than 20 minutes at 200 W).
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.name = (directory / "name").read_text(encoding="ascii").strip()
        self._energy = directory / "energy_uj"
        self._range = int((directory / "max_energy_range_uj").read_text(encoding="ascii"))
        if self._range <= 0:
            raise OSError(f"{directory}: max_energy_range_uj is {self._range}")
        self._last = self._read_counter()
        self._total_uj = 0

    def _read_counter(self) -> int:
        text = self._energy.read_text(encoding="ascii").strip()
        if not text.isdigit():
            raise OSError(f"{self._energy} holds {text[:40]!r}, not a count")
        return int(text)

    def read_microjoules(self) -> int:
        """Return the energy since the construction, microjoules, corrected for wrap-arounds."""
        count_uj = self._read_counter()
        step_uj = count_uj - self._last
        self._total_uj += step_uj if step_uj >= 0 else step_uj + self._range
        self._last = count_uj
        return self._total_uj


class Rapl(EnergyCounter):
    """Energy of all processor packages, with their memory where it is counted.

    Args:
        root: root of the file system; tests pass an artificial tree.
        clock: monotonic seconds, for :meth:`watts`.

    Raises:
        BadInput: no RAPL, or its counters are not readable (since 2020 only root may).
    """

    def __init__(self, root: Union[str, pathlib.Path] = "/", clock: Callable[[], float] = time.monotonic) -> None:
        directories = _package_and_memory_zones(pathlib.Path(root) / "sys/class/powercap")
        if not directories:
            raise BadInput("no RAPL package under /sys/class/powercap/intel-rapl:*")
        try:
            self._zones = [Zone(directory) for directory in directories]
        except (OSError, ValueError) as error:
            raise BadInput(
                f"RAPL cannot be read: {error}", remedy="run as root or make /sys/class/powercap/*/energy_uj readable"
            ) from error
        self.name = "rapl " + "+".join(zone.name for zone in self._zones)
        self._clock = clock
        self._lock = threading.Lock()
        self._previous: Optional[Tuple[float, float]] = None
        self._watts = 0.0

    def joules(self) -> float:
        """Energy since the construction, joules."""
        with self._lock:
            return self._sum_joules()

    def _sum_joules(self) -> float:
        return sum(zone.read_microjoules() for zone in self._zones) * 1e-6

    def watts(self) -> float:
        """Mean power since the previous call, watts; 0 on the first."""
        with self._lock:
            now_s, joules = self._clock(), self._sum_joules()
            if self._previous is not None and now_s > self._previous[0]:
                self._watts = (joules - self._previous[1]) / (now_s - self._previous[0])
            if self._previous is None or now_s > self._previous[0]:
                self._previous = (now_s, joules)
            return self._watts


def _package_and_memory_zones(powercap: pathlib.Path) -> List[pathlib.Path]:
    """Find the zones of packages, and of parts that a package does not include (``dram``)."""
    chosen = []
    for directory in sorted(powercap.glob("intel-rapl:*")):
        try:
            name = (directory / "name").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if name.startswith("package") or name == "dram":
            chosen.append(directory)
    return chosen
