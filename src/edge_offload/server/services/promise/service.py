"""Answers robots that ask for a promise of accuracy."""

from __future__ import annotations

import logging
from typing import Callable, Dict, Tuple

from edge_offload.execute.tensors import TensorSpec
from edge_offload.link.transport.peers import Request
from edge_offload.protocol.promises import PromiseRequest
from edge_offload.server.services.base import Service
from edge_offload.server.services.promise.batches import Batches, Table
from edge_offload.server.services.promise.register import Subject
from edge_offload.server.services.promise.scheduler import Promises
from edge_offload.server.services.replica.replicas import Key
from edge_offload.server.services.replica.service import Opened, ReplicaService
from edge_offload.server.status import StatusBook
from edge_offload.server.worker import Worker

#: Models and shapes whose batches are known at once.
MAX_KNOWN = 16
_log = logging.getLogger(__name__)


class PromiseService(Service):
    """Answers ``promise`` and ``give_back``.

    Args:
        promises: the server's scheduler.
        replicas: has the models open.
        device: worker that owns the device.
        book: counts.
    """

    def __init__(self, promises: Promises, replicas: ReplicaService, device: Worker, book: StatusBook) -> None:
        super().__init__(book)
        self._promises = promises
        self._replicas = replicas
        self._device = device
        self._known: Dict[Tuple[Key, Tuple[TensorSpec, ...]], Tuple[Batches, Table]] = {}

    @property
    def handlers(self) -> Dict[str, Callable[[Request], None]]:
        """Handlers by the request's kind."""
        return {"promise": self.promise, "give_back": self.give_back}

    def promise(self, request: Request) -> None:
        """Answer :class:`~edge_offload.protocol.promises.PromiseRequest` with ``{bound, batch, note}``.

        Raises:
            BadInput, ProtocolError, Refused: malformed, no such handle, a promise already, or no room for another.
        """
        ask = PromiseRequest.parse(request.body)
        opened = self._replicas.opened(request)
        self.submit(self._device, request, lambda: self._promise(request, ask, opened))

    def give_back(self, request: Request) -> None:
        """Answer ``{}`` with ``{had}``: True if there was a promise to end."""
        request.reply({"had": self._promises.leave(request.peer)})

    def _promise(self, request: Request, ask: PromiseRequest, opened: Opened) -> None:
        """Make the promise on the device's thread; batches without a table are measured first."""
        self._promises.register.check(opened)  # before seconds of the device's time are spent
        batches, table = self._table(opened)
        largest = len(table.median_s) if ask.batched else table.equal
        subject = Subject(opened, batches.run, table.latencies, judges=not batches.emulated)
        self._promises.register.join(request.peer, ask, subject, largest, request.received_s)
        note = table.reason
        if largest < len(table.median_s):
            note = f"batches of more than {largest} differ in the last digits, and it did not say batched:=true"
        _log.info("robot %s has a promise of %g", request.peer.name, ask.bound)
        request.reply({"bound": ask.bound, "batch": largest, "note": note})

    def _table(self, opened: Opened) -> Tuple[Batches, Table]:
        key = (opened.replica.key, opened.specs)
        found = self._known.get(key)
        if found is None or found[0].replica is not opened.replica:
            batches = Batches(opened.replica, opened.specs)
            found = batches, batches.table(self._device.give_way)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found
