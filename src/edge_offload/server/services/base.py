"""Shared parts of services: handles of opened items, work on other threads, and answers with errors."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import Callable, Dict, Generic, List, TypeVar

from edge_offload.errors import BadInput, EdgeOffloadError, Refused, RemoteError
from edge_offload.link.transport.peers import Peer, Request
from edge_offload.server.status import StatusBook
from edge_offload.server.worker import JobWorker

Item = TypeVar("Item")
_log = logging.getLogger(__name__)


class OpenHandles(Generic[Item]):
    """Opened items of robots, by connection and handle. Thread-safe.

    Args:
        what: noun of the items, for messages.
        release: called with each item that is closed.
    """

    def __init__(self, what: str, release: Callable[[Item], None]) -> None:
        self._what = what
        self._release = release
        self._open: Dict[Peer, Dict[int, Item]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def add_item(self, request: Request, item: Item) -> int:
        """Return a handle for ``item``; 0, and the item is released, if the robot has disconnected meanwhile."""
        handle = next(self._numbers)
        with self._lock:
            if not request.peer.disconnected:
                self._open.setdefault(request.peer, {})[handle] = item
                return handle
        self._release(item)
        return 0

    def find_item(self, request: Request) -> Item:
        """Return the item of the request's handle; :class:`BadInput` if none is open under it."""
        handle = request.body.get("handle")
        with self._lock:
            item = self._open.get(request.peer, {}).get(handle) if type(handle) is int else None
        if item is None:
            raise BadInput(
                f"no {self._what} is open under handle {str(handle)[:32]}", remedy="open it (again) on this connection"
            )
        return item

    def close_handle(self, request: Request) -> None:
        """``{handle}`` → ``{}``; the handle is void afterwards."""
        item = self.find_item(request)
        with self._lock:
            del self._open[request.peer][request.body["handle"]]
        self._release(item)
        request.reply({})

    def remove_peer(self, peer: Peer) -> None:
        """Release all items of a closed connection."""
        with self._lock:
            items = self._open.pop(peer, {})
        for item in items.values():
            self._release(item)

    def items_of_connection(self, peer: Peer) -> List[Item]:
        """Return the open items of one connection."""
        with self._lock:
            return list(self._open.get(peer, {}).values())

    def items_of_robot(self, peer: Peer) -> List[Item]:
        """Return the open items of a robot over all of its connections."""
        with self._lock:
            return [item for other, items in self._open.items() if other.key == peer.key for item in items.values()]


class Service:
    """Answers some kinds of requests. What it does not do at once is submitted to a worker.

    Args:
        book: counts.
    """

    def __init__(self, book: StatusBook) -> None:
        self._book = book

    def submit_work(self, worker: JobWorker, request: Request, work: Callable[[], None], cost_s: float = 0.0) -> None:
        """Let ``worker`` do ``work``; whatever that raises is the answer to ``request``, never the end of the worker.

        Raises:
            Refused: too much waits.
        """
        worker.submit_job(request.peer, lambda: self.answer_request(request, work), cost_s)

    def answer_request(self, request: Request, work: Callable[[], None]) -> None:
        """Do ``work``, which answers ``request``; so does any exception."""
        try:
            work()
        except Exception as error:
            self.fail_request(request, error)
        except SystemExit as error:
            self.fail_request(request, RemoteError(f"the model called sys.exit({error.code!r})"))

    def fail_request(self, request: Request, error: BaseException) -> None:
        """Answer ``request`` with ``error`` and count it."""
        self._book.add_totals(**{"refused" if isinstance(error, Refused) else "failed": 1})
        if not isinstance(error, EdgeOffloadError):
            _log.error("%s of %s failed", request.kind, request.peer.name, exc_info=error)
        if not request.answered:
            request.fail(error)
