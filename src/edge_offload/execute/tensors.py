"""Tensors as they travel: what a model declares of its inputs, checked before a byte is decoded."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

import edge_offload.older_torch  # noqa: F401
from edge_offload.arrays import Array
from edge_offload.errors import BadInput, ProtocolError
from edge_offload.link.codecs import decode, encode
from edge_offload.link.codecs.payload import dtype_name

#: Tensors per message, at most.
MAX_TENSORS = 256
#: Bytes of the outputs that a robot reports for those who watch on the server.
MAX_REPORT_BYTES = 8 << 20

_TORCH_ONLY = {"bfloat16": torch.bfloat16}
_DTYPES: Dict[str, torch.dtype] = {
    **_TORCH_ONLY,
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}


@dataclass(frozen=True)
class TensorSpec:
    """Dtype (its torch name) and shape of one tensor."""

    dtype: str
    shape: Tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a tensor."""
        return cls(str(tensor.dtype).replace("torch.", ""), tuple(tensor.shape))

    @classmethod
    def parse(cls, raw: Any) -> TensorSpec:
        """The spec in ``{"dtype": …, "shape": […]}`` off the wire.

        Raises:
            ProtocolError: anything else, an unknown dtype, or a negative or absurd size.
        """
        if not isinstance(raw, abc.Mapping) or not isinstance(raw.get("shape"), (list, tuple)):
            raise ProtocolError("a tensor is described by a map with dtype and shape")
        dtype, shape = raw.get("dtype"), raw["shape"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise ProtocolError(f"tensors of dtype {str(dtype)[:32]!r} do not travel")
        if len(shape) > 32 or not all(type(extent) is int and 0 <= extent < 1 << 40 for extent in shape):
            raise ProtocolError(f"tensor shape {str(shape)[:64]} is not a list of at most 32 sizes")
        return cls(dtype, tuple(shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * torch.empty((), dtype=_DTYPES[self.dtype]).element_size()

    def to_dict(self) -> Dict[str, Any]:
        """Describes the spec as :meth:`parse` reads it."""
        return {"dtype": self.dtype, "shape": list(self.shape)}

    @property
    def torch_dtype(self) -> torch.dtype:
        """Torch's dtype of the tensor."""
        return _DTYPES[self.dtype]

    def zeros(self) -> torch.Tensor:
        """A tensor of this kind, all zero."""
        return torch.zeros(self.shape, dtype=_DTYPES[self.dtype])

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


#: Of all inputs of a model, in order.
Specs = Tuple[TensorSpec, ...]


def specs_of(tensors: Sequence[torch.Tensor]) -> Specs:
    """The specs of tensors."""
    return tuple(TensorSpec.of(tensor) for tensor in tensors)


def pack_tensors(
    tensors: Sequence[torch.Tensor], codec: str = "auto", link_bytes_per_s: Optional[float] = None
) -> Tuple[List[Dict[str, Any]], List[Any]]:
    """Descriptors (for the message's header) and buffers of ``tensors``, coded by ``codec``.

    The buffers may alias the tensors: do not write to these before the message has left. ``auto`` sends plainly what
    the link carries sooner than it is coded.

    Raises:
        BadInput: a dtype that does not travel, no such codec, or one that does not suit a tensor.
    """
    descriptors: List[Dict[str, Any]] = []
    buffers: List[Any] = []
    for tensor in tensors:
        spec = TensorSpec.of(tensor)
        if spec.dtype not in _DTYPES:
            raise BadInput(f"tensors of dtype {spec.dtype} do not travel", remedy=f"use {', '.join(_DTYPES)}")
        plain = tensor.detach().contiguous()
        array = (plain.view(torch.int16) if spec.dtype in _TORCH_ONLY else plain).numpy()
        coded = encode(array, codec, link_bytes_per_s=link_bytes_per_s)
        descriptors.append({**spec.to_dict(), "payload": coded.descriptor, "parts": len(coded.buffers)})
        buffers.extend(coded.buffers)
    return descriptors, buffers


def check_descriptors(
    descriptors: Any, parts: int, expected: Sequence[TensorSpec] = (), max_bytes: int = 1 << 30
) -> List[TensorSpec]:
    """Validate descriptors off the wire without touching the payload.

    Args:
        descriptors: as they came.
        parts: buffers that came with the message.
        expected: what the tensors must be; empty accepts any.
        max_bytes: bound on the decoded bytes of all tensors together.

    Raises:
        ProtocolError: malformed, too large, or not what the number of buffers allows.
        BadInput: well formed, but not ``expected``.
    """
    if not isinstance(descriptors, (list, tuple)) or len(descriptors) > MAX_TENSORS:
        raise ProtocolError(f"a message carries a list of at most {MAX_TENSORS} tensors")
    specs = [TensorSpec.parse(raw) for raw in descriptors]
    counts = [raw.get("parts") for raw in descriptors]
    # buffers per tensor
    if not all(type(count) is int and 0 <= count <= 64 for count in counts) or sum(counts) != parts:
        raise ProtocolError(f"the tensors claim {str(counts)[:64]} buffers, the message has {parts}")
    total = sum(spec.nbytes for spec in specs)
    if total > max_bytes:
        raise ProtocolError(f"tensors of {total} bytes where {max_bytes} are allowed")
    if expected and specs != list(expected):
        raise BadInput(
            f"inputs {', '.join(map(str, specs))} do not fit the model opened for {', '.join(map(str, expected))}",
            remedy="open the model for these shapes",
        )
    return specs


def unpack_tensors(
    descriptors: Any, buffers: Sequence[Any], expected: Sequence[TensorSpec] = (), max_bytes: int = 1 << 30
) -> Tuple[torch.Tensor, ...]:
    """Decodes the tensors that :func:`pack_tensors` made. Arguments and errors as :func:`check_descriptors`."""
    specs = check_descriptors(descriptors, len(buffers), expected, max_bytes)
    tensors = []
    position = 0
    for spec, raw in zip(specs, descriptors):
        mine = buffers[position : position + raw["parts"]]
        position += raw["parts"]
        tensors.append(_decode_tensor(decode(raw.get("payload"), mine, max_bytes=max(spec.nbytes, 1)), spec))
    return tuple(tensors)


def _decode_tensor(array: Array, spec: TensorSpec) -> torch.Tensor:
    carrier = "int16" if spec.dtype in _TORCH_ONLY else spec.dtype
    if dtype_name(array.dtype) != carrier or array.shape != spec.shape:
        raise ProtocolError(f"a tensor announced as {spec} was sent as {array.dtype.name}{list(array.shape)}")
    # torch's own allocation: aligned for the kernels, and writable, unlike a view of the message
    tensor = torch.empty(spec.shape, dtype=_DTYPES[carrier])
    tensor.numpy()[...] = array
    return tensor.view(_DTYPES[spec.dtype]) if spec.dtype in _TORCH_ONLY else tensor
