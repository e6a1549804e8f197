"""Handles of modes that need a server: they are opened, and opened again after a failure, in the background.

Opening takes seconds and may be refused, and the connection may break at any time. No frame waits for any of it: it
gets an open handle, or the reason why there is none.
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
#: Called with the present step of opening, in words; raises :class:`.background.Ended` where it is to stop.
Progress = Callable[[str], None]
#: Opens a handle; raises EdgeOffloadError with the reason if it cannot.
Work = Callable[[Progress], Opened]

_log = logging.getLogger(__name__)


@dataclass
class _Opening(Generic[Opened]):
    """A handle that is open on one connection, is being opened, or could not be.

    Attributes:
        connection: number of the connection; -1: there was none when the handle was requested.
        handle: None while it is not open.
        problem: why it was not opened; empty: no failure.
        retry_s: after a failure, when it is opened again (monotonic seconds).
        doing: the present step of opening, in words.
        prepare: see :meth:`Handles.unavailable_reason`.
    """

    connection: int
    handle: Optional[Opened] = None
    problem: str = ""
    retry_s: float = 0.0
    doing: str = ""
    prepare: Optional[Callable[[], Work[Opened]]] = None


class Handles(Generic[Key, Opened]):
    """The handles of one mode; their keys are the shapes of inputs. Thread-safe.

    Args:
        client: the link, which the caller closes.
        subject: what is opened, for messages.
        close: closes a handle on the server; called only while the connection of the handle stands.
        retry_s: seconds until the next attempt, from the number of failures in a row.
        most: most handles at once; one more closes the oldest.
        report: called with the reason why a handle was not opened.
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
        self._client, self._subject, self._close_handle = client, subject, close
        self._retry_s, self._most, self._report = retry_s, most, report
        self._openings: Dict[Key, _Opening[Opened]] = {}
        self._refusals: Dict[Key, int] = {}
        self._paused_until_s, self._pause_reason = 0.0, ""
        self._closed: Future[None] = Future()
        self._lock = threading.Lock()

    def unavailable_reason(self, key: Key, prepare: Callable[[], Work[Opened]]) -> Optional[str]:
        """Return why there is no handle for ``key`` now; None when there is. Never blocks.

        Args:
            key: of the handle.
            prepare: called on this thread before opening begins; returns the work that opens the handle in the
                background.
        """
        connection = self._connection()
        if self._closed.done():
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
                background.start("edge-offload-open", self._open, key, opening, prepare(), over=self._closed)
            if opening.problem:
                return opening.problem
            if opening.handle is None:
                return f"{self._subject} is being opened" + (f": {opening.doing}" if opening.doing else "")
            return self._pause_reason if time.monotonic() < self._paused_until_s else None

    def get_handle(self, key: Key) -> Optional[Opened]:
        """The handle for ``key``, if it is open."""
        with self._lock:
            opening = self._openings.get(key)
            return None if opening is None else opening.handle

    def replace(self, key: Key, handle: Opened) -> None:
        """Replace the open handle for ``key``."""
        with self._lock:
            self._openings[key].handle = handle

    def all(self) -> List[Opened]:
        """Return the open handles."""
        with self._lock:
            return [opening.handle for opening in self._openings.values() if opening.handle is not None]

    def forget(self, key: Key, handle: Opened) -> None:
        """Remove a handle that the server does not know (any more); the next request for ``key`` opens it again."""
        with self._lock:
            opening = self._openings.get(key)
            if opening is not None and opening.handle is handle:
                del self._openings[key]

    def lose(self, problem: str) -> None:
        """Drop all handles, with ``problem`` as the reason; they are opened again after the first retry pause."""
        retry_s = time.monotonic() + self._retry_s(1)
        with self._lock:
            for opening in self._openings.values():
                opening.handle, opening.problem, opening.retry_s = None, problem, retry_s

    def pause(self, seconds: float, reason: str) -> None:
        """Report all handles as unavailable for so many seconds, with this reason."""
        with self._lock:
            self._paused_until_s, self._pause_reason = time.monotonic() + seconds, reason

    def link_changed(self, state: LinkState) -> None:
        """Open again, on a new connection, the handles that were open or requested; returns at once."""
        if state is LinkState.READY:
            with self._lock:
                prepared = [(key, opening.prepare) for key, opening in self._openings.items()]
            for key, prepare in prepared:
                if prepare is not None:
                    self.unavailable_reason(key, prepare)

    def close(self) -> None:
        """Close all handles; those that are being opened stop at their next step."""
        with self._lock:
            if not self._closed.done():
                self._closed.set_result(None)
            openings, self._openings = list(self._openings.values()), {}
        for opening in openings:
            self._close(opening)

    def state(self) -> Tuple[str, bool]:
        """Describe why a handle is not open (empty: no failure), and tell whether any is open."""
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
        """Number of the present connection."""
        return int(self._client.counters["connections"])

    def _open(self, key: Key, opening: _Opening[Opened], work: Work[Opened]) -> None:
        """Open a handle; runs in a background thread."""

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
            if self._closed.done():
                self._close(opening)

    def _refused(self, key: Key, opening: _Opening[Opened], why: str) -> None:
        if self._closed.done():
            return  # the handles are closed
        refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
        opening.retry_s = time.monotonic() + self._retry_s(refusals)
        opening.problem = f"{self._subject} was not opened: {why}"
        self._report(opening.problem)

    def _close_oldest(self) -> None:
        """Close handles beyond the limit, so that inputs of many sizes do not exceed the server's quota."""
        while len(self._openings) > self._most:
            self._close(self._openings.pop(next(iter(self._openings))))

    def _close(self, opening: _Opening[Any]) -> None:
        if opening.handle is not None and self._close_handle is not None and opening.connection == self._connection():
            self._close_handle(opening.handle)
