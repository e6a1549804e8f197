"""A part of a program that cannot be traced (its sizes depend on the data), as one global operator.

Non-maximum suppression is the usual one. The operator names the part by a token; the part itself is an ordinary module
that a process has registered under that token. Nothing of it travels: both sides have the code, and the token, which
is part of the sequence's hash, says whether it is the same.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from dataclasses import replace
from typing import List, Sequence, Tuple

import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.ir.build import TracedProgram, tensor_digest
from edge_offload.ir.operators import Operator, Ref
from edge_offload.ir.trace.composed import LIBRARY
from edge_offload.ir.values import DYNAMIC, Value

NAME = "edge_offload.opaque.default"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
LIBRARY.define("opaque(str token, Tensor[] inputs) -> Tensor[]")
_modules: weakref.WeakValueDictionary[str, nn.Module] = weakref.WeakValueDictionary()


def token_of(module: nn.Module) -> str:
    """32 hexadecimal digits over the module's class, settings, parameters and buffers, and those of its parts."""
    state = hashlib.blake2b(digest_size=16)
    for path, part in module.named_modules():
        kind = type(part)
        state.update(f"{path}:{kind.__module__}.{kind.__qualname__};".encode())
        for key, value in sorted(vars(part).items()):
            if not key.startswith("_") and key != "training":
                state.update(f"{key}={_ADDRESS.sub('', repr(value))};".encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        state.update(f"{name}:{tensor_digest(tensor)};".encode())
    return state.hexdigest()


def register_module(module: nn.Module) -> str:
    """Registers ``module`` for operators that name it; returns its token. The caller keeps it alive."""
    token = token_of(module)
    _modules[token] = module
    return token


def append_module(program: TracedProgram, module: nn.Module, examples: Sequence[torch.Tensor]) -> TracedProgram:
    """``program`` followed by ``module`` as one operator on all of its outputs.

    Args:
        program: what comes before.
        module: the opaque part; the caller keeps it alive for as long as the sequence is to run.
        examples: its outputs for some input; their sizes are taken for changing, their ranks and dtypes are not.

    Raises:
        Unsupported: it does not give tensors.
    """
    if not examples or not all(isinstance(tensor, torch.Tensor) for tensor in examples):
        raise Unsupported(f"{type(module).__name__} does not give tensors alone")
    token = register_module(module)
    sequence = program.sequence
    first = max(sequence.values) + 1
    made = tuple(range(first, first + len(examples)))
    values = dict(sequence.values)
    for number, tensor in zip(made, examples):
        values[number] = Value(number, str(tensor.dtype).split(".")[-1], (DYNAMIC,) * tensor.dim())
    operator = Operator(NAME, (token, tuple(Ref(number) for number in sequence.outputs)), (), made, (), (), "readout")
    behind = replace(sequence, values=values, operators=(*sequence.operators, operator), outputs=made)
    return TracedProgram(behind.validate(), program.constants)


def _run_module(token: str, inputs: List[torch.Tensor]) -> List[torch.Tensor]:
    module = _modules.get(token)
    if module is None:
        raise Unsupported(f"no part of a program is known here by {token[:12]}", remedy="trace the model first")
    device = inputs[0].device if inputs else torch.device("cpu")
    results: Tuple[torch.Tensor, ...] = module(*[tensor.cpu() for tensor in inputs])  # it has its own state there
    return [tensor.to(device) if device.type != "cpu" else tensor.clone() for tensor in results]


LIBRARY.impl("opaque", _run_module, "CompositeExplicitAutograd")
