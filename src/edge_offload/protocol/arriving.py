"""The answer to one message while it arrives: what was computed early is there before the rest of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any

from edge_offload.protocol.messages import Answer

if TYPE_CHECKING:
    _Future = Future[Any]
else:  # Python 3.8 knows no Future of something
    _Future = Future


class Arriving(_Future):
    """A Future of the whole :class:`~edge_offload.protocol.messages.Answer`, of which parts may come ahead.

    The transport calls :meth:`add` for each part, then :meth:`complete` or :meth:`set_exception`. Outcomes are only
    ever added, so whoever has seen that many may read them.

    Attributes:
        so_far: what is there.
        ended: whether nothing will be added. It is known at once with the last outcomes, other than :meth:`done`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.so_far = Answer([])
        self.ended = False
        self._changed = threading.Condition()
        self._awaited_s = 0.0
        self.add_done_callback(self._wake)

    def add(self, part: Answer) -> None:
        """Take in outcomes that came ahead of the others."""
        with self._changed:
            self.so_far.extend(part)
            self._changed.notify_all()

    def complete(self, last: Answer) -> None:
        """Take in the rest: the answer is complete."""
        with self._changed:
            self.so_far.extend(last)
            self.ended = True
        self.set_result(self.so_far)

    def until(self, outcomes: int, ran: int, timeout_s: float) -> Answer:
        """What is there once so many steps were run and so many ran ahead, or the answer is complete.

        Args:
            outcomes: how many steps must have run.
            ran: how many must have run ahead.
            timeout_s: longest wait for all of the answer, counted from the first time that somebody waits for it.

        Raises:
            TimeoutError: it took longer (that of concurrent.futures).
            LinkLost, ProtocolError: the rest will not come, and it is needed.
        """
        if self._has(outcomes, ran):
            return self.so_far
        with self._changed:
            now = time.monotonic()
            self._awaited_s = self._awaited_s or now
            left_s = max(0.0, self._awaited_s + timeout_s - now)
            enough = self._changed.wait_for(lambda: self.ended or self._has(outcomes, ran), left_s)
            if not enough:
                raise FutureTimeout()
            if self._has(outcomes, ran):
                return self.so_far
        answer: Answer = self.result(timeout_s)
        return answer

    def _has(self, outcomes: int, ran: int) -> bool:
        return len(self.so_far.outcomes) >= outcomes and len(self.so_far.ran) >= ran

    def _wake(self, _: Future[Any]) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()
