"""What takes the place of a server that a program has lost: an executor process on this machine."""

from __future__ import annotations

from edge_offload.cache import cache_dir
from edge_offload.device.remote import WorkerRemote
from edge_offload.protocol.remote import Remote
from edge_offload.replay.recovery.copies import UploadCopies


class ExecutorHere:
    """Stand-in that is an executor process on this machine.

    Args:
        device: where it computes, ``cpu`` or ``cuda``.
        threads: torch threads; 0 leaves torch's choice.
    """

    def __init__(self, device: str, threads: int) -> None:
        self.copies = UploadCopies(cache_dir())
        self._device, self._threads = device, threads

    def start(self) -> Remote:
        return WorkerRemote(self._device, self._threads)
