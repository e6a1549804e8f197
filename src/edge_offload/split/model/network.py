"""A traced model, ready to be profiled and split: its sequence, a sample input, and the axis to split along."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Optional, Tuple

import torch
from torch import nn

from edge_offload.ir.build import TracedProgram
from edge_offload.split.model.locality import LocalityMap


@dataclass(frozen=True)
class TracedNetwork:
    """A traced model.

    Attributes:
        name: as in the registry.
        program: sequence and constants.
        located: its locality along the chosen axis.
        inputs: what the sequence takes, from a picture or a sweep.
        readout: the part behind an opaque operator, which lives as long as this does; None if all was traced.
        module: the model itself, of the same weights, to be timed; None where only a record is known.
    """

    name: str
    program: TracedProgram
    located: LocalityMap
    inputs: Tuple[torch.Tensor, ...]
    readout: Optional[nn.Module] = None
    module: Optional[nn.Module] = None

    def copy_to(self, device: torch.device) -> TracedNetwork:
        """Copy its sample input and its module to a device, and wait for it."""
        if device.type == "cpu":
            return self
        module = None if self.module is None else copy.deepcopy(self.module).to(device)
        return replace(self, inputs=tuple(tensor.to(device) for tensor in self.inputs), module=module)
