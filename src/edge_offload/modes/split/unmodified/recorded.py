"""What is split in an unmodified program: an inference that the virtual device recorded, with constants by checksum."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Iterator, List, Optional, Sequence, Set

import torch

from edge_offload import background
from edge_offload.errors import Unsupported
from edge_offload.execute.tensors import pack_tensors
from edge_offload.ir import wire
from edge_offload.ir.build import TracedProgram
from edge_offload.link.transport.client import Client
from edge_offload.memory import flat_bytes
from edge_offload.modes.remote import Progress
from edge_offload.modes.runner import Attempt
from edge_offload.modes.split.robot.opening import MOST_REOPEN_S, OPEN_TIMEOUT_S, REOPEN_S
from edge_offload.notices import Once
from edge_offload.protocol.blobs import MAX_BLOB_BYTES, digest, find_missing
from edge_offload.split.learning.process import SplitLearning
from edge_offload.split.model.network import TracedNetwork


class RecordedSource:
    """A recorded inference; the server gets its sequence and the constants that it does not have.

    Args:
        network: traced from the record (:mod:`edge_offload.modes.split.unmodified.lift`), for its shapes.

    Attributes:
        weights_sent: bytes of constants that the server did not have.
    """

    computes = False

    def __init__(self, network: TracedNetwork) -> None:
        self.name = network.name
        self.weights_sent = 0
        self._network = network
        self._once = Once(1)
        self.learning = SplitLearning("", {}, lambda: "")

    def trace_operators(self, examples: Sequence[torch.Tensor], progress: Progress) -> TracedNetwork:
        """See :class:`~edge_offload.modes.split.robot.opening.SplitSource`."""
        del examples, progress
        return self._network

    def request_open(
        self, client: Client, examples: Sequence[torch.Tensor], sequence: Optional[str], progress: Progress
    ) -> Future[Any]:
        """See :class:`~edge_offload.modes.split.robot.opening.SplitSource`."""
        del sequence
        program = self._network.program
        names = self._send_constants(client, program, progress)
        descriptors, buffers = pack_tensors(examples)
        body = {"constants": names, "inputs": descriptors}
        encoded = wire.encode(program.sequence)
        return client.request("split_open", body, [encoded, *buffers], timeout_s=OPEN_TIMEOUT_S)

    def run_here(self, inputs: Sequence[torch.Tensor]) -> Attempt:
        """The device computes what stays here; it is asked before (``stays_local``).

        Raises:
            Unsupported: always.
        """
        raise Unsupported(f"{len(inputs)} inputs are computed on the device")

    def retry_s(self, refusals: int) -> float:
        """Return a long pause: a refusal of the server hardly changes soon."""
        return min(REOPEN_S * float(2**refusals), MOST_REOPEN_S)

    def report(self, problem: str) -> None:
        """Notify the user of a problem once."""
        self._once.notify(problem)

    def _send_constants(self, client: Client, program: TracedProgram, progress: Progress) -> List[bytes]:
        """Send the pieces of the constants that the server does not have; return the names of all."""

        def request_missing(batch: List[bytes]) -> Any:
            future = client.request("split_have", {"names": batch}, timeout_s=60.0)
            return background.result(future, 60.0).body.get("missing")

        progress("the server is asked for its weights")
        names = [digest(piece) for piece in _cut_pieces(program)]
        missing: Set[bytes] = set()
        for _, absent in find_missing(names, request_missing):
            missing.update(names[index] for index in absent)
        timeout_s = 300.0  # for a piece of 8 MiB, on a link of 30 kB/s
        for name, piece in zip(names, _cut_pieces(program)):
            if name in missing:
                missing.discard(name)
                progress(f"its weights are being sent: {self.weights_sent / 1e6:.1f} MB so far")
                upload = client.request("split_put", {"name": name}, [piece], timeout_s=timeout_s)
                background.result(upload, timeout_s)
                self.weights_sent += len(piece)
        return names


def _cut_pieces(program: TracedProgram) -> Iterator[bytes]:
    """Yield the bytes of all constants in a row, each once and in the order of the sequence, cut into pieces."""
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
