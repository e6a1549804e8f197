"""Requests between two processes, with tensors in memory that both share.

A channel is a socket pair for headers and two anonymous regions for tensors. One request is in flight on a channel at
a time, so that no region is written while the peer reads it. Regions have no name: only inherited ones are shared.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import torch

from edge_offload import errors
from edge_offload.errors import EdgeOffloadError, ProtocolError, RemoteError
from edge_offload.execute.module import ALIGNMENT
from edge_offload.execute.tensors import MAX_TENSORS, TensorSpec
from edge_offload.memory import flat_bytes
from edge_offload.protocol.channel import Channel

MAX_BYTES = 4 << 30
"""Limit of the tensors of one request or response."""

#: Errors that one process may raise in the other, by name.
TRANSFERABLE_ERRORS: Dict[str, Type[EdgeOffloadError]] = {
    kind.__name__: kind
    for kind in (errors.BadInput, errors.OutOfMemory, errors.DeviceLost, errors.Unsupported, errors.Refused)
}

Tensors = Sequence[torch.Tensor]
Answer = Tuple[Dict[str, Any], Tensors]


class SharedRegion:
    """Growing anonymous memory that one process writes and the other reads.

    Args:
        fd: of inherited memory; None: allocate a new region.
    """

    def __init__(self, fd: Optional[int] = None) -> None:
        if fd is None:
            fd = os.memfd_create("edge_offload")
            os.fchmod(fd, 0o600)
        self.fd = fd
        self._map: Optional[mmap.mmap] = None
        self._size = 0

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as tensors in it do."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def write(self, tensors: Tensors) -> List[Dict[str, Any]]:
        """Write host tensors to the region and return the descriptions with which the peer reads them.

        Raises:
            BadInput: together they exceed :data:`MAX_BYTES`.
        """
        starts, end = [], 0
        for tensor in tensors:
            starts.append(end)
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        if end > MAX_BYTES:
            raise errors.BadInput(f"tensors of {end >> 20} MiB in one question; {MAX_BYTES >> 20} MiB are the most")
        if end > self._size:
            os.ftruncate(self.fd, max(end, 2 * self._size, 1 << 20))
            self._remap()
        for tensor, start in zip(tensors, starts):
            if tensor.nbytes:
                assert self._map is not None
                target = torch.frombuffer(self._map, dtype=torch.uint8, count=tensor.nbytes, offset=start)
                target.copy_(flat_bytes(tensor.contiguous()))
        return [{**TensorSpec.of(tensor).to_dict(), "at": start} for tensor, start in zip(tensors, starts)]

    def read(self, described: Any, copy: bool) -> List[torch.Tensor]:
        """Return the described tensors: copies with ``copy``, else views that are valid until the next request.

        Raises:
            ProtocolError: malformed, or a tensor lies outside the region.
        """
        if not isinstance(described, list) or len(described) > MAX_TENSORS:
            raise ProtocolError(f"a request carries a list of at most {MAX_TENSORS} tensors")
        result = []
        for item in described:
            spec, start = TensorSpec.parse(item), item.get("at")
            if type(start) is not int or start < 0 or start % ALIGNMENT or spec.nbytes > MAX_BYTES:
                raise ProtocolError("a tensor is nowhere in the region")
            if start + spec.nbytes > self._size:
                self._remap()
            if start + spec.nbytes > self._size:
                raise ProtocolError("a tensor is beyond the end of the region")
            tensor = spec.zeros() if not spec.nbytes else None
            if tensor is None:
                assert self._map is not None
                raw = torch.frombuffer(self._map, dtype=torch.uint8, count=spec.nbytes, offset=start)
                tensor = raw.view(spec.torch_dtype).reshape(spec.shape)
            result.append(tensor.clone() if copy else tensor)
        return result

    def _remap(self) -> None:
        self._size = os.fstat(self.fd).st_size
        self._map = mmap.mmap(self.fd, self._size) if self._size else None  # tensors hold on to the one before


class TensorChannel:
    """One end of a request channel between two processes.

    Args:
        headers: channel for headers.
        out, back: regions that this end writes and reads.
    """

    def __init__(self, headers: Channel, out: SharedRegion, back: SharedRegion) -> None:
        self.headers, self.out, self.back = headers, out, back
        self._exclusive = threading.Lock()
        self._request_number = 0

    def request(self, operation: str, tensors: Tensors = (), **facts: Any) -> Tuple[Dict[str, Any], List[torch.Tensor]]:
        """Send a request and return the response's facts and copies of its tensors.

        Raises:
            LinkLost: the other process has ended.
            EdgeOffloadError: it refused the request, or failed (RemoteError).
        """
        with self._exclusive:
            self._request_number += 1
            described = self.out.write(tensors)
            self.headers.send({"number": self._request_number, "what": operation, "facts": facts, "tensors": described})
            header, _ = self.headers.receive()
            while header.get("number") != self._request_number:  # response to a request whose caller was interrupted
                header, _ = self.headers.receive()
            failed = header.get("failed")
            if failed is not None:
                kind, cause, remedy = (str(part) for part in failed)
                raise TRANSFERABLE_ERRORS.get(kind, RemoteError)(cause, remedy)
            return dict(header["facts"]), self.back.read(header["tensors"], copy=True)

    def serve_requests(self, handlers: Dict[str, Callable[..., Answer]]) -> None:
        """Answer requests until the other process closes the channel (LinkLost)."""
        while True:
            header, _ = self.headers.receive()
            try:
                inputs = self.back.read(header.get("tensors"), copy=False)
                facts, tensors = handlers[header["what"]](inputs, **header["facts"])
                response = {"facts": facts, "tensors": self.out.write(tensors)}
            except EdgeOffloadError as error:
                response = {"failed": [type(error).__name__, error.cause, error.remedy]}
            except Exception as error:
                response = {"failed": ["", f"{type(error).__name__}: {error}", ""]}
            self.headers.send({**response, "number": header.get("number")})
