"""Tensors in memory that two processes share, and questions about them: nothing else is copied between the two.

A lane is a socket pair for headers and two anonymous regions for tensors. One question is under way on a lane at a
time, so that a region is written when nobody reads it. Regions have no name: who inherits one has it.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

import torch

from edge_offload import errors
from edge_offload.errors import EdgeOffloadError, ProtocolError, RemoteError
from edge_offload.execute.tensors import MAX_TENSORS, TensorSpec
from edge_offload.memory import flat_bytes
from edge_offload.protocol.channel import Channel

ALIGNMENT = 64
LEAST_BYTES = 1 << 20
MAX_BYTES = 4 << 30
"""Of the tensors of one question or answer."""

#: What one process may raise in the other, by name.
KNOWN: Dict[str, Type[EdgeOffloadError]] = {
    kind.__name__: kind
    for kind in (errors.BadInput, errors.OutOfMemory, errors.DeviceLost, errors.Unsupported, errors.Refused)
}

Tensors = Sequence[torch.Tensor]
Answer = Tuple[Dict[str, Any], Tensors]


class Region:
    """Memory that one process writes and the other reads; it grows.

    Args:
        fd: of the memory; None for a region of its own.
    """

    def __init__(self, fd: Optional[int] = None) -> None:
        if fd is None:
            fd = os.memfd_create("edge_offload")
            os.fchmod(fd, 0o600)
        self.fd = fd
        self._map: Optional[mmap.mmap] = None
        self._size = 0

    def close(self) -> None:
        """Give it back; tensors that lie in it hold on to it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def write(self, tensors: Tensors) -> List[Dict[str, Any]]:
        """Put the tensors, which are the host's, where the other process finds them by what is returned.

        Raises:
            BadInput: they are too large together.
        """
        placed, end = [], 0
        for tensor in tensors:
            placed.append(end)
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        if end > MAX_BYTES:
            raise errors.BadInput(f"tensors of {end >> 20} MiB in one question; {MAX_BYTES >> 20} MiB are the most")
        if end > self._size:
            os.ftruncate(self.fd, max(end, 2 * self._size, LEAST_BYTES))
            self._look()
        for tensor, start in zip(tensors, placed):
            if tensor.nbytes:
                assert self._map is not None
                there = torch.frombuffer(self._map, dtype=torch.uint8, count=tensor.nbytes, offset=start)
                there.copy_(flat_bytes(tensor.contiguous()))
        return [{**TensorSpec.of(tensor).to_dict(), "at": start} for tensor, start in zip(tensors, placed)]

    def read(self, described: Any, copy: bool) -> List[torch.Tensor]:
        """The tensors; ``copy``: in memory of their own, else as they lie until the next question.

        Raises:
            ProtocolError: no description, or of something outside the region.
        """
        if not isinstance(described, list) or len(described) > MAX_TENSORS:
            raise ProtocolError(f"a question carries a list of at most {MAX_TENSORS} tensors")
        found = []
        for item in described:
            spec, start = TensorSpec.parse(item), item.get("at")
            if type(start) is not int or start < 0 or start % ALIGNMENT or spec.nbytes > MAX_BYTES:
                raise ProtocolError("a tensor is nowhere in the region")
            if start + spec.nbytes > self._size:
                self._look()
            if start + spec.nbytes > self._size:
                raise ProtocolError("a tensor is beyond the end of the region")
            whole = spec.zeros() if not spec.nbytes else None
            if whole is None:
                assert self._map is not None
                raw = torch.frombuffer(self._map, dtype=torch.uint8, count=spec.nbytes, offset=start)
                whole = raw.view(spec.torch_dtype).reshape(spec.shape)
            found.append(whole.clone() if copy else whole)
        return found

    def _look(self) -> None:
        self._size = os.fstat(self.fd).st_size
        self._map = mmap.mmap(self.fd, self._size) if self._size else None  # tensors hold on to the one before


class Lane:
    """One end of a lane.

    Args:
        channel: for headers.
        out, back: regions that this end writes and reads.
    """

    def __init__(self, channel: Channel, out: Region, back: Region) -> None:
        self.channel, self.out, self.back = channel, out, back
        self._turn = threading.Lock()
        self._asked = 0

    def ask(self, what: str, tensors: Tensors = (), **facts: Any) -> Tuple[Dict[str, Any], List[torch.Tensor]]:
        """What the other end answers: facts, and tensors in memory of their own.

        Raises:
            LinkLost: it is gone.
            EdgeOffloadError: it said no; or it failed (RemoteError).
        """
        with self._turn:
            self._asked += 1
            question = {"number": self._asked, "what": what, "facts": facts, "tensors": self.out.write(tensors)}
            self.channel.send(question)
            header, _ = self.channel.receive()
            while header.get("number") != self._asked:  # of a question whose asker was interrupted
                header, _ = self.channel.receive()
            failed = header.get("failed")
            if failed is not None:
                kind, cause, remedy = (str(part) for part in failed)
                raise KNOWN.get(kind, RemoteError)(cause, remedy)
            return dict(header["facts"]), self.back.read(header["tensors"], copy=True)

    def serve(self, handlers: Dict[str, Callable[..., Answer]]) -> None:
        """Answer until the other end is gone (LinkLost)."""
        while True:
            header, _ = self.channel.receive()
            try:
                given = self.back.read(header.get("tensors"), copy=False)
                facts, tensors = handlers[header["what"]](given, **header["facts"])
                told = {"facts": facts, "tensors": self.out.write(tensors)}
            except EdgeOffloadError as error:
                told = {"failed": [type(error).__name__, error.cause, error.remedy]}
            except Exception as error:
                told = {"failed": ["", f"{type(error).__name__}: {error}", ""]}
            self.channel.send({**told, "number": header.get("number")})
