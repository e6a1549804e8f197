"""Requests that wait, and what they get: replies with the timing of their transfer; the states of the link."""

from __future__ import annotations

import enum
import heapq
import logging
import math
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union

from edge_offload.errors import EdgeOffloadError, LinkLost
from edge_offload.link.estimate.estimator import Transfer
from edge_offload.link.transport.messages import Message
from edge_offload.link.transport.terms import Terms

log = logging.getLogger(__name__)


class LinkState(enum.Enum):
    """State of a link; the cause is :attr:`Client.cause`."""

    CONNECTING = "connecting"
    READY = "ready"
    REFUSED = "refused"
    LOST = "lost"
    CLOSED = "closed"


class LinkStatus:
    """State of the link and its cause, for readers and for those who wait. Thread-safe.

    Args:
        address: of the server that is dialled first.
        on_change: called with (state, cause) on every change, in the thread that makes it.

    Attributes:
        state: where the link stands.
        cause: why, in words.
        lock: held while it changes, so that whoever holds it can count on the state.
        address: of the server that is connected, or dialled.
        epoch: of the connection.
        terms, welcome: what the server said when it was connected last.
        leaving: until when answers are waited for before it is left, and why; None: it is not.
    """

    def __init__(self, address: str, on_change: Optional[Callable[[LinkState, str], None]] = None) -> None:
        self.state = LinkState.CONNECTING
        self.cause = "not started"
        self._on_change = on_change
        self._error: Optional[EdgeOffloadError] = None
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self.address = address
        self.epoch = 0
        self.terms = Terms()
        self.welcome: Dict[str, Any] = {}
        self.leaving: Optional[Tuple[float, str]] = None

    def change_state(self, state: LinkState, cause: str, error: Optional[EdgeOffloadError] = None) -> None:
        """Change the state; ``error``: the refusal that those who wait get."""
        with self._changed:
            self._error = error
            if (state, cause) == (self.state, self.cause):
                return
            changed = state is not self.state
            self.state, self.cause = state, cause
            self._changed.notify_all()
        if changed:
            log.info("link: %s: %s", state.value, cause)
        if self._on_change is not None:
            try:
                self._on_change(state, cause)
            except Exception:
                # the application's bug must not take the link down with it
                log.exception("link: on_state() failed")

    def wait_ready(self, timeout_s: float, address: str) -> None:
        """Wait until requests can be sent to ``address``.

        Raises:
            Refused: the server turned this robot away.
            LinkLost: there was no connection within ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while self.state is not LinkState.READY:
                if self.state is LinkState.REFUSED and self._error is not None:
                    raise self._error
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0 or self.state is LinkState.CLOSED:
                    raise LinkLost(
                        f"no connection to {address} within {round(timeout_s, 1):g} s ({self.cause})",
                        remedy="check that 'edge-offload serve' runs there and that the address is right",
                    )
                self._changed.wait(remaining_s)


@dataclass(frozen=True)
class Reply:
    """The server's answer: ``body`` dict, ``buffers`` as views of the received memory, and the :class:`Transfer`."""

    body: Dict[str, Any]
    buffers: List[memoryview]
    transfer: Transfer


#: Told of what comes ahead of an answer: body, buffers, bytes on the wire.
OnPart = Callable[[Dict[str, Any], List[memoryview], int], None]


@dataclass
class Item:
    """One message of the client.

    Attributes:
        header: its first part, packed.
        future: who waits for the answer; None for a notification.
        queued_s, deadline_s: when it was handed over, and until when it is waited for.
        bytes_up: what it takes on the wire.
        sent_s: when it was given to ZeroMQ; 0 before.
        on_part: told of what comes ahead of the answer.
    """

    message: Message
    header: bytes
    future: Optional[Future[Any]]
    queued_s: float
    deadline_s: float
    bytes_up: int
    sent_s: float = 0.0
    on_part: Optional[OnPart] = None


class WaitingRequests:
    """Counts requests and bytes from admission to :meth:`finish_request`. ``sent`` is set while none waits unsent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outbox: Deque[Item] = deque()
        self._unanswered: Dict[int, Item] = {}
        self._deadlines: List[Tuple[float, int]] = []
        self._bytes = 0
        self.count = 0
        self.sent = threading.Event()

    def admit_request(self, item: Item, most: int, most_bytes: int) -> str:
        """Queue ``item``, unless ``most`` requests or ``most_bytes`` wait; returns what is in the way, if anything."""
        with self._lock:
            if self.count >= most or self._bytes + item.bytes_up > most_bytes:
                return f"{self.count} requests ({self._bytes >> 10} KiB) wait"
            self.count += 1
            self._bytes += item.bytes_up
            self._outbox.append(item)
            self.sent.clear()
        return ""

    def take_next(self) -> Optional[Item]:
        """Take the next to send; it is noted before it is sent, so that a connection that breaks fails it, too."""
        if not self._outbox:
            if not self.sent.is_set():
                with self._lock:
                    if not self._outbox:
                        self.sent.set()
            return None
        item = self._outbox.popleft()
        item.sent_s = time.monotonic()
        if item.future is None:
            self._release_budget(item)
        else:
            self._unanswered[item.message.id] = item
            heapq.heappush(self._deadlines, (item.deadline_s, item.message.id))
        return item

    def pop_answered(self, number: int) -> Optional[Item]:
        """The request of this number, which waits no more; None if there is none (any more)."""
        return self._unanswered.pop(number, None)

    def find_request(self, number: int) -> Optional[Item]:
        """The request of this number, which goes on waiting; None if there is none."""
        return self._unanswered.get(number)

    def due_s(self) -> float:
        """Return when the next one runs out of time."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def pop_expired(self, now: float) -> List[Item]:
        """Remove and return those whose time has run out."""
        expired = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][1] not in self._unanswered):
            item = self._unanswered.pop(heapq.heappop(self._deadlines)[1], None)
            if item is not None:
                expired.append(item)
        return expired

    def pop_all(self) -> List[Item]:
        """Remove and return everything, sent or not. The caller sees to it that nothing is admitted meanwhile."""
        items = [*self._unanswered.values(), *self._outbox]
        self._unanswered.clear()
        self._outbox.clear()
        self._deadlines.clear()
        return items

    def finish_request(self, item: Item, outcome: Union[Reply, EdgeOffloadError]) -> bool:
        """Tell who waits; False if they have cancelled."""
        self._release_budget(item)
        if item.future is None:
            return True
        try:
            if isinstance(outcome, Reply):
                item.future.set_result(outcome)
            else:
                item.future.set_exception(outcome)
        except InvalidStateError:
            return False
        return True

    def _release_budget(self, item: Item) -> None:
        with self._lock:
            self.count -= 1
            self._bytes -= item.bytes_up
