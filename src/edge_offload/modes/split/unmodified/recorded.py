"""A split of an inference that the virtual device recorded: opened by its sequence, with constants by checksum."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, Callable, Iterator, List, Sequence, Set

import torch
from torch import nn

from edge_offload import background
from edge_offload.errors import Unsupported
from edge_offload.execute.tensors import pack
from edge_offload.ir import wire
from edge_offload.ir.build import Program
from edge_offload.link.transport.client import Client
from edge_offload.memory import flat_bytes
from edge_offload.modes.runner import Attempt
from edge_offload.modes.split.robot.runner import OPEN_TIMEOUT_S, REOPEN_S, Opening, Specs, SplitRunner
from edge_offload.notices import notify
from edge_offload.protocol.blobs import MAX_BLOB_BYTES, digest, look_up
from edge_offload.split.model.network import Network

MOST_REOPEN_S = 600.0
PUT_TIMEOUT_S = 300.0
"""For a piece of 8 MiB, on a link of 30 kB/s."""


class RecordedSplit(SplitRunner):
    """Runs a recorded inference on robot and server together.

    Args:
        network: traced from the record (:mod:`edge_offload.modes.split.unmodified.lift`), for these shapes.
        client: the link, owned by someone else.
        slowdown: emulate a robot that is so many times slower.

    Attributes:
        weights_sent: bytes of constants that the server did not have.
    """

    def __init__(self, network: Network, client: Client, slowdown: float = 1.0, **options: Any) -> None:
        super().__init__(network.name, {}, nn.Identity(), client, str, _no_local, slowdown, **options)
        self._network = network
        self._refusals = 0
        self._closed = False
        self.weights_sent = 0

    def close(self) -> None:
        """See :meth:`SplitRunner.close`; what is being opened is closed when it is open."""
        self._closed = True
        super().close()

    def _open(self, specs: Specs, opening: Opening, examples: Sequence[torch.Tensor]) -> None:
        super()._open(specs, opening, examples)
        if self._closed and opening.handle is not None:
            self._client.request("split_close", {"handle": opening.handle})

    def _not_opened(self, opening: Opening, why: str) -> None:
        """What the server will not take it will hardly take soon."""
        self._refusals += 1
        opening.retry_s = time.monotonic() + min(REOPEN_S * 2**self._refusals, MOST_REOPEN_S)
        opening.problem = why
        if self._refusals == 1:
            notify(f"the split of {self._name} was not opened: {why}")

    def _trace(self, examples: Sequence[torch.Tensor]) -> Network:
        return self._network

    def _ask_to_open(self, examples: Sequence[torch.Tensor], tell: Callable[[str], None]) -> Future[Any]:
        program = self._network.program
        names = self._send_constants(program, tell)
        descriptors, buffers = pack(examples)
        body = {"constants": names, "inputs": descriptors}
        sequence = wire.encode(program.sequence)
        return self._client.request("split_open", body, [sequence, *buffers], timeout_s=OPEN_TIMEOUT_S)

    def _send_constants(self, program: Program, tell: Callable[[str], None]) -> List[bytes]:
        """Send the pieces of the constants that the server does not have; names of all."""
        tell("the server is asked for its weights")
        names = [digest(piece) for piece in _pieces(program)]
        missing: Set[bytes] = set()
        for _, absent in look_up(names, self._have):
            missing.update(names[index] for index in absent)
        for name, piece in zip(names, _pieces(program)):
            if name in missing:
                missing.discard(name)
                tell(f"its weights are being sent: {self.weights_sent / 1e6:.1f} MB so far")
                put = self._client.request("split_put", {"name": name}, [piece], timeout_s=PUT_TIMEOUT_S)
                background.result(put, PUT_TIMEOUT_S)
                self.weights_sent += len(piece)
        return names

    def _have(self, names: List[bytes]) -> Any:
        """What the server says of those blobs."""
        reply = background.result(self._client.request("split_have", {"names": names}, timeout_s=60.0), 60.0)
        return reply.body.get("missing")


def _pieces(program: Program) -> Iterator[bytes]:
    """The bytes of all constants in a row, each once and in the order of the sequence, cut into pieces."""
    rest = bytearray()
    for name in dict.fromkeys(program.sequence.constants.values()):
        tensor = program.constants[name]
        if tensor.numel():
            rest += flat_bytes(tensor).numpy().data
        while len(rest) >= MAX_BLOB_BYTES:
            yield bytes(rest[:MAX_BLOB_BYTES])
            del rest[:MAX_BLOB_BYTES]
    if rest:
        yield bytes(rest)


def _no_local(inputs: Sequence[torch.Tensor]) -> Attempt:
    """The device computes what stays here; it is asked before (``stays_local``)."""
    raise Unsupported(f"{len(inputs)} inputs are computed on the device")
