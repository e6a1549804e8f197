"""Reads inferences recorded by a robot's virtual device, validates them, and adds their constants.

Only operators of the locality registry and a few more are executed, all of them pure and public. Each one is first
called on tensors without data (torch's fake tensors), and its results are compared with the declared ones. So invalid
arguments and undeclared sizes are refused before anything is computed.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import edge_offload.split.model.locality  # noqa: F401 - the rules of locality are registered there
from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Refused, Unsupported
from edge_offload.execute.tensors import TensorSpec
from edge_offload.ir import OperatorSequence, wire
from edge_offload.ir.build import TracedProgram, tensor_digest
from edge_offload.ir.device_guard import keep_device_guard
from edge_offload.ir.evaluate import make_kernel
from edge_offload.ir.operators import Operator
from edge_offload.ir.schemas import enumerated_arguments, find_overload
from edge_offload.ir.trace.allowlist import NAMESPACES, REFUSED
from edge_offload.ir.values import DYNAMIC, Value, contiguous_strides
from edge_offload.protocol.blobs import MAX_BLOB_BYTES
from edge_offload.server.blobs import BlobStore, check_names
from edge_offload.split.footprints.registry import bind_arguments, find_rule

MAX_CONSTANT_BYTES = 1 << 30
MAX_VALUE_BYTES = 1 << 30

#: Operators that a robot may send beside those with a footprint; each is computed on one side as a whole. None may
#: leave part of its result uninitialised: that would be memory of the server, with data of other robots.
ALSO_ACCEPTED = frozenset(
    f"aten.{name}"
    for name in """
    all any arange copy dot eye fill full full_like gather index index_add index_put isin linalg_cross linspace max mean
    median min mv native_batch_norm native_group_norm new_full new_ones new_zeros ones prod repeat scalar_tensor scatter
    scatter_add scatter_reduce select_scatter slice_scatter std_mean sum tril triu var_mean zeros _is_all_true
    _native_multi_head_attention
    """.split()  # noqa: SIM905 - a table reads better than a list of literals
)

#: Mode arguments of operators that are numbers, and how many values are valid. torch does not check all of them on
#: tensors without data; for an invalid value a kernel leaves its result uninitialised.
MODE_COUNTS = {
    f"aten.{name}": {"interpolation_mode": 3, "padding_mode": 3}
    for name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
}


def count_constant_bytes(sequence: OperatorSequence) -> int:
    """Return the bytes of a sequence's constants."""
    return sum(value.nbytes for value in distinct_constants(sequence).values())


def distinct_constants(sequence: OperatorSequence) -> Dict[str, Value]:
    """Return each constant by its digest, in the order of their bytes: as first listed."""
    constants: Dict[str, Value] = {}
    for number, digest in sequence.constants.items():
        constants.setdefault(digest, sequence.values[number])
    return constants


def add_constants(sequence: OperatorSequence, names: Any, store: BlobStore) -> TracedProgram:
    """Return the sequence with its constants, which are the blobs ``names`` one after the other.

    Raises:
        Refused: a blob is not in the store (any more).
        ProtocolError: the constants differ from those that the sequence names.
    """
    expected = distinct_constants(sequence)
    total = count_constant_bytes(sequence)
    data = bytearray(total)
    filled = 0
    for name in check_names(names, total // MAX_BLOB_BYTES + 1):
        blob = store.get_blob(name)
        if blob is None:
            raise Refused("a piece of the constants is not here any more", remedy="send it again")
        if filled + len(blob) > total:
            raise ProtocolError("the constants have more bytes than the sequence says")
        data[filled : filled + len(blob)] = blob
        filled += len(blob)
    if filled != total:
        raise ProtocolError("the constants have fewer bytes than the sequence says")
    constants: Dict[str, torch.Tensor] = {}
    offset = 0
    for digest, value in expected.items():
        constants[digest] = _make_constant(value, data, offset)
        if tensor_digest(constants[digest]) != digest:
            raise ProtocolError("a constant is not what its digest says")
        offset += value.nbytes
    return TracedProgram(sequence, constants)


def read_sequence(data: bytes, inputs: Sequence[TensorSpec]) -> OperatorSequence:
    """Decode the sequence in ``data`` and validate it.

    Raises:
        ProtocolError: it is malformed, too large, or its results differ from the declared ones.
        Unsupported: it contains an operator that this server does not split for robots; the message names it.
    """
    sequence = wire.decode(data)
    most = 20_000
    if len(sequence) > most or sequence.live_outs or sequence.rebinds or not sequence.is_functional:
        raise ProtocolError(f"a sequence to be split is at most {most} operators that write to nothing")
    if not all(value.is_static for value in sequence.values.values()):
        raise ProtocolError("a sequence to be split has no sizes that depend on data")
    sizes = [value.nbytes for value in sequence.values.values()]
    # the sum of all intermediate values, although most are freed early
    if max(sizes, default=0) > MAX_VALUE_BYTES or sum(sizes) > 8 << 30:
        raise Refused("the sequence has more or larger values than this server computes for a robot")
    if count_constant_bytes(sequence) > MAX_CONSTANT_BYTES:
        raise Refused(f"the constants take more than {MAX_CONSTANT_BYTES >> 20} MiB")
    if [(sequence.values[n].dtype, sequence.values[n].shape) for n in sequence.inputs] != [
        (spec.dtype, spec.shape) for spec in inputs
    ]:
        raise ProtocolError("the samples are no inputs of this sequence")
    for operator in sequence.operators:
        _check_name(operator)
        _check_numbers(operator)
        _check_modes(operator)
    _check_results(sequence)
    return sequence


def _check_name(operator: Operator) -> None:
    """Require an accepted operator: a public one, or an internal one that tracing replaces it by (``_to_copy``)."""
    namespace, name, _ = operator.name.split(".")
    accepted = find_rule(operator) is not None or operator.base_name in ALSO_ACCEPTED
    if namespace not in NAMESPACES or name in REFUSED or not accepted:
        raise Unsupported(f"operator {operator.name!r} is not one that this server splits for robots")
    find_overload(operator.name)


def _check_numbers(operator: Operator) -> None:
    """Require names for dtypes, layouts and memory formats."""
    named = dict(operator.kwargs)
    for position, name, _ in enumerated_arguments(find_overload(operator.name)):
        given = operator.args[position] if position < len(operator.args) else named.get(name)
        if isinstance(given, int):
            raise ProtocolError(f"operator {operator.name!r}: {name} is a number, not a name")


def _check_modes(operator: Operator) -> None:
    """Require valid mode arguments."""
    given = bind_arguments(operator)
    for name, count in MODE_COUNTS.get(operator.base_name, {}).items():
        mode = given.get(name)
        if not isinstance(mode, int) or not 0 <= mode < count:
            raise ProtocolError(f"operator {operator.name!r}: there is no {name} {mode!r}")


def _check_results(sequence: OperatorSequence) -> None:
    """Call every operator on tensors without data, and compare its results with the declared ones."""
    values: Dict[int, torch.Tensor] = {}
    keep_device_guard()
    without_data = FakeTensorMode()
    with without_data:
        for number in (*sequence.inputs, *sequence.constants):
            value = sequence.values[number]
            strides = value.strides or contiguous_strides(value.shape)
            values[number] = torch.empty_strided(value.shape, strides, dtype=getattr(torch, value.dtype))
    for index, operator in enumerate(sequence.operators):
        try:
            with torch.no_grad(), without_data:
                results = make_kernel(operator)(values.__getitem__)
        except EdgeOffloadError:
            raise
        except Exception as error:  # torch raises many kinds of errors for invalid arguments
            text = str(error).strip().splitlines()[:1]
            raise ProtocolError(f"operator {index} ({operator.name}) cannot be called so: {text}") from error
        for output, result in zip(operator.outputs, results):
            if output is None:  # an unused result; fused attention has it only on tensors without data
                if result is not None and result.numel() * result.element_size() > MAX_VALUE_BYTES:
                    raise Refused("the sequence has more or larger values than this server computes for a robot")
                continue
            if result is None:
                raise ProtocolError(f"operator {index} ({operator.name}) makes other results than the sequence says")
            declared = sequence.values[output]
            actual: Tuple[Any, ...] = (str(result.dtype).split(".")[-1], tuple(result.shape))
            if actual != (declared.dtype, declared.shape) or DYNAMIC in declared.shape:
                raise ProtocolError(f"operator {index} ({operator.name}) makes {actual}, not what the sequence says")
            values[output] = result


def _make_constant(value: Value, data: bytearray, offset: int) -> torch.Tensor:
    """Return a constant with its strides on the robot: they decide which kernel runs."""
    dtype = getattr(torch, value.dtype)
    if not value.elements:
        return torch.empty(value.shape, dtype=dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8, count=value.nbytes, offset=offset).clone().view(dtype)
    tensor = flat.reshape(value.shape)
    if value.strides is None:
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.strides))
    if any(stride < 0 for stride in value.strides) or span > 2 * value.elements:
        raise BadInput("a constant has strides with gaps")
    return torch.empty_strided(value.shape, value.strides, dtype=dtype).copy_(tensor)
