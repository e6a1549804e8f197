"""A network of the registry that peers serve, for messages of raw tensors."""

from __future__ import annotations

import torch

from edge_offload.models import registry
from edge_offload_benchmarks.peers.raw_tensors import pack_tensors, unpack_tensors


class ServedNetwork:
    """Computes with one thread.

    Args:
        name: of the registry.
    """

    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        self._network = registry.build_module(name)

    def compute(self, message: bytes) -> bytes:
        """The results of the tensors of a message."""
        with torch.inference_mode():
            result = self._network(*unpack_tensors(message))
        return pack_tensors(list(result) if isinstance(result, (tuple, list)) else [result])
