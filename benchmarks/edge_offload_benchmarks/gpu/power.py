"""Energy of the GPU between two moments, by NVML's own counter."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import Any, List, Tuple


class Power:
    """The first GPU's counters; NaN where NVML is absent."""

    def __init__(self) -> None:
        self._nvml: Any = None
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self._board = pynvml.nvmlDeviceGetHandleByIndex(0)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._board)
            self._nvml = pynvml

    def read_joules(self) -> float:
        """Energy since the driver was loaded, joules."""
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._board) / 1e3 if self._nvml else math.nan

    def read_watts(self) -> float:
        """Power as NVML averages it, watts."""
        return self._nvml.nvmlDeviceGetPowerUsage(self._board) / 1e3 if self._nvml else math.nan

    def read_utilisation(self) -> float:
        """Part of NVML's last sample period in which a kernel ran; NaN for a share of a GPU (MIG), which has none."""
        if self._nvml:
            with contextlib.suppress(self._nvml.NVMLError):
                return float(self._nvml.nvmlDeviceGetUtilizationRates(self._board).gpu) / 100
        return math.nan

    def memory_mb(self) -> float:
        """Memory in use, MiB."""
        return self._nvml.nvmlDeviceGetMemoryInfo(self._board).used / 2**20 if self._nvml else math.nan


class EnergyLog:
    """Samples of the counter and of the utilisation over time, while it is entered."""

    def __init__(self) -> None:
        self._power, self._stop = Power(), threading.Event()
        self._points: List[Tuple[float, float, float]] = []

    def __enter__(self) -> EnergyLog:
        threading.Thread(target=self._sample_power, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _sample_power(self) -> None:
        while not self._stop.wait(0.05):
            self._points.append((time.monotonic(), self._power.read_joules(), self._power.read_utilisation()))

    def joules_between(self, begin: float, end: float) -> float:
        """Joules between two times of the monotonic clock; NaN for a window too short for the counter."""
        inside = [point for point in self._points if begin <= point[0] <= end]
        if len(inside) < 4:
            return math.nan
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) * (end - begin)

    def utilisation_between(self, begin: float, end: float) -> float:
        """Mean utilisation of the GPU between two times of the monotonic clock; NaN without a sample."""
        inside = [point[2] for point in self._points if begin <= point[0] <= end]
        return sum(inside) / len(inside) if inside else math.nan
