"""Power and load of NVIDIA GPU boards through NVML (package ``pynvml``, only where it is installed)."""

from __future__ import annotations

import importlib
import math
from typing import Any, List, Optional

from edge_offload.errors import BadInput
from edge_offload.power.source import PowerSource


def _start_nvml(module: Optional[Any]) -> Any:
    """Import and initialise NVML.

    Raises:
        BadInput: no binding or no driver.
    """
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError:
            raise BadInput("NVML: pynvml is not installed", remedy="pip install nvidia-ml-py") from None
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        raise BadInput(f"NVML: {error}", remedy="is an NVIDIA driver loaded?") from error
    return module


class GpuLoad:
    """Utilisation of all GPU boards that NVML reports.

    Args:
        module: the NVML binding; by default ``pynvml`` is imported.

    Attributes:
        absent: reason why the load is unknown; empty where it is known.
    """

    def __init__(self, module: Optional[Any] = None) -> None:
        self.absent = ""
        try:
            self._nvml = _start_nvml(module)
        except BadInput as error:
            self.absent = str(error)

    def mean_share(self) -> float:
        """Return the mean load over the boards, 0 to 1; nan where unknown."""
        if self.absent:
            return math.nan
        nvml = self._nvml
        try:
            boards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            rates = [float(nvml.nvmlDeviceGetUtilizationRates(board).gpu) for board in boards]
        except nvml.NVMLError:
            return math.nan
        return sum(rates) / len(rates) / 100.0 if rates else math.nan

    def close(self) -> None:
        """Shut NVML down."""
        if not self.absent:
            self._nvml.nvmlShutdown()
            self.absent = "closed"


class Nvml(PowerSource):
    """Sum over all GPU boards that NVML can read.

    Args:
        module: the NVML binding; by default ``pynvml`` is imported.

    Raises:
        BadInput: no binding, no driver, or no board that reports its power.
    """

    def __init__(self, module: Optional[Any] = None) -> None:
        self._nvml = module = _start_nvml(module)
        self._boards: List[Any] = []
        names: List[str] = []
        problem = "no GPU"
        try:
            for index in range(module.nvmlDeviceGetCount()):
                board = module.nvmlDeviceGetHandleByIndex(index)
                try:
                    module.nvmlDeviceGetPowerUsage(board)
                except module.NVMLError as error:  # integrated GPUs do not report it
                    problem = str(error)
                    continue
                name = module.nvmlDeviceGetName(board)
                self._boards.append(board)
                names.append(name.decode() if isinstance(name, bytes) else str(name))
        except module.NVMLError as error:
            problem = str(error)
        if not self._boards:
            self.close()
            raise BadInput(f"NVML: no board reports its power ({problem})")
        self.name = "nvml " + "+".join(names)

    def watts(self) -> float:
        """Power now, in watts."""
        try:
            return sum(float(self._nvml.nvmlDeviceGetPowerUsage(board)) for board in self._boards) * 1e-3
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    def close(self) -> None:
        """Shut NVML down."""
        self._nvml.nvmlShutdown()
