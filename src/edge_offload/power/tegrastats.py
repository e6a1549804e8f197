"""Power rails from the output of NVIDIA's ``tegrastats``, where sysfs is not readable by the user."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from typing import Callable, Dict, Optional, Tuple

from edge_offload.errors import BadInput
from edge_offload.power.boards import UNUSED, NoTotal, total_rails
from edge_offload.power.source import PowerSource

# now / average in milliwatts: "VDD_IN 4181mW/4181mW" (JetPack 5 and 6), "GPU 0/16" (JetPack 4), and with the maximum
# "VIN 29000mW/29000mW/29000mW" (JetPack 7). Similar words have another unit ("RAM 2462/7850MB") or no average
_RAIL = re.compile(r"(?<!\S)([A-Z][A-Z0-9_]*) (-?\d+)(?:mW)?(?:/-?\d+(?:mW)?){1,2}(?!\S)")


def parse_line(line: str) -> Dict[str, float]:
    """Parse the current watts of each rail in one line of ``tegrastats``."""
    return {name: int(now) * 1e-3 for name, now in _RAIL.findall(line) if name not in UNUSED}


class Tegrastats(PowerSource):
    """A running ``tegrastats``, whose output is read in a thread.

    Args:
        command: the program; by default looked up in ``PATH``.
        interval_s: interval of its reports.
        first_line_s: timeout for its first line.
        stale_s: age at which the newest line becomes invalid.
        clock: monotonic seconds.

    Raises:
        BadInput: no such program, or its output has no power rail.
        NoTotal: no sum of its rails is the board's power.
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
        self._no_total: Optional[NoTotal] = None
        self._first = threading.Event()
        try:
            self._process = subprocess.Popen(
                [program, "--interval", str(max(1, round(interval_s * 1e3)))],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise BadInput(f"tegrastats does not start: {error}") from error
        self._thread = threading.Thread(target=self._read_lines, name="tegrastats", daemon=True)
        self._thread.start()
        self._first.wait(first_line_s)
        if self._newest is None:
            self.close()
            if self._no_total is not None:
                raise self._no_total
            raise BadInput(f"{program} reports no power rail", remedy="run it and look for VDD_IN 4181mW/4205mW")

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            rails = parse_line(line[:4096])
            if not rails:
                continue
            try:
                summed = total_rails(rails)
            except NoTotal as error:
                self._no_total = error
            else:
                self.name = "tegrastats " + "+".join(summed)
                self._newest = (self._clock(), sum(rails[name] for name in summed))
            self._first.set()
        self._first.set()

    def watts(self) -> float:
        """Power now, in watts."""
        if self._newest is None or self._clock() - self._newest[0] > self._stale_s:
            raise OSError("tegrastats has stopped reporting")
        return self._newest[1]

    def close(self) -> None:
        """End the program."""
        self._process.terminate()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(2.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
