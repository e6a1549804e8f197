"""A trace as data: its sequence, and those constants that are no weights of its model; bound to a module again.

Nothing in it is executed. Constants are found by their digests among a module's weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.execute.tensors import MAX_TENSORS, pack_tensors, unpack_tensors
from edge_offload.ir import OperatorSequence, opaque, sequence_hash, wire
from edge_offload.ir.build import TracedProgram, tensor_digest

MAX_EXTRA_BYTES = 64 << 20
"""Of constants that are no weights of the model: a sequence with more is not written."""


@dataclass(frozen=True)
class WrittenTrace:
    """What was traced from a module, without its weights.

    Attributes:
        sequence: its msgpack form.
        descriptors, buffers: constants that are no weights, packed.
    """

    sequence: bytes
    descriptors: List[Dict[str, Any]]
    buffers: Sequence[Any]


@dataclass(frozen=True)
class BoundTrace:
    """A trace with its constants.

    Attributes:
        program: what was traced.
        readout: the part behind an opaque operator, to be kept alive with the program; None if there is none.
    """

    program: TracedProgram
    readout: Optional[nn.Module]


def write_trace(program: TracedProgram, module: nn.Module) -> Optional[WrittenTrace]:
    """Return the trace of ``module`` as data; None if it cannot be written."""
    shared = {_memory_key(tensor) for tensor in _named_tensors(module).values()}
    extras = [tensor for tensor in program.constants.values() if _memory_key(tensor) not in shared]
    many = len(extras) > MAX_TENSORS or sum(tensor.nbytes for tensor in extras) > MAX_EXTRA_BYTES
    # strides decide which kernel runs, and would be lost
    if many or not all(tensor.is_contiguous() for tensor in extras):
        return None
    try:
        descriptors, buffers = pack_tensors(extras, "raw")
    except BadInput:
        return None  # a dtype that is not written
    return WrittenTrace(wire.encode(program.sequence), descriptors, buffers)


def read_trace(written: WrittenTrace, sequence: str, module: nn.Module) -> BoundTrace:
    """The trace of the sequence of that hash, bound to the weights of ``module``.

    Raises:
        EdgeOffloadError, ValueError, TypeError, KeyError, RecursionError: it is another one, or of other weights.
    """
    decoded = wire.decode(written.sequence)
    extras = unpack_tensors(written.descriptors, written.buffers, max_bytes=MAX_EXTRA_BYTES)
    constants = {tensor_digest(tensor): tensor for tensor in extras}
    constants.update((tensor_digest(tensor), tensor.detach()) for tensor in _named_tensors(module).values())
    readout = _find_readout(decoded, module)
    program = TracedProgram(decoded, {digest: constants[digest] for digest in decoded.constants.values()})
    if sequence_hash(decoded) != sequence:
        raise ValueError("a sequence of another hash")
    return BoundTrace(program, readout)


def _named_tensors(module: nn.Module) -> Dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _memory_key(tensor: torch.Tensor) -> Any:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _find_readout(sequence: OperatorSequence, module: nn.Module) -> Optional[nn.Module]:
    """The part that the sequence's opaque operators name.

    Raises:
        ValueError: it is another one.
    """
    tokens = {operator.args[0] for operator in sequence.operators if operator.name == opaque.NAME}
    if not tokens:
        return None
    readout = getattr(module, "readout", None)
    if not isinstance(readout, nn.Module) or tokens != {opaque.register_module(readout)}:
        raise ValueError("its read-out is another one")
    return readout
