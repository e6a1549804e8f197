"""What modes with a server share: handles that are opened, retried and refused in the background.

Opening takes seconds and may be refused, and the connection may break at any time. No frame waits for any of it: a
frame asks whether its handle is there, and gets the reason why it is not.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, Hashable, List, Optional, Tuple, TypeVar

from edge_offload import background
from edge_offload.errors import EdgeOffloadError
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState

Key = TypeVar("Key", bound=Hashable)
Opened = TypeVar("Opened")
#: Called with what is being done, in words.
Progress = Callable[[str], None]
#: Opens something; raises EdgeOffloadError with the reason why it cannot.
Work = Callable[[Progress], Opened]

_log = logging.getLogger(__name__)


@dataclass
class _Opening(Generic[Opened]):
    """A handle on its way to being open, or open, on one connection."""

    connection: int
    handle: Optional[Opened] = None
    problem: str = ""
    retry_s: float = 0.0
    doing: str = ""
    prepare: Optional[Callable[[], Work[Opened]]] = None


class Handles(Generic[Key, Opened]):
    """The handles of one mode, by what they are opened for (the shapes of inputs). Thread-safe.

    Args:
        client: the link, owned by someone else.
        subject: what is opened, in words.
        close: gives up a handle of the connection that stands.
        retry_s: seconds until the next attempt, by how often it was refused in a row; never while None.
        most: handles that are kept; one more closes the oldest.
        report: hears why one was not opened.
    """

    def __init__(
        self,
        client: Client,
        subject: str,
        close: Optional[Callable[[Opened], object]] = None,
        retry_s: Callable[[int], float] = lambda _refusals: 2.0,
        most: int = 8,
        report: Callable[[str], None] = _log.warning,
    ) -> None:
        self._client, self._subject, self._give_up = client, subject, close
        self._retry_s, self._most, self._report = retry_s, most, report
        self._openings: Dict[Key, _Opening[Opened]] = {}
        self._refusals: Dict[Key, int] = {}
        self._paused_s, self._pause_reason = 0.0, ""
        self._over: Future[None] = Future()
        self._lock = threading.Lock()

    def unavailable_reason(self, key: Key, prepare: Callable[[], Work[Opened]]) -> Optional[str]:
        """Return why there is no handle for ``key`` now; None when there is. Never blocks.

        Args:
            key: what it is opened for.
            prepare: called here when opening is to begin; gives what then opens it in a thread of its own.
        """
        connection = self._connection()
        if self._over.done():
            return f"{self._subject} was given up"
        if self._client.state is not LinkState.READY:
            with self._lock:
                self._openings.setdefault(key, _Opening(-1, prepare=prepare))
            return f"no server: {self._client.cause}"
        with self._lock:
            opening = self._openings.get(key)
            due = opening is not None and opening.problem and time.monotonic() >= opening.retry_s
            if opening is None or opening.connection != connection or due:
                opening = self._openings[key] = _Opening(connection, prepare=prepare)
                self._close_oldest()
                background.start("edge-offload-open", self._open, key, opening, prepare(), over=self._over)
            if opening.problem:
                return opening.problem
            if opening.handle is None:
                return f"{self._subject} is being opened" + (f": {opening.doing}" if opening.doing else "")
            return self._pause_reason if time.monotonic() < self._paused_s else None

    def get(self, key: Key) -> Optional[Opened]:
        """The handle for ``key``, if it is open."""
        with self._lock:
            opening = self._openings.get(key)
            return None if opening is None else opening.handle

    def replace(self, key: Key, handle: Opened) -> None:
        """Set the handle for ``key``, which is open."""
        with self._lock:
            self._openings[key].handle = handle

    def all(self) -> List[Opened]:
        """Return the open handles."""
        with self._lock:
            return [opening.handle for opening in self._openings.values() if opening.handle is not None]

    def forget(self, key: Key, handle: Opened) -> None:
        """The server does not know this handle (any more): it is opened again for who asks next."""
        with self._lock:
            opening = self._openings.get(key)
            if opening is not None and opening.handle is handle:
                del self._openings[key]

    def lose(self, problem: str) -> None:
        """None of the handles can be used any more; they are opened again after a while."""
        retry_s = time.monotonic() + self._retry_s(1)
        with self._lock:
            for opening in self._openings.values():
                opening.handle, opening.problem, opening.retry_s = None, problem, retry_s

    def pause(self, seconds: float, reason: str) -> None:
        """No handle is to be used for so long."""
        with self._lock:
            self._paused_s, self._pause_reason = time.monotonic() + seconds, reason

    def link_changed(self, state: LinkState) -> None:
        """Open again what was open, or asked for, on the connection before; returns at once."""
        if state is LinkState.READY:
            with self._lock:
                prepared = [(key, opening.prepare) for key, opening in self._openings.items()]
            for key, prepare in prepared:
                if prepare is not None:
                    self.unavailable_reason(key, prepare)

    def close(self) -> None:
        """Give all handles up; what is still being opened is given up at its next step."""
        with self._lock:
            if not self._over.done():
                self._over.set_result(None)
            openings, self._openings = list(self._openings.values()), {}
        for opening in openings:
            self._close(opening)

    def state(self) -> Tuple[str, bool]:
        """Describe why a handle is not open (empty: unknown), and tell whether any is."""
        if self._client.state is not LinkState.READY:
            return f"no server: {self._client.cause}", False
        with self._lock:
            openings = list(self._openings.values())
        problem = next((opening.problem for opening in openings if opening.problem), "")
        if any(opening.handle is not None for opening in openings):
            return problem, True
        doing = openings[-1].doing if openings else ""
        return problem or f"{self._subject} is {'being' if openings else 'not'} opened{doing and f': {doing}'}", False

    def _connection(self) -> int:
        return int(self._client.counters["connections"])

    def _open(self, key: Key, opening: _Opening[Opened], work: Work[Opened]) -> None:
        """Open a handle, in a thread of its own."""

        def progress(doing: str) -> None:
            background.check()
            opening.doing = doing

        try:
            with background.yielding():
                opening.handle = work(progress)
        except (EdgeOffloadError, FutureTimeout) as error:
            self._refused(key, opening, str(error) or type(error).__name__)
        except Exception as error:
            _log.exception("%s was not opened", self._subject)
            self._refused(key, opening, f"{type(error).__name__}: {error}")
        else:
            self._refusals.pop(key, None)
            if self._over.done():
                self._close(opening)

    def _refused(self, key: Key, opening: _Opening[Opened], why: str) -> None:
        if self._over.done():
            return  # nobody waits for it any more
        refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
        opening.retry_s = time.monotonic() + self._retry_s(refusals)
        opening.problem = f"{self._subject} was not opened: {why}"
        self._report(opening.problem)

    def _close_oldest(self) -> None:
        """Keep few open, so that a model whose inputs vary in size does not meet the server's quota."""
        while len(self._openings) > self._most:
            self._close(self._openings.pop(next(iter(self._openings))))

    def _close(self, opening: _Opening[Any]) -> None:
        if opening.handle is not None and self._give_up is not None and opening.connection == self._connection():
            self._give_up(opening.handle)
