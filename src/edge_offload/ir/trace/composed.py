"""Operators on composed tensors (sparse or nested ones), as calls of ``edge_offload::composed``.

A composed tensor is sent as its parts: dense tensors and integers. ``native/cpp/composed.h`` defines the format. This
module makes the arguments from the parts, with bounds checked, and runs torch's operator. Then it takes the results
apart. No argument is changed in place: an argument that the operator writes is returned among the results.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterator, List, Sequence

import torch

from edge_offload.errors import ProtocolError, Unsupported
from edge_offload.ir.schemas import enumerated_arguments
from edge_offload.ir.trace.allowlist import SUPPORTED_NUMBERS, resolve_operator

#: Most integers in the shape of one empty tensor; equals ``kNumbersInATensor`` of composed.h.
NUMBERS_IN_A_TENSOR = 60
#: torch's numbering of layouts (c10::Layout).
LAYOUTS = {
    0: torch.strided, 1: torch.sparse_coo, 2: torch.sparse_csr, 4: torch.sparse_csc, 5: torch.sparse_bsr,
    6: torch.sparse_bsc,
}  # fmt: skip
_LAYOUT_NUMBERS = {layout: number for number, layout in LAYOUTS.items()}
_ENUMERATED = {"ScalarType": SUPPORTED_NUMBERS["ScalarType"], "Layout": frozenset(LAYOUTS),
               "MemoryFormat": SUPPORTED_NUMBERS["MemoryFormat"]}  # fmt: skip
#: Operators that do not check that gradient and operand have equal sizes; :func:`_check_operands` does it for them.
#: The value is the number of last dimensions that may differ, because they are pooled.
_UNCHECKED = {
    "aten::_log_softmax_backward_data": 0, "aten::_adaptive_avg_pool2d_backward": 2,
    "aten::_adaptive_avg_pool3d_backward": 3,
}  # fmt: skip
#: Whether ``sparse_coo_tensor`` takes ``is_coalesced``: after torch 2.0.
_HAS_COALESCED_FLAG = "is_coalesced" in str(torch.ops.aten.sparse_coo_tensor.indices_size._schema)
#: Kinds of results, as composed.h numbers them.
NONE, TENSOR, COO, COMPRESSED, NESTED, LIST = range(6)

#: The only library of this package's operators: torch up to 2.0 allows no second one (a fragment) of a namespace.
LIBRARY = torch.library.Library("edge_offload", "DEF")
LIBRARY.define("composed(Tensor[] parts, int[] integers, str call) -> Tensor[]")


def run_composed(parts: Sequence[torch.Tensor], integers: Sequence[int], call: str) -> List[torch.Tensor]:
    """Runs the operator that ``call`` names, and returns its encoded results.

    Args:
        parts: dense tensors of the arguments, in their order; at least one.
        integers: sizes and other integers of the arguments, in their order.
        call: JSON, ``[name of the operator, arguments]``.

    Raises:
        NotImplementedError: the server does not run the operator on such tensors, or cannot encode its result.
        ProtocolError: the call is malformed.
        RuntimeError: the parts do not make a tensor, or the operator raised.
    """
    try:
        name, items = json.loads(call)
        reader = _ArgumentDecoder(parts, integers)
        overload = _resolve(name)
        arguments = [reader.read_item(item) for item in items]
    except (ValueError, TypeError, KeyError, IndexError, StopIteration, RecursionError) as error:
        raise ProtocolError(f"malformed call of a tensor of parts: {error}") from None
    if name in _UNCHECKED:
        _check_operands(arguments[0], arguments[1], _UNCHECKED[name])
    schema = overload._schema
    for argument in schema.arguments[len(arguments) :]:  # appended in a newer torch than the robot's
        if not argument.has_default_value():
            break
        arguments.append(argument.default_value)
    if len(arguments) != len(schema.arguments):
        raise ProtocolError(f"{name} takes {len(schema.arguments)} arguments, not {len(arguments)}")
    for position, argument_name, kind in enumerated_arguments(overload):
        if type(arguments[position]) is int and arguments[position] not in _ENUMERATED[kind]:
            raise _refusal(f"operator {name!r}: {argument_name} number {arguments[position]} is not supported")
    written = [i for i, argument in enumerate(schema.arguments) if argument.alias_info and argument.alias_info.is_write]
    for position in written:
        arguments[position] = arguments[position].clone()
    addresses = [_values_address(arguments[position]) for position in written]
    positional = sum(not argument.kwarg_only for argument in schema.arguments)
    keyword_arguments = {
        argument.name: value for argument, value in zip(schema.arguments[positional:], arguments[positional:])
    }
    try:
        returned = overload(*arguments[:positional], **keyword_arguments)
    except NotImplementedError as error:
        if "\n" not in str(error):
            raise
        raise _refusal(f"operator {name!r} has no kernel for such a tensor; call .to_dense() first") from None
    results = _ResultEncoder(name, parts)
    for position, address in zip(written, addresses):
        results.add_flag(address == _values_address(arguments[position]))
        results.add_value(arguments[position])
    if not written:
        for value in returned if isinstance(returned, tuple) else (returned,) if returned is not None else ():
            results.add_value(value)
    return results.tensors()


LIBRARY.impl("composed", run_composed, "CompositeExplicitAutograd")
#: Name of the operator defined here, which runs operators of :mod:`.allowlist` on composed tensors.
NAME = "edge_offload::composed"
OVERLOAD = torch.ops.edge_offload.composed.default


def _values_address(tensor: torch.Tensor) -> int:
    """Return the memory address of the values of a sparse tensor; 0 for other tensors."""
    if tensor.is_nested or tensor.layout == torch.strided:
        return 0
    return (tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()).data_ptr()


def _check_operands(gradient: Any, other: Any, pooled: int) -> None:
    """Check that the operands have equal sizes, except in the last ``pooled`` dimensions (see :data:`_UNCHECKED`).

    Raises:
        ProtocolError: an operand is no tensor.
        RuntimeError: the sizes or dtypes differ, or the operand has no elements.
    """
    if not isinstance(gradient, torch.Tensor) or not isinstance(other, torch.Tensor):
        raise ProtocolError("a gradient and its operand are tensors")
    shared_dims = gradient.dim() - pooled
    fits = gradient.dim() == other.dim() and gradient.shape[:shared_dims] == other.shape[:shared_dims]
    if not fits or shared_dims < 0 or 0 in other.shape or gradient.dtype != other.dtype:
        raise RuntimeError(f"a gradient of {tuple(gradient.shape)} does not belong to a tensor of {tuple(other.shape)}")


def _resolve(name: str) -> Any:
    """Return the overload called ``name``; raise NotImplementedError if the server does not run it."""
    try:
        return resolve_operator(name, composed=True)
    except Unsupported as error:
        raise _refusal(error.cause) from None


def _refusal(text: str) -> NotImplementedError:
    return NotImplementedError(f"{text} (edge_offload)")


class _ArgumentDecoder:
    """Decoder of a call's arguments, which consumes the parts and integers in their order.

    Its methods raise errors that :func:`run_composed` turns into ProtocolError, and RuntimeError for invalid tensors.
    """

    def __init__(self, parts: Sequence[torch.Tensor], integers: Sequence[int]) -> None:
        self._parts: Iterator[torch.Tensor] = iter(parts)
        self._integers: Iterator[int] = iter(integers)
        self._remaining = len(integers)
        devices = [part.device for part in parts if part.dim()]  # scalars may be on the host
        self._device = devices[0] if devices else torch.device("cpu")

    def read_item(self, item: Any) -> Any:
        """Decode one argument; composed.h lists the kinds of items."""
        if item is None or isinstance(item, (bool, str)):
            return item
        kind, *rest = item
        if kind == "i":
            return self._read_integers(1)[0]
        if kind == "v":
            return self._read_integers(rest[0])
        if kind == "f":
            return float.fromhex(rest[0])
        if kind == "z":
            return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
        if kind == "d":
            return self._device
        if kind == "t":
            return next(self._parts)
        if kind == "w":
            return next(self._parts).item()
        if kind == "l":
            return [self.read_item(inner) for inner in rest[0]]
        makers: Dict[str, Callable[..., torch.Tensor]] = {
            "o": self._make_coo,
            "c": self._make_compressed,
            "n": self._make_nested,
        }
        return makers[kind](*rest)

    def _read_integers(self, count: int) -> List[int]:
        if not isinstance(count, int) or not 0 <= count <= self._remaining:
            raise ValueError(f"{count} integers of {self._remaining}")
        self._remaining -= count
        return [next(self._integers) for _ in range(count)]

    def _make_coo(self, dims: int, sparse: int, coalesced: bool) -> torch.Tensor:
        """Make a COO tensor from indices [sparse, n] and values [n, ...]."""
        sizes = self._read_integers(dims)
        indices, values = next(self._parts), next(self._parts)
        if indices.dim() != 2 or indices.size(0) != sparse:
            raise ValueError(f"indices of {tuple(indices.shape)} for {sparse} dimensions")
        if not _HAS_COALESCED_FLAG:
            made = torch.sparse_coo_tensor(indices, values, sizes, check_invariants=True)
            return made.coalesce() if coalesced else made
        return torch.sparse_coo_tensor(indices, values, sizes, is_coalesced=bool(coalesced), check_invariants=True)

    def _make_compressed(self, layout: int, dims: int) -> torch.Tensor:
        """Make a CSR, CSC, BSR or BSC tensor from its compressed indices, plain indices and values."""
        sizes = self._read_integers(dims)
        compressed, plain, values = next(self._parts), next(self._parts), next(self._parts)
        return torch.sparse_compressed_tensor(
            compressed, plain, values, sizes, layout=LAYOUTS[layout], check_invariants=True
        )

    def _make_nested(self, pieces: int, dims: int) -> torch.Tensor:
        """Make a nested tensor of ``pieces`` tensors with ``dims`` dimensions each, from their sizes and one buffer."""
        sizes = torch.tensor(self._read_integers(pieces * dims), dtype=torch.int64, device="cpu").reshape(pieces, dims)
        buffer = next(self._parts)
        counts = sizes.double().prod(1)  # exact for any size that fits memory; int64 could overflow
        if bool((sizes < 0).any()) or buffer.dim() != 1 or float(counts.sum()) != buffer.numel():
            raise ValueError(f"{buffer.numel()} numbers are no nested tensor of {pieces} pieces")
        strides = torch.ones_like(sizes)
        for axis in range(dims - 2, -1, -1):
            strides[:, axis] = strides[:, axis + 1] * sizes[:, axis + 1]
        ends = sizes.prod(1).cumsum(0)
        view, starts = torch.ops.aten._nested_view_from_buffer.default, ends - sizes.prod(1)
        as_list = str(view._schema.arguments[3].type) == "List[int]"  # up to torch 2.0
        made: torch.Tensor = view(buffer.contiguous(), sizes, strides, starts.tolist() if as_list else starts)
        return made


class _ResultEncoder:
    """Encoder of an operator's results as integers and dense tensors.

    Args:
        name: of the operator.
        arguments: parts of its arguments; results that share their storage are cloned.
    """

    def __init__(self, name: str, arguments: Sequence[torch.Tensor]) -> None:
        self._name = name
        self._argument_storages = {part.untyped_storage()._cdata for part in arguments}
        self._numbers: List[int] = []
        self._parts: List[torch.Tensor] = []
        self._first_argument = arguments[0]

    def add_value(self, value: Any) -> None:
        """Add one more result.

        Raises:
            NotImplementedError: its type cannot be encoded.
        """
        if isinstance(value, (list, tuple)):
            self._numbers += [LIST, len(value)]
            for item in value:
                self.add_value(item)
        elif value is None:
            self._numbers.append(NONE)
        elif not isinstance(value, torch.Tensor):
            raise _refusal(
                f"operator {self._name!r}: its result, a {type(value).__name__}, is not supported on the device"
            )
        elif value.is_nested:
            self._add_nested(value)
        elif value.layout is torch.sparse_coo:
            self._numbers += [COO, value.dim(), value.sparse_dim(), int(value.is_coalesced()), *value.shape]
            self._add_parts(value._indices(), value._values())
        elif value.layout in _LAYOUT_NUMBERS and value.layout is not torch.strided:
            self._numbers += [COMPRESSED, _LAYOUT_NUMBERS[value.layout], value.dim(), *value.shape]
            by_rows = value.layout in (torch.sparse_csr, torch.sparse_bsr)
            first = value.crow_indices() if by_rows else value.ccol_indices()
            self._add_parts(first, value.col_indices() if by_rows else value.row_indices(), value.values())
        else:
            self._numbers.append(TENSOR)
            self._add_parts(value)

    def add_flag(self, holds: bool) -> None:
        """Add whether the operator wrote into the existing values of the next result, which is a written argument."""
        self._numbers.append(int(holds))

    def tensors(self) -> List[torch.Tensor]:
        """Return the integers, encoded in the shapes of empty tensors, then the parts."""
        numbers = [len(self._numbers) + 1, *self._numbers]
        starts = range(0, len(numbers), NUMBERS_IN_A_TENSOR)
        chunks = [numbers[start : start + NUMBERS_IN_A_TENSOR] for start in starts]
        empty = [torch.empty_strided((0, *chunk), (0,) * (len(chunk) + 1), dtype=torch.uint8, device=self._device())
                 for chunk in chunks]  # fmt: skip
        return [*empty, *self._parts]

    def _device(self) -> torch.device:
        return next((part.device for part in self._parts), self._first_argument.device)

    def _add_parts(self, *parts: torch.Tensor) -> None:
        for part in parts:
            shared = part.untyped_storage()._cdata in self._argument_storages
            self._parts.append(part.clone() if shared else part)

    def _add_nested(self, value: torch.Tensor) -> None:
        contiguous = value.contiguous()
        sizes = contiguous._nested_tensor_size()
        pieces, dims = (sizes.shape[0], sizes.shape[1]) if sizes.dim() == 2 else (0, 0)
        self._numbers += [NESTED, pieces, dims, *sizes.flatten().tolist()]
        self._add_parts(contiguous.values().clone())
