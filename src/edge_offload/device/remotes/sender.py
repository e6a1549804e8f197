"""Sending a message of the virtual device over the link: weights that the server lacks and large pieces go first."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Callable, Dict, List, Optional, Sequence

from edge_offload.device.remotes.sent import SentMessage, Weights
from edge_offload.errors import LinkLost, ProtocolError
from edge_offload.ir.trace.calls import Buffer
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import OnPart, Reply
from edge_offload.protocol.blobs import MAX_BLOB_BYTES, NamedBlobs, digest, find_missing, split_blobs
from edge_offload.protocol.remote import HAVE, PUT, RUN, STAGE

#: Buffers that are likely to come again are looked for on the server from this size on.
MIN_BLOB_BYTES = 16 << 10
#: Bytes on the way at once; the server tells clients what it takes, and it takes more than this.
MAX_IN_FLIGHT_BYTES = 40 << 20


class MessageSender:
    """Sends the messages of one session. The caller holds a lock.

    Weights are sent once in the server's life, and buffers of more than 8 MiB in pieces, since a message of the link is
    bounded.

    Args:
        client: started.
        session: name of the session.
        codec: payload codec, both ways; ``auto`` is lossless.
        timeout_s: longest wait for one answer.
        weights: adds to it.
        on_weights: called after every upload of weights.
        on_transfer: called on the link's thread with each request that is answered without a result.
    """

    def __init__(
        self, client: Client, session: bytes, codec: str, timeout_s: float, weights: Weights,
        on_weights: Optional[Callable[[Weights], None]], on_transfer: Callable[[Future[Any]], None],
    ) -> None:  # fmt: skip
        self._client = client
        self._session = session
        self._codec = codec
        self._timeout_s = timeout_s
        self._weights = weights
        self._on_weights = on_weights
        self._on_transfer = on_transfer
        self._in_flight: Dict[Future[Any], int] = {}

    def send_message(self, sent: SentMessage, answered: int, on_part: OnPart) -> Future[Any]:
        """Send a message; return the Future of its reply.

        Args:
            sent: what is sent.
            answered: number of the last message up to which all answers are there.
            on_part: takes the parts of its answer.

        Raises:
            LinkLost: the connection broke.
            ProtocolError: weights that the server had are gone.
        """
        parts: List[Any] = []
        direct: List[Buffer] = []
        blobs: List[memoryview] = []
        named: List[bytes] = []
        offered: List[bytes] = []
        ahead = sent.ahead
        for index, buffer in enumerate(sent.buffers):
            position = None if ahead is None else ahead.position_of(buffer)
            if position is not None:
                parts.append([memoryview(buffer).nbytes, position])
                continue
            if isinstance(buffer, NamedBlobs):
                parts.append([buffer.nbytes, list(buffer.names)])
                named += buffer.names
                continue
            view = memoryview(buffer).cast("B")
            if sent.retain and view.nbytes >= MIN_BLOB_BYTES:
                pieces = split_blobs(view)
                digests = [digest(piece) for piece in pieces]
                parts.append([view.nbytes, digests])
                offered += digests
                blobs += pieces
            elif view.nbytes > MAX_BLOB_BYTES:
                parts.append([view.nbytes, None])
                for number, piece in enumerate(split_blobs(view)):
                    where = {"index": index, "offset": number * MAX_BLOB_BYTES, "total": view.nbytes}
                    self._request(STAGE, sent, where, [piece])
            else:
                parts.append(None)
                direct.append(view)
        if blobs:
            self._send_missing(sent, blobs, offered)
        if any(missing for _, missing in find_missing(named, lambda names: self._missing_on_server(sent, names))):
            raise ProtocolError("weights that were on the server's disk are not there any more")
        body: Dict[str, Any] = {"codec": self._codec, "coded": [list(item) for item in sent.coded], "ahead": True}
        downlink = self._client.estimator.current.downlink
        if downlink:
            body["downlink"] = downlink
        if any(part is not None for part in parts):
            body["parts"] = parts
        if ahead is not None:
            body["ahead_number"] = ahead.number
        return self._request(RUN, sent, {**body, "answered": answered}, direct, on_part)

    def drop_in_flight(self) -> None:
        """Wait for none of the requests so far: their connection broke."""
        self._in_flight.clear()

    def _send_missing(self, sent: SentMessage, blobs: List[memoryview], names: List[bytes]) -> None:
        """Send those blobs that the server does not have."""
        weights = self._weights
        weights.started_s = weights.started_s or time.monotonic()
        for indices, missing in find_missing(names, lambda names: self._missing_on_server(sent, names)):
            for index in indices:
                if index in missing:
                    self._request(PUT, sent, {"name": names[index]}, [blobs[index]])
                    weights.sent += blobs[index].nbytes
                else:
                    weights.cached += blobs[index].nbytes
                weights.ended_s = time.monotonic()
                if self._on_weights is not None:
                    self._on_weights(weights)

    def _missing_on_server(self, sent: SentMessage, names: List[bytes]) -> Any:
        """Ask which of those blobs the server lacks."""
        return await_reply(self._request(HAVE, sent, {"names": names}, []), self._timeout_s).body.get("missing")

    def _request(
        self, kind: str, sent: SentMessage, body: Dict[str, Any], buffers: Sequence[Buffer],
        on_part: Optional[OnPart] = None,
    ) -> Future[Any]:  # fmt: skip
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        while self._in_flight and sum(self._in_flight.values()) + size > MAX_IN_FLIGHT_BYTES:
            done, _ = wait(list(self._in_flight), self._timeout_s, FIRST_COMPLETED)
            if not done:
                raise LinkLost(f"the server took nothing for {self._timeout_s:g} s")
            self._remove_finished(list(done))
        body = {**body, "session": self._session, "number": sent.number}
        future = self._client.request(kind, body, buffers, timeout_s=self._timeout_s, on_part=on_part)
        self._in_flight[future] = size
        if kind in (STAGE, PUT):
            future.add_done_callback(self._on_transfer)
        self._remove_finished([item for item in self._in_flight if item.done() and item is not future])
        return future

    def _remove_finished(self, finished: Sequence[Future[Any]]) -> None:
        for item in finished:
            self._in_flight.pop(item)


def await_reply(future: Future[Any], timeout_s: float) -> Reply:
    """Wait for a reply.

    Raises:
        LinkLost: there is none in time.
    """
    try:
        reply: Reply = future.result(timeout_s + 1.0)
    except FutureTimeout:
        raise LinkLost(f"no answer within {timeout_s:g} s") from None
    return reply
