"""Answers robots that ask for a promise of accuracy."""

from __future__ import annotations

import logging
from typing import Callable, Dict, Tuple

from edge_offload.execute.tensors import TensorSpec
from edge_offload.link.transport.peers import Request
from edge_offload.protocol.promises import PromiseRequest
from edge_offload.server.services.base import Service
from edge_offload.server.services.promise.batches import BatchRunner, BatchTable
from edge_offload.server.services.promise.register import PromiseSubject
from edge_offload.server.services.promise.scheduler import PromiseScheduler
from edge_offload.server.services.replica.replicas import ReplicaKey
from edge_offload.server.services.replica.service import OpenedModel, ReplicaService
from edge_offload.server.status import StatusBook
from edge_offload.server.worker import JobWorker

_log = logging.getLogger(__name__)


class PromiseService(Service):
    """Answers ``promise`` and ``give_back``; ``device``: the worker that owns the device."""

    def __init__(
        self, promises: PromiseScheduler, replicas: ReplicaService, device: JobWorker, book: StatusBook
    ) -> None:
        super().__init__(book)
        self._promises = promises
        self._replicas = replicas
        self._device = device
        self._tables: Dict[Tuple[ReplicaKey, Tuple[TensorSpec, ...]], Tuple[BatchRunner, BatchTable]] = {}

    @property
    def handlers(self) -> Dict[str, Callable[[Request], None]]:
        """Handlers by the request's kind."""
        return {"promise": self.make_promise, "give_back": self.give_back}

    def make_promise(self, request: Request) -> None:
        """Answer :class:`~edge_offload.protocol.promises.PromiseRequest` with ``{bound, batch, note}``.

        Raises:
            BadInput, ProtocolError, Refused: malformed, no such handle, a promise already, or no room for another.
        """
        ask = PromiseRequest.parse(request.body)
        opened = self._replicas.find_opened(request)
        self.submit_work(self._device, request, lambda: self._make_promise(request, ask, opened))

    def give_back(self, request: Request) -> None:
        """Answer ``{}`` with ``{had}``: True if there was a promise to end."""
        request.reply({"had": self._promises.end_promise(request.peer)})

    def _make_promise(self, request: Request, ask: PromiseRequest, opened: OpenedModel) -> None:
        """Make the promise on the device's thread; batches without a table are measured first."""
        self._promises.register.check_subject(opened)  # before seconds of the device's time are spent
        batches, table = self._load_table(opened)
        largest = len(table.median_s) if ask.batched else table.equal
        subject = PromiseSubject(opened, batches.run, table.latencies, judges=not batches.emulated)
        self._promises.register.admit_robot(request.peer, ask, subject, largest, request.received_s)
        note = table.reason
        if largest < len(table.median_s):
            note = f"batches of more than {largest} differ in the last digits, and it did not say batched:=true"
        _log.info("robot %s has a promise of %g", request.peer.name, ask.bound)
        request.reply({"bound": ask.bound, "batch": largest, "note": note})

    def _load_table(self, opened: OpenedModel) -> Tuple[BatchRunner, BatchTable]:
        key = (opened.replica.key, opened.specs)
        entry = self._tables.get(key)
        if entry is None or entry[0].replica is not opened.replica:
            batches = BatchRunner(opened.replica, opened.specs)
            entry = batches, batches.load_or_measure(self._device.give_way)
            if len(self._tables) >= 16:  # models and shapes whose batches are known at once
                self._tables.clear()
            self._tables[key] = entry
        return entry
