"""Stand-ins for the recorder and the connection of the virtual device, where this process computes its calls.

Nothing is recorded or sent. Each storage of the device has memory in this process, and each call is computed on it at
once (native/computing.h). Programs use this without a server, on a machine without a GPU.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from edge_offload.errors import Unsupported
from edge_offload.execute.devices import device_facts
from edge_offload.ir.trace.calls import Buffer
from edge_offload.mode import Mode
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.remote import Remote
from edge_offload.replay.exchange import ExchangeCounters


class NoRemote(Remote):
    """Remote of a device whose calls this process computes: nothing is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = device_facts(torch.device("cpu"))

    def submit(self, buffers: Sequence[Buffer], reusable: bool = False) -> PendingAnswer:
        """Refuses: nothing is ever sent.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("the device is computed in this process: there is nobody to send anything to")


class NoRecorder:
    """Handler of the native device that records nothing.

    Attributes:
        mode, failed, learning_s: constants in place of the state of a :class:`~edge_offload.replay.recorder.Recorder`.
        counters: messages and bytes over the link, which stay 0.
    """

    mode = Mode.LOCAL
    failed = False
    learning_s = 0.0

    def __init__(self, native: Any, remote: NoRemote) -> None:
        self.native, self.remote = native, remote
        self.counters = ExchangeCounters()

    def query(self) -> None:
        """Does nothing: a device query of the program needs no round trip here."""
