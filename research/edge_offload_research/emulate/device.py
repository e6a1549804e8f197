"""An emulated device: it answers after the time of a table, with outputs that were computed once for such shapes.

``edge-offload serve --device emulated:TABLE.csv`` shows how many robots an absent device could serve. Results are not
those of the frames, and the engine's name says so (:attr:`~edge_offload.execute.module.Execution.engine`).
"""

from __future__ import annotations

import csv
import pathlib
import time
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import ENGINE
from edge_offload.execute.module import Execution, ModuleExecutor
from edge_offload.execute.tensors import specs_of
from edge_offload.server.promises.latencies import MAX_BATCH, Latencies

#: Shapes whose outputs are cached.
MAX_CACHED = 64
#: Columns of a table of latencies, and the most bytes of one.
COLUMNS = ("batch", "latency_ms")
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Emulation:
    """A device to emulate.

    Attributes:
        name: what it is called wherever results are told of: ``emulated:TABLE.csv``.
        latencies_s: of a batch of 1, 2, …; seconds.
    """

    name: str
    latencies_s: Tuple[float, ...]

    def make_executor(self, module: nn.Module) -> EmulatedExecutor:
        """Return what computes ``module`` on the device."""
        return EmulatedExecutor(module, self)


class EmulatedExecutor(ModuleExecutor):
    """Computes on the CPU the first time that it sees shapes; from then on it only takes the table's time.

    Args:
        module: what is emulated.
        device: that is emulated.
    """

    def __init__(self, module: nn.Module, device: Emulation) -> None:
        super().__init__(module)
        self.where = device.name
        self.latencies_s = device.latencies_s
        self._cached: Dict[Tuple[object, ...], Tuple[torch.Tensor, ...]] = {}

    @property
    def engine(self) -> str:
        """Name of the device."""
        return self.where

    def engine_facts(self) -> Dict[str, str]:
        """Name of the device, for the fingerprint."""
        return {ENGINE: self.where}

    def engine_state(self) -> Tuple[str, bool]:
        """State in words, and True: it needs attention."""
        return f"{self.where}: outputs are not those of the frames", True

    def run_module(self, inputs: Sequence[torch.Tensor]) -> Execution:
        """One inference."""
        return self.run_batch([inputs])[0]

    def run_batch(self, frames: Sequence[Sequence[torch.Tensor]]) -> List[Execution]:
        """Runs up to as many frames as the table has sizes; each execution has the time of the batch."""
        outputs = [self._outputs_for(inputs) for inputs in frames]
        size = len(frames)
        taken_s, end_s = self.latencies_s[size - 1], time.monotonic() + self.latencies_s[size - 1]
        while time.monotonic() < end_s:
            time.sleep(max(0.0, end_s - time.monotonic()))
        label = self.where if size == 1 else f"{self.where} batch {size}"
        return [Execution(one, taken_s, label) for one in outputs]

    def _outputs_for(self, inputs: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, ...]:
        specs = tuple(specs_of(inputs))
        outputs = self._cached.get(specs)
        if outputs is None:
            outputs = super().run_module(inputs).outputs
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[specs] = outputs
        return outputs


def load_device(name: str) -> Emulation:
    """Return the device ``emulated:TABLE.csv``.

    Raises:
        BadInput: no such table.
    """
    return Emulation(name, load_csv(pathlib.Path(name.partition(":")[2])).seconds)


def load_csv(path: pathlib.Path) -> Latencies:
    """Read latencies, in seconds, from columns ``batch`` (1, 2, …, without a gap) and ``latency_ms``.

    Raises:
        BadInput: it cannot be read, has other columns, or is no such table.
    """
    try:
        text = path.read_bytes()[: MAX_BYTES + 1].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {path}: {error}", remedy="give a CSV file: batch,latency_ms") from error
    if len(text) > MAX_BYTES:
        raise BadInput(f"{path} is no table of latencies: it has more than {MAX_BYTES} bytes")
    rows = csv.DictReader(text.splitlines())
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise BadInput(f"{path} has the columns {rows.fieldnames}", remedy=f"give {','.join(COLUMNS)}")
    values: List[object] = []
    for row in rows:
        if len(values) == MAX_BATCH or row["batch"] != str(len(values) + 1):
            raise BadInput(
                f"{path}: batch {row['batch']} stands where {len(values) + 1} should",
                remedy=f"list batches 1, 2, … without a gap, at most {MAX_BATCH}",
            )
        try:
            values.append(float(row["latency_ms"]))
        except (TypeError, ValueError) as error:
            raise BadInput(f"{path}: latency_ms of batch {row['batch']} is {row['latency_ms']!r}") from error
    try:
        return Latencies(tuple(one / 1e3 for one in Latencies.parse(values).seconds))
    except BadInput as error:
        raise BadInput(f"{path}, in ms: {error.cause}", error.remedy) from error
