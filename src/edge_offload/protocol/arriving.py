"""The answer to one message while it arrives in parts: results that were computed early come first."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Optional

from edge_offload.protocol.messages import Answer

if TYPE_CHECKING:
    _Future = Future[Any]
else:  # Python 3.8 knows no Future of something
    _Future = Future


class PendingAnswer(_Future):
    """Future of a complete :class:`~edge_offload.protocol.messages.Answer`, whose parts can be read as they arrive.

    The transport calls :meth:`add_part` for each part, then :meth:`complete_answer` or :meth:`set_exception`. Outcomes
    are only appended, so those counted once stay readable without the lock.

    Attributes:
        so_far: the outcomes received.
        ended: no part will follow. Set together with the last outcomes, which is earlier than the future is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.so_far = Answer([])
        self.ended = False
        self._changed = threading.Condition()
        self._awaited_s = 0.0

    def add_part(self, part: Answer) -> None:
        """Append outcomes that arrived before the end of the answer."""
        with self._changed:
            self.so_far.extend(part)
            self._changed.notify_all()

    def complete_answer(self, last: Answer) -> None:
        """Append the last outcomes and resolve the Future."""
        with self._changed:
            self.so_far.extend(last)
            self.ended = True
        self.set_result(self.so_far)
        self._wake_waiters()

    def set_exception(self, exception: Optional[BaseException]) -> None:
        """Fail the Future, and wake the waiters for parts."""
        super().set_exception(exception)
        self._wake_waiters()

    def wait_until(self, outcomes: int, ran: int, timeout_s: float) -> Answer:
        """Wait for enough outcomes, or for the complete answer, and return what was received.

        Args:
            outcomes: number of steps that must have run.
            ran: number of steps that must have run ahead.
            timeout_s: longest wait for the complete answer, counted from the first call.

        Raises:
            concurrent.futures.TimeoutError: it took longer.
            LinkLost, ProtocolError: the connection or the answer failed before that many outcomes.
        """
        if self._has_arrived(outcomes, ran):
            return self.so_far
        with self._changed:
            now = time.monotonic()
            self._awaited_s = self._awaited_s or now
            remaining_s = max(0.0, self._awaited_s + timeout_s - now)
            arrived = self._changed.wait_for(lambda: self.ended or self._has_arrived(outcomes, ran), remaining_s)
            if not arrived:
                raise FutureTimeout()
            if self._has_arrived(outcomes, ran):
                return self.so_far
        answer: Answer = self.result(timeout_s)
        return answer

    def _has_arrived(self, outcomes: int, ran: int) -> bool:
        return len(self.so_far.outcomes) >= outcomes and len(self.so_far.ran) >= ran

    def _wake_waiters(self) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()
