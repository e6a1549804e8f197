"""Asks the server for a promise of accuracy and follows its turns, over a link. Knows nothing of networks."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Dict, Optional

from edge_offload.errors import EdgeOffloadError, ProtocolError
from edge_offload.link.estimate.estimator import Transfer
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.promise import PromisePolicy
from edge_offload.protocol.promises import ENDED, TURNS, SlotSchedule, read_text

#: Seconds that a server may take to answer: it may have to measure batches first.
ANSWER_S = 120.0
_log = logging.getLogger(__name__)


class Promise:
    """One robot's, for one network. Thread-safe.

    Args:
        policy: decides.
        client: the link; :meth:`notified` and :meth:`link_changed` are to be called by it.
        handle: of the model that is open on the server for the frames' shape; None while there is none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        policy: PromisePolicy,
        client: Client,
        handle: Callable[[], Optional[int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self._client, self._handle, self._clock = client, handle, clock
        self._lock = threading.Lock()
        self._asked: Optional[Future[Any]] = None

    def wants(self, captured: float) -> bool:
        """Whether the frame that was captured then (monotonic seconds) is to be sent; once for each, in their order."""
        with self._lock:
            wanted = self.policy.wants(self._clock(), captured)
        self._ask()
        return wanted

    def turn(self, captured: float) -> Dict[str, Any]:
        """What to add to the request with the frame that was captured then."""
        with self._lock:
            report = self.policy.report(self._clock(), captured)
        return {} if report is None else {"turn": report.to_wire()}

    def travelled(self, captured: float, transfer: Transfer) -> None:
        """The result of a frame has come."""
        now = self._clock()
        with self._lock:
            self.policy.travelled(transfer.server_received_s - captured, now - transfer.server_sent_s)

    def compared(self, stale_s: float, drop: float) -> None:
        """See :meth:`~edge_offload.manager.promise.PromisePolicy.compared`."""
        with self._lock:
            self.policy.compared(self._clock(), stale_s, drop)

    def words(self) -> str:
        """How things stand."""
        with self._lock:
            return self.policy.words(self._clock())

    @property
    def alone(self) -> str:
        """Why the robot is on its own; empty: it follows the server's turns."""
        with self._lock:
            return self.policy.alone(self._clock())

    def notified(self, kind: str, body: Dict[str, Any], _buffers: Any) -> None:
        """For the client's ``on_notify``."""
        with self._lock:
            try:
                if kind == TURNS:
                    self.policy.told(self._clock(), SlotSchedule.parse(body))
                elif kind == ENDED:
                    self.policy.ended(self._clock(), f"the server has ended the promise: {read_text(body)}")
            except ProtocolError as error:
                _log.warning("turns of the server cannot be used: %s", error)

    def link_changed(self, state: LinkState, cause: str) -> None:
        """For the client's ``on_state``: a promise ends with its connection."""
        if state is not LinkState.READY:
            with self._lock:
                self.policy.ended(self._clock(), cause, again_s=0.0)

    def _ask(self) -> None:
        if self._client.state is not LinkState.READY:
            return
        now = self._clock()
        if not self._client.welcome.get("promises", False):
            with self._lock:
                self.policy.ended(now, "this server makes no promises; start it with: serve --promises")
            return
        handle = self._handle()
        if handle is None:
            return
        with self._lock:
            ask = self.policy.ask(now, handle)
        if ask is None:
            return
        try:
            asked = self._client.request("promise", ask.to_wire(), timeout_s=ANSWER_S)
        except EdgeOffloadError as error:
            with self._lock:
                self.policy.ended(now, str(error))
            return
        self._asked = asked
        asked.add_done_callback(self._answered)

    def _answered(self, done: Future[Any]) -> None:
        """On the link's thread."""
        if done is not self._asked and self._asked is not None:
            return
        error = done.exception()
        with self._lock:
            if error is None:
                self.policy.admitted(self._clock(), read_text(done.result().body, "note"))
            else:
                self.policy.ended(self._clock(), str(error))
        _log.info("%s", self.words())
