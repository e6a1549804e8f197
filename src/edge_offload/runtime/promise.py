"""Requests a promise of accuracy from the server and follows its slots. Independent of the network."""

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
from edge_offload.manager.tuning import PREPARATION_WAIT_S
from edge_offload.protocol.promises import ENDED, SCHEDULE, SlotSchedule, read_text

#: Seconds that a server may take to answer: it may have to measure batches first.
ANSWER_S = 2 * PREPARATION_WAIT_S
_log = logging.getLogger(__name__)


class Promise:
    """A robot's promise for one network. Thread-safe.

    Args:
        policy: decides which frames are sent, and when a promise is requested.
        client: the link, which is to call :meth:`notified` and :meth:`link_changed`.
        handle: returns the handle of the model that is open for the frames' shape; None while there is none.
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
        self._pending: Optional[Future[Any]] = None

    def wants_frame(self, captured: float) -> bool:
        """Tell whether a frame is sent to the server; requests a promise if it is time to.

        Called once per frame, in order.

        Args:
            captured: time of the frame's capture (monotonic seconds), which also identifies the frame.
        """
        with self._lock:
            sent = self.policy.wants_frame(self._clock(), captured)
        self._make_request()
        return sent

    def describe_slot(self, captured: float) -> Dict[str, Any]:
        """Return the entries that the frame's request gets for its slot; none if it has no slot."""
        with self._lock:
            report = self.policy.report_frame(self._clock(), captured)
        return {} if report is None else {"turn": report.to_wire()}

    def add_transfer_times(self, captured: float, transfer: Transfer) -> None:
        """Record how long a frame and its result travelled; called when the result has come.

        Args:
            captured: time of the frame's capture (monotonic seconds).
            transfer: times of its request on the robot's clock.
        """
        now = self._clock()
        with self._lock:
            self.policy.add_travel_times(transfer.server_received_s - captured, now - transfer.server_sent_s)

    def add_comparison(self, stale_s: float, drop: float) -> None:
        """Record a loss of accuracy; arguments as of :meth:`.PromisePolicy.add_comparison`."""
        with self._lock:
            self.policy.add_comparison(self._clock(), stale_s, drop)

    def describe(self) -> str:
        """Describe the promise's state."""
        with self._lock:
            return self.policy.describe(self._clock())

    @property
    def fallback_reason(self) -> str:
        """Return why the robot does not follow the server's slots; empty: it does."""
        with self._lock:
            return self.policy.fallback_reason(self._clock())

    def notified(self, kind: str, body: Dict[str, Any], _buffers: Any) -> None:
        """Handle the client's ``on_notify``."""
        with self._lock:
            try:
                if kind == SCHEDULE:
                    self.policy.follow_schedule(self._clock(), SlotSchedule.parse(body))
                elif kind == ENDED:
                    self.policy.end_promise(self._clock(), f"the server has ended the promise: {read_text(body)}")
            except ProtocolError as error:
                _log.warning("the slots that the server sent cannot be used: %s", error)

    def link_changed(self, state: LinkState, cause: str) -> None:
        """Handle the client's ``on_state``: a promise ends with its connection."""
        if state is not LinkState.READY:
            with self._lock:
                self.policy.end_promise(self._clock(), cause, retry_s=0.0)

    def _make_request(self) -> None:
        """Request a promise if the policy has a request and the server can take it; returns at once."""
        if self._client.state is not LinkState.READY:
            return
        now = self._clock()
        if not self._client.welcome.get("promises", False):
            with self._lock:
                self.policy.end_promise(now, "this server makes no promises; start it with: serve --promises")
            return
        handle = self._handle()
        if handle is None:
            return
        with self._lock:
            request = self.policy.make_request(now, handle)
        if request is None:
            return
        try:
            pending = self._client.request("promise", request.to_wire(), timeout_s=ANSWER_S)
        except EdgeOffloadError as error:
            with self._lock:
                self.policy.end_promise(now, str(error))
            return
        self._pending = pending
        pending.add_done_callback(self._answered)

    def _answered(self, done: Future[Any]) -> None:
        """Handle the server's answer; runs on the client's thread."""
        if done is not self._pending and self._pending is not None:
            return  # a later request has replaced it
        error = done.exception()
        with self._lock:
            if error is None:
                self.policy.record_admission(self._clock(), read_text(done.result().body, "note"))
            else:
                self.policy.end_promise(self._clock(), str(error))
        _log.info("%s", self.describe())
