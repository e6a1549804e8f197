"""A module at hand as a sequence with its locality: robot and server trace alike, and compare the hash."""

from __future__ import annotations

import copy
import threading
from typing import Any, Dict, Sequence

import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.sequence.build import from_module
from edge_offload.split.locality import analyse, axis_choices
from edge_offload.split.networks import Network

_ONE_AT_A_TIME = threading.Lock()  # torch.export keeps state of its own outside the threads


def trace(name: str, module: nn.Module, inputs: Sequence[torch.Tensor]) -> Network:
    """Trace all of ``module``, or its ``network`` where its read-out depends on the data (see ``Network.part``).

    Raises:
        Unsupported: it cannot be traced, or nothing in it is local along any axis of its input.
    """
    module = alias(module)
    part = "module"
    with _ONE_AT_A_TIME:
        try:
            program = from_module(module, inputs)
        except Unsupported:
            network = getattr(module, "network", None)
            if not isinstance(network, nn.Module):
                raise
            program, part = from_module(network, inputs), "network"
    choices = axis_choices(program.sequence)
    if not choices:
        raise Unsupported(f"no operator of {name} is local along any axis of its input", remedy="use another mode")
    return Network(name, program, analyse(program.sequence, choices[0]), tuple(inputs), part)


def alias(module: nn.Module) -> nn.Module:
    """A copy that shares the weights' memory: while torch traces a module it puts stand-ins in their place, which an
    inference on another thread must not meet.
    """
    memo: Dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        shared = tensor.detach()
        memo[id(tensor)] = nn.Parameter(shared, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else shared
    copied: nn.Module = copy.deepcopy(module, memo)
    return copied
