"""Where a half of a plan is computed: by this process on its CPU or its GPU, or elsewhere on the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Mapping

import torch

from edge_offload.execute.devices import gpu_failures
from edge_offload.execute.lanes import CopyStreams
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side
from edge_offload.split.model.reference import HOST, copy_values, shared_values
from edge_offload.split.runtime.device_half import DeviceHalf
from edge_offload.split.runtime.half import PieceHalf
from edge_offload.split.runtime.profile import Profile, measure_profile, time_copies
from edge_offload.split.runtime.tables import ReadyPlan


class SplitDevice:
    """This process's CPU.

    Attributes:
        device: what computes.
    """

    def __init__(self, device: torch.device = HOST) -> None:
        self.device = device

    def share_values(self, network: TracedNetwork) -> Mapping[int, torch.Tensor]:
        """What both sides have before the first inference, where a half finds it.

        Raises:
            OutOfMemory, DeviceLost: the GPU failed.
        """
        with gpu_failures():
            return copy_values(shared_values(network.located, network.program.constants), self.device)

    def measure_profile(
        self, network: TracedNetwork, repeats: int, report: Callable[[str], None] = lambda what: None
    ) -> Profile:
        """Measure a profile; see :func:`edge_offload.split.runtime.profile.measure_profile`."""
        return measure_profile(network, repeats, report=report, device=self.device)

    def make_half(
        self, ready: ReadyPlan, side: Side, located: LocalityMap, shared: Mapping[int, torch.Tensor]
    ) -> PieceHalf:
        """Return the values of one side during one inference."""
        return PieceHalf(located, shared, ready.sides[side].gathered)


class GpuSplitDevice(SplitDevice):
    """The GPU of this process."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._lanes = CopyStreams(device)

    def measure_profile(
        self, network: TracedNetwork, repeats: int, report: Callable[[str], None] = lambda what: None
    ) -> Profile:
        """Measure a profile, with the times of copies."""
        return replace(
            super().measure_profile(network, repeats, report), copies=time_copies(self.copy_in, self.copy_out)
        )

    def copy_in(self, rows: torch.Tensor) -> None:
        """Copy rows of the host to the GPU, and wait."""
        with gpu_failures():
            target, _ = self._lanes.allocate_rows(rows.shape, rows.dtype)
            self._lanes.send_rows(rows, target).synchronize()

    def copy_out(self, nbytes: int) -> torch.Tensor:
        """Copy ``nbytes`` from the GPU, and wait."""
        with gpu_failures():
            return self._lanes.fetch_rows(lambda: self._lanes.allocate_rows((nbytes,), torch.uint8)[0], ())

    def make_half(
        self, ready: ReadyPlan, side: Side, located: LocalityMap, shared: Mapping[int, torch.Tensor]
    ) -> PieceHalf:
        """Return the values of one side on the GPU."""
        return DeviceHalf(located, shared, ready.sides[side].gathered, self._lanes)


def place_of(device: torch.device) -> SplitDevice:
    """Return this process's own device."""
    return GpuSplitDevice(device) if device.type == "cuda" else SplitDevice()
