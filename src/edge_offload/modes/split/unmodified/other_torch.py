"""A model that robot and server split with two versions of torch, which trace it in different ways.

The server gets the robot's trace with its constants, as it gets recorded inferences, and vets it as it vets these.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Sequence

import torch

from edge_offload.device.connect import other_operators
from edge_offload.errors import Unsupported
from edge_offload.execute.fingerprint import two_torches
from edge_offload.execute.tensors import Specs, specs_of
from edge_offload.link.transport.client import Client
from edge_offload.modes.remote import Progress
from edge_offload.modes.split.robot.opening import ModelSource
from edge_offload.modes.split.unmodified.recorded import RecordedSource
from edge_offload.split.model.network import TracedNetwork


@dataclass
class AnyTorchSource(ModelSource):
    """A model of the registry; a server with another torch gets the trace, one with the same makes it by itself."""

    _traced: Dict[Specs, TracedNetwork] = field(init=False, default_factory=dict)

    def trace_operators(self, examples: Sequence[torch.Tensor], progress: Progress) -> TracedNetwork:
        """See :class:`~edge_offload.modes.split.robot.opening.SplitSource`."""
        return self._traced.get(specs_of(examples)) or super().trace_operators(examples, progress)

    def request_open(
        self, client: Client, examples: Sequence[torch.Tensor], sequence: Optional[str], progress: Progress
    ) -> Future[Any]:
        """See :class:`~edge_offload.modes.split.robot.opening.SplitSource`.

        Raises:
            Unsupported: it cannot be traced, or has an operator that the server's torch has otherwise or not at all.
        """
        if not two_torches({"torch": torch.__version__}, client.welcome.get("fingerprint")):
            return super().request_open(client, examples, sequence, progress)
        network = self.trace_operators(examples, progress)
        if network.readout is not None:
            raise Unsupported(
                f"{self.name} ends in a part whose sizes depend on data: it is not split between two releases of torch",
                remedy="use the same torch on both, or mode server or replay",
            )
        self._traced[specs_of(examples)] = network
        refused = other_operators(client)
        for operator in network.program.sequence.operators:
            space, name, overload = operator.name.split(".")
            full = f"{space}::{name}" + ("" if overload == "default" else f".{overload}")
            if full in refused:
                raise Unsupported(refused[full], remedy="use the same torch on both, or mode server")
        return RecordedSource(network).request_open(client, examples, sequence, progress)
