"""Where a half of a plan is computed: by this process on its CPU or its GPU, or elsewhere on the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Mapping

import torch

from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.lanes import CopyStreams
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.network import Network
from edge_offload.split.model.plan import Side
from edge_offload.split.model.reference import HOST, on_device, shared_values
from edge_offload.split.runtime.device_half import DeviceHalf
from edge_offload.split.runtime.half import PieceHalf
from edge_offload.split.runtime.profile import Profile, measure, timed_copies
from edge_offload.split.runtime.tables import ReadyPlan


class Place:
    """This process's CPU.

    Attributes:
        device: what computes.
    """

    def __init__(self, device: torch.device = HOST) -> None:
        self.device = device

    def shared(self, network: Network) -> Mapping[int, torch.Tensor]:
        """What both sides have before the first inference, where a half finds it.

        Raises:
            OutOfMemory, DeviceLost: the GPU failed.
        """
        with gpu_failures():
            return on_device(shared_values(network.located, network.program.constants), self.device)

    def measure(self, network: Network, repeats: int, tell: Callable[[str], None] = lambda what: None) -> Profile:
        """Measure a profile; see :func:`edge_offload.split.runtime.profile.measure`."""
        return measure(network, repeats, tell=tell, device=self.device)

    def half(self, ready: ReadyPlan, side: Side, located: LocalityMap, shared: Mapping[int, torch.Tensor]) -> PieceHalf:
        """Return the values of one side during one inference."""
        return PieceHalf(located, shared, ready.sides[side].gathered)


class GpuPlace(Place):
    """The GPU of this process."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._lanes = CopyStreams(device)

    def measure(self, network: Network, repeats: int, tell: Callable[[str], None] = lambda what: None) -> Profile:
        """Measure a profile, with the times of copies."""
        return replace(super().measure(network, repeats, tell), copies=timed_copies(self.take, self.give))

    def take(self, rows: torch.Tensor) -> None:
        """Copy rows of the host to the GPU, and wait."""
        with gpu_failures():
            to, _ = self._lanes.allocate_rows(rows.shape, rows.dtype)
            self._lanes.send_rows(rows, to).synchronize()

    def give(self, nbytes: int) -> torch.Tensor:
        """Copy ``nbytes`` from the GPU, and wait."""
        with gpu_failures():
            return self._lanes.fetch_rows(lambda: self._lanes.allocate_rows((nbytes,), torch.uint8)[0], ())

    def half(self, ready: ReadyPlan, side: Side, located: LocalityMap, shared: Mapping[int, torch.Tensor]) -> PieceHalf:
        """Return the values of one side on the GPU."""
        return DeviceHalf(located, shared, ready.sides[side].gathered, self._lanes)


def place_of(device: torch.device) -> Place:
    """Return this process's own device."""
    return GpuPlace(device) if device.type == "cuda" else Place()
