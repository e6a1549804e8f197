"""What a client receives: answers and parts of them for whoever waits, notifications, and what never came."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Union

from edge_offload.errors import EdgeOffloadError, LinkLost, ProtocolError
from edge_offload.link.estimate.clock import ClockReading
from edge_offload.link.estimate.estimator import ACTIVE, PASSIVE, SAMPLE_BYTES, LinkEstimator, Transfer
from edge_offload.link.estimate.scheduling import BothEnds
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import PROBE, Message
from edge_offload.link.transport.replies import Item, LinkStatus, Reply, WaitingRequests

log = logging.getLogger(__name__)

#: Told of what the server sends unasked: kind, body, buffers.
OnNotify = Callable[[str, Dict[str, Any], List[memoryview]], None]


class Incoming:
    """Completes what waits for the server. Used by the link's thread.

    Args:
        status: of the link, for what is told.
        requests: what waits for an answer.
        estimator: learns from every transfer.
        waits: of threads for a processor, here and at the server.
        counters: what happened, by name; shared with the client.
        on_notify: told of what the server sends unasked.
    """

    def __init__(
        self,
        status: LinkStatus,
        requests: WaitingRequests,
        estimator: LinkEstimator,
        waits: BothEnds,
        counters: Counter[Any],
        on_notify: Optional[OnNotify],
    ) -> None:
        self._status = status
        self.requests, self.estimator, self.waits, self.counters = requests, estimator, waits, counters
        self._on_notify = on_notify

    @property
    def busy(self) -> bool:
        """Tell whether a request waits for its answer."""
        return self.requests.count > 0

    def take_message(self, message: Message, received_s: float, size: int, epoch: int, reading: ClockReading) -> None:
        """One message that arrived at ``received_s`` with ``size`` bytes.

        Args:
            message: what arrived.
            received_s: seconds, monotonic.
            size: bytes on the wire.
            epoch: of the connection; what belongs to an earlier one is dropped.
            reading: the server's clock.
        """
        if message.epoch != epoch:
            self.counters["dropped: other epoch"] += 1
        elif message.type == "notify":
            self._take_notification(message)
        elif message.type == "part":
            self.estimator.skip_arrivals(received_s)
            self._take_part(message, size)
        elif message.type == "error" and message.id == 0:
            self.counters["told: malformed"] += 1
            log.warning("link: %s says: %s", self._status.address, messages.error_from(message.body))
        elif message.type in ("reply", "error"):
            item = self.requests.pop_answered(message.id)
            if item is None:
                self.counters["dropped: late"] += 1
            elif message.type == "error":
                self._finish_request(item, messages.error_from(message.body))
            elif len(message.times) != 2:
                self._finish_request(item, ProtocolError("reply without times"))
            else:
                server_s, answered_s = (reading.to_local(seconds) for seconds in message.times)
                self.waits.far.take_reported(answered_s, message.body)
                useful = max(item.bytes_up, size) >= SAMPLE_BYTES
                transfer = Transfer(
                    item.queued_s,
                    item.sent_s,
                    server_s,
                    answered_s,
                    received_s,
                    reading.error_s,
                    item.bytes_up,
                    size,
                    self.waits.waited_between(item.sent_s, server_s) if useful else 0.0,
                    self.waits.waited_between(answered_s, received_s) if useful else 0.0,
                )
                self.estimator.add_transfer(transfer, ACTIVE if item.message.name == PROBE else PASSIVE)
                self._finish_request(item, Reply(message.body, message.buffers, transfer))
        else:
            self.counters["malformed"] += 1

    def _take_part(self, message: Message, size: int) -> None:
        item = self.requests.find_request(message.id)
        if item is None or item.on_part is None:
            self.counters["dropped: late"] += 1
            return
        try:
            item.on_part(message.body, message.buffers, size)
        except Exception:
            # the application's bug must not take the link down with it
            log.exception("link: on_part() failed for %s", item.message.name)

    def _take_notification(self, message: Message) -> None:
        if self._on_notify is None:
            return
        try:
            self._on_notify(message.name, message.body, message.buffers)
        except Exception:
            # the application's bug must not take the link down with it
            log.exception("link: on_notify() failed for %s", message.name)

    def expire_requests(self) -> None:
        """Give up what has waited for too long."""
        now = time.monotonic()
        for item in self.requests.pop_expired(now):
            self.counters["timeouts"] += 1
            waited_s = now - item.queued_s
            self._finish_request(
                item, LinkLost(f"{self._status.address} did not answer {item.message.name} in {waited_s:.2f} s")
            )

    def fail_all(self, error: LinkLost) -> None:
        """The connection is over: nothing is answered any more."""
        # the state is not READY any more, so nothing is added to the outbox behind our back
        for item in self.requests.pop_all():
            self._finish_request(item, error)

    def _finish_request(self, item: Item, outcome: Union[Reply, EdgeOffloadError]) -> None:
        if not self.requests.finish_request(item, outcome):
            self.counters["dropped: cancelled"] += 1
