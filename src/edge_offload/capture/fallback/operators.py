"""What the fallback knows of each operator: its arguments with defaults, and who answers it."""

from __future__ import annotations

import enum
import struct
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch

from edge_offload.capture.keys import DTYPE_NUMBERS

REMEDY = "apt install g++: the native device can do it"


class Route(enum.Enum):
    """Who answers a call."""

    SERVER = "server"
    VIEW = "view"  # metadata only
    DECOMPOSED = "decomposed"  # torch expresses it through others
    REFUSED = "refused"


def _names(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


#: Composite operators that choose another path on a GPU than on a CPU: recorded whole, so that the server chooses.
WHOLE = _names("""
    lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention softmax.int log_softmax.int dropout dropout_
    ctc_loss.Tensor ctc_loss.IntList
    """)
#: They return a view, though their schema does not say so.
_SILENT_VIEWS = _names("_unsafe_view _reshape_alias")
_REFUSED = _names("""
    resize_ resize_as_ set_ set_.source_Storage set_.source_Storage_storage_offset set_.source_Tensor _conj _neg_view
    record_stream _resize_output_ is_set_to
    """)
#: Their host array may join device tensors, because torch itself moves it.
MOVES = _names("index _unsafe_index index_put index_put_ _unsafe_index_put _index_put_impl_ _pack_padded_sequence "
               "tensor_split")  # fmt: skip
_UNTAGGED_DYNAMIC = _names("linalg_lstsq _pack_padded_sequence")
_LAYOUTS = {torch.strided: 0}
_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3,
}  # fmt: skip


class Operator:
    """One overload.

    Attributes:
        name: as the server knows it, ``aten::add.Tensor``.
        tensors: for each argument, whether it is a tensor (a number there travels with the call and is no part of it).
        named: the same, by the argument's name.
        dynamic: whether the shapes of its results depend on data.
    """

    __slots__ = ("arguments", "dynamic", "func", "masks", "name", "named", "route", "short", "tensors")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.name: str = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        self.short = self.name.partition("::")[2]
        self.arguments: List[Any] = list(schema.arguments)
        self.tensors: Tuple[bool, ...] = tuple(str(a.type) in ("Tensor", "Optional[Tensor]") for a in self.arguments)
        self.named = {a.name: (tensor,) for a, tensor in zip(self.arguments, self.tensors)}
        self.route = self._route(schema)
        self.masks = self.short in ("index.Tensor", "_unsafe_index.Tensor")
        self.dynamic = not self.masks and self._dynamic(schema)

    def _route(self, schema: Any) -> Route:
        if self.short in _SILENT_VIEWS:
            return Route.VIEW
        if self.short in _REFUSED or torch.Tag.inplace_view in self.func.tags:
            return Route.REFUSED
        if self.short in WHOLE:
            return Route.SERVER
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if has(self.name, "CompositeImplicitAutograd"):
            return Route.DECOMPOSED
        if any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments):
            return Route.VIEW
        return Route.SERVER

    def _dynamic(self, schema: Any) -> bool:
        kinds = [str(r.type) for r in schema.returns]
        if not self.name.startswith("aten::") or any(kind not in ("Tensor", "List[Tensor]") for kind in kinds):
            return True
        tags = self.func.tags
        return (
            schema.name[len("aten::") :] in _UNTAGGED_DYNAMIC
            or torch.Tag.dynamic_output_shape in tags
            or torch.Tag.data_dependent_output in tags
        )

    def all_arguments(self, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Any]:
        """The value of every argument of the schema, defaults included."""
        values = list(args)
        for argument in self.arguments[len(args) :]:
            values.append(kwargs.get(argument.name, argument.default_value))
        return values

    def split(self, values: Sequence[Any]) -> Tuple[List[Any], Dict[str, Any]]:
        """The value of every argument, as positional ones and named ones."""
        positional = sum(not argument.kwarg_only for argument in self.arguments)
        names = [argument.name for argument in self.arguments[positional:]]
        return list(values[:positional]), dict(zip(names, values[positional:]))


def has_mask(indices: Sequence[Any]) -> bool:
    """Whether one of the indices picks what is true: how much that is depends on data."""
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def plain_item(value: Any) -> Optional[bytes]:
    """The item of a key (``native/keys.h``) for what is not an operand; None if it cannot be sent."""
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"B" + struct.pack("<B", value)
    if isinstance(value, int):
        return b"I" + struct.pack("<q", value)
    if isinstance(value, float):
        return b"F" + struct.pack("<d", value)
    if isinstance(value, complex):
        return b"Z" + struct.pack("<dd", value.real, value.imag)
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, torch.dtype):
        return b"I" + struct.pack("<q", DTYPE_NUMBERS[value]) if value in DTYPE_NUMBERS else None
    if isinstance(value, torch.device):
        return b"Y"
    numbers: Any = _LAYOUTS if isinstance(value, torch.layout) else _FORMATS
    if isinstance(value, (torch.layout, torch.memory_format)) and value in numbers:
        return b"I" + struct.pack("<q", numbers[value])
    return None
