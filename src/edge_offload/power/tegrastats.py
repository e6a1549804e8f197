"""Power rails from the lines of NVIDIA's ``tegrastats``: the way in where sysfs is closed to the user."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from typing import Callable, Dict, Optional, Tuple

from edge_offload.errors import BadInput
from edge_offload.power.ina3221 import TOTAL_RAILS
from edge_offload.power.source import PowerSource

# "VDD_IN 4181mW/4181mW" (JetPack 5, 6) and "VDD_IN 4181/4181" (JetPack 4): now / average, milliwatts
_RAIL = re.compile(r"\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+) (\d+)(?:mW)?/\d+(?:mW)?(?![\w%])")
_RAIL_NAME = re.compile(r"^(VDD|POM|VIN|VDDQ|VDDRQ|CV|SYS)")


def parse_line(line: str) -> Dict[str, float]:
    """Watts now of each rail named in one line of ``tegrastats``; empty when the line names none."""
    rails: Dict[str, float] = {}
    for name, now in _RAIL.findall(line):
        if _RAIL_NAME.match(name):
            rails[name] = int(now) * 1e-3
    return rails


def total_watts(rails: Dict[str, float]) -> float:
    """The input rail where there is one, else the sum of all rails (see :data:`ina3221.TOTAL_RAILS`)."""
    for name in TOTAL_RAILS:
        if name in rails:
            return rails[name]
    return sum(rails.values())


class Tegrastats(PowerSource):
    """A running ``tegrastats``, its newest line read in a thread.

    Args:
        command: the program; by default looked up in ``PATH``.
        interval_s: how often it reports.
        first_line_s: how long to wait for its first line.
        stale_s: age at which the newest line no longer counts.
        clock: monotonic seconds.

    Raises:
        BadInput: there is no such program, or it says nothing of power.
    """

    def __init__(
        self,
        command: Optional[str] = None,
        interval_s: float = 0.1,
        first_line_s: float = 3.0,
        stale_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        program = command or shutil.which("tegrastats")
        if program is None:
            raise BadInput("tegrastats is not in PATH", remedy="Jetson boards have it")
        self.name = "tegrastats"
        self._clock = clock
        self._stale_s = stale_s
        self._newest: Optional[Tuple[float, float]] = None
        self._first = threading.Event()
        try:
            self._process = subprocess.Popen(
                [program, "--interval", str(max(1, round(interval_s * 1e3)))],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise BadInput(f"tegrastats does not start: {error}") from error
        self._thread = threading.Thread(target=self._read, name="tegrastats", daemon=True)
        self._thread.start()
        self._first.wait(first_line_s)
        if self._newest is None:
            self.close()
            raise BadInput(f"{program} reports no power rail", remedy="run it by hand and look for VDD_IN")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            rails = parse_line(line[:4096])
            if rails:
                self._newest = (self._clock(), total_watts(rails))
                self._first.set()
        self._first.set()

    def watts(self) -> float:
        """Power now, in watts."""
        if self._newest is None or self._clock() - self._newest[0] > self._stale_s:
            raise OSError("tegrastats has stopped reporting")
        return self._newest[1]

    def close(self) -> None:
        """Let the sensor go."""
        self._process.terminate()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(2.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
