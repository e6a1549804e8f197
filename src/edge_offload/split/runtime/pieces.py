"""Transfers cut into pieces of rows, coded one by one, so that coding, sending and computing overlap."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from edge_offload.errors import ProtocolError
from edge_offload.execute.tensors import TensorSpec, pack_tensors, unpack_tensors
from edge_offload.ir import DYNAMIC
from edge_offload.link import codecs
from edge_offload.split.footprints.registry import Range
from edge_offload.split.model.cost import MAX_PIECES, PIECE_BYTES
from edge_offload.split.model.locality import LocalityMap
from edge_offload.split.model.plan import RowTransfer
from edge_offload.split.runtime.progress import SplitProgress


def cut_transfer(located: LocalityMap, transfer: RowTransfer, piece_bytes: int = PIECE_BYTES) -> List[Range]:
    """Return the rows of each piece, in order."""
    if transfer.value not in located.axes:
        return [(transfer.low, transfer.high)]
    size = transfer.high - transfer.low
    count = int(size * located.row_bytes(transfer.value) // piece_bytes)
    count = max(1, min(count, MAX_PIECES, size))
    edges = [transfer.low + size * k // count for k in range(count + 1)]
    return list(zip(edges, edges[1:]))


def encode_piece(tensor: torch.Tensor, codec: str) -> Tuple[List[Dict[str, Any]], List[Any]]:
    """Return descriptor and buffers; payloads that do not suit the plan's codec are sent raw."""
    try:
        return pack_tensors([tensor], codec)
    except codecs.NotApplicable:
        return pack_tensors([tensor], "raw")


def decode_piece(
    progress: SplitProgress, body: Dict[str, Any], buffers: List[memoryview]
) -> Tuple[int, int, torch.Tensor]:
    """(transfer, first row, rows) of a message, checked against what is awaited before a byte is decoded.

    Raises:
        ProtocolError, BadInput: malformed, or not awaited.
    """
    index, low, high = (body.get(key) for key in ("transfer", "low", "high"))
    if type(index) is not int or type(low) is not int or type(high) is not int:
        raise ProtocolError("a piece says its transfer and rows as whole numbers")
    dtype, shape = progress.expect_rows(index, low, high)
    if DYNAMIC in shape:
        (tensor,) = unpack_tensors(body.get("tensors"), buffers, max_bytes=16 << 20)
        spec_found = TensorSpec.of(tensor)
        if spec_found.dtype != dtype or len(spec_found.shape) != len(shape):
            raise ProtocolError(f"transfer {index} is {dtype} of {len(shape)} dimensions, and came as {spec_found}")
        return index, low, tensor
    spec = TensorSpec(dtype, shape)
    (tensor,) = unpack_tensors(body.get("tensors"), buffers, [spec], max(spec.nbytes, 1))
    return index, low, tensor
