"""A module at hand as a sequence with its locality: robot and server trace alike, and compare the hash."""

from __future__ import annotations

import copy
import threading
from typing import Any, Dict, Optional, Sequence

import torch
from torch import nn

from edge_offload import background
from edge_offload.errors import BadInput, Unsupported
from edge_offload.ir import opaque
from edge_offload.ir.build import from_module
from edge_offload.split.model.locality import LocalityMap, analyse_locality, axis_choices
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.runtime.traces import BoundTrace

_ONE_AT_A_TIME = threading.Lock()  # torch.export keeps state of its own outside the threads


@background.sliced()
def trace_module(
    name: str, module: nn.Module, inputs: Sequence[torch.Tensor], axis: Optional[int] = None
) -> TracedNetwork:
    """Trace all of ``module``; a ``readout`` behind its ``network`` whose sizes depend on the data is one operator.

    Raises:
        Unsupported: it cannot be traced, changes its own buffers, or nothing in it is local along any input axis.
        BadInput: nothing in it is local along ``axis``.
    """
    timed = _clone_buffers(alias_module(module))
    module = alias_module(module)
    readout: Optional[nn.Module] = None
    with _ONE_AT_A_TIME:
        try:
            program = from_module(module, inputs)
        except Unsupported:
            network, readout = getattr(module, "network", None), getattr(module, "readout", None)
            if not isinstance(network, nn.Module) or not isinstance(readout, nn.Module):
                raise
            program = from_module(network, inputs)
            with torch.no_grad():
                program = opaque.append_module(
                    program, readout, timed.get_submodule("readout")(*timed.get_submodule("network")(*inputs))
                )
    if program.sequence.rebinds:
        raise Unsupported(f"{name} changes its own buffers in an inference", remedy="use another mode")
    return TracedNetwork(name, program, locate_along(name, program.sequence, axis), tuple(inputs), readout, timed)


@background.sliced()
def bind_network(name: str, module: nn.Module, inputs: Sequence[torch.Tensor], trace: BoundTrace) -> TracedNetwork:
    """What :func:`trace_module` gives, of ``module`` that was traced elsewhere.

    Raises:
        Unsupported: nothing in it is local along any input axis.
    """
    located = locate_along(name, trace.program.sequence, None)
    return TracedNetwork(
        name, trace.program, located, tuple(inputs), trace.readout, _clone_buffers(alias_module(module))
    )


def locate_along(name: str, sequence: Any, axis: Optional[int]) -> LocalityMap:
    """Return the locality along ``axis`` of the input, or along the axis with most local operators.

    Errors as `trace`.
    """
    choices = axis_choices(sequence)
    if not choices:
        raise Unsupported(f"no operator of {name} is local along any axis of its input", remedy="use another mode")
    if axis is not None:
        choices = [choice for choice in choices if axis in choice.values()]
        if not choices:
            raise BadInput(f"no operator of {name} is local along axis {axis} of its input")
    return analyse_locality(sequence, choices[0])


def _clone_buffers(module: nn.Module) -> nn.Module:
    """Clone the buffers, so that runs of the module do not change those of others."""
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, buffer.clone())
    return module


def alias_module(module: nn.Module) -> nn.Module:
    """A copy that shares the weights' memory.

    While torch traces a module it puts stand-ins in their place, which an inference on another thread must not meet.
    """
    memo: Dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        shared = tensor.detach()
        memo[id(tensor)] = nn.Parameter(shared, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shared
    copied: nn.Module = copy.deepcopy(module, memo)
    return copied
